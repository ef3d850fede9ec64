// Functions are compiled once per instruction set (setup.py), each time under names of their own.
#pragma once

#ifndef DEEPGAT_SUFFIX
#define DEEPGAT_SUFFIX base
#endif
#define DEEPGAT_JOIN_(a, b) a##_##b
#define DEEPGAT_JOIN(a, b) DEEPGAT_JOIN_(a, b)
#define DEEPGAT_NAME(name) DEEPGAT_JOIN(name, DEEPGAT_SUFFIX)

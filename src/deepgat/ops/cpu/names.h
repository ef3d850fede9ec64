// setup.py compiles the functions once per instruction set. DEEPGAT_SUFFIX makes the names unique.
#pragma once

#ifndef DEEPGAT_SUFFIX
#define DEEPGAT_SUFFIX base
#endif
#define DEEPGAT_JOIN_(a, b) a##_##b
#define DEEPGAT_JOIN(a, b) DEEPGAT_JOIN_(a, b)
#define DEEPGAT_NAME(name) DEEPGAT_JOIN(name, DEEPGAT_SUFFIX)

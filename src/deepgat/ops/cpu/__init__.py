"""The operators on the CPU, in C++ with OpenMP."""

// What a launch passes to the host's part of a kernel, and what that tells of the kernel. Everything is C: the host's
// part is a library whose functions are found by name.
#pragma once
#include "cutlass/cutlass.h"

#define CUTEGEMM_JOIN_(a, b) a##b
#define CUTEGEMM_JOIN(a, b) CUTEGEMM_JOIN_(a, b)
#define CUTEGEMM_NAME(suffix) CUTEGEMM_JOIN(KERNEL, suffix)

struct Call {
    const void* a;
    const void* b;
    void* workspace;
    void* stream;
    long long lda, ldb;
    int m, n, k;
    int sm_count;
    int blocks_per_sm;
    int parts;    // that K is split into
    int swizzle;  // tiles side by side that clusters take in turn, at most, before they go on
    int raster;   // which way they go: 0 as CUTLASS thinks best, 1 along M, 2 along N
    EpilogueArguments epilogue;
};

struct Facts {
    long long parameter_bytes, parameter_align;
    long long threads, shared_bytes;
};

"""The parts of a C library of kernels that are the same in each: what `c_source` puts its functions between."""

from __future__ import annotations

HEADER = """\
/*
 * Matrix multiplications with fused epilogues on NVIDIA GPUs, written by cutegemm; link with libcutegemm.so.
 *
 * Calls. A function enqueues one kernel on `stream` (a cudaStream_t; NULL is the default stream) and returns: it does
 * not synchronise, allocates nothing, and reads and writes the matrices only on the GPU. The calling thread's current
 * device has to be the one that the matrices and the stream belong to. Functions may be called from several threads.
 * The first call on a device loads the kernel, which takes milliseconds; cutegemm_load() does it for all of them ahead
 * of time, as has to be done before a stream is captured into a graph.
 *
 * Arguments. Addresses are those of device memory. Sizes and strides are counted in elements. There are two batch
 * dimensions, `batch` and `outer`: each product is made batch * outer times, and `X_stride_batch` and `X_stride_outer`
 * lead from one to the next in X, or are 0 where all share X. Without a batch both sizes are 1 and these strides mean
 * nothing, as the stride of any dimension of size 1 does. Where m, n, batch or outer is 0 a call does nothing. Outputs
 * must not overlap themselves, one another or anything that is read, but for an output that is the very matrix c or an
 * operand [m, n] of the same dtype and strides. Products are summed in fp32, the epilogue computes in fp32, and each
 * output is rounded once. alpha scales the products alone; 0 does not keep a and b from being read.
 *
 * Results. 0: the kernel was enqueued. Negative: an argument is not what the kernel takes for granted, or there is no
 * kernel for this GPU (CUTEGEMM_...); nothing was enqueued. Positive: a cudaError_t. What the kernel itself meets with
 * shows where the stream is synchronised, as with any kernel.
 */
#ifndef CUTEGEMM_H
#define CUTEGEMM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CUTEGEMM_OK = 0,
    CUTEGEMM_NULL_POINTER = -1, /* an address is NULL */
    CUTEGEMM_BAD_SIZE = -2,     /* a size is negative, too large, or one that the function does not take */
    CUTEGEMM_BAD_STRIDE = -3,   /* a stride is negative, not a multiple of what it must be, or makes lines overlap */
    CUTEGEMM_MISALIGNED = -4,   /* an address is not a multiple of what it must be */
    CUTEGEMM_NO_KERNEL = -5     /* the function has no kernel for the current device */
};

/* What was wrong with the calling thread's last call that did not return 0: the argument, its value and what would be
 * accepted. Valid until the thread's next such call; never NULL. */
const char *cutegemm_last_error(void);

/* Loads every kernel that the current device runs. CUTEGEMM_NO_KERNEL where there is none, else as the functions. */
int cutegemm_load(void);

@FUNCTIONS@

#ifdef __cplusplus
}
#endif

#endif
"""

PRELUDE = """\
#include "cutegemm.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

/* The CUDA runtime's, so that its headers are not needed here. */
int cudaGetDevice(int *);
int cudaDeviceGetAttribute(int *, int, int);
const char *cudaGetErrorString(int);
enum { MULTIPROCESSORS = 16, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 };

/* What a kernel's object brings along. */"""

CORE = """\
enum { DEVICES = 64 };

struct cutegemm_kernel {
    int capability; /* 10 * major + minor of the GPUs that run it */
    void (*init)(void **), (*load)(void **), (*launch)(void **, int32_t);
    void *library;
    unsigned char loaded[DEVICES];
};

static pthread_mutex_t cutegemm_loading = PTHREAD_MUTEX_INITIALIZER;
static __thread char cutegemm_message[256];

#define CUTEGEMM_CHECK(call)                          \\
    do {                                              \\
        int cutegemm_result = (call);                 \\
        if (cutegemm_result) return cutegemm_result;  \\
    } while (0)

const char *cutegemm_last_error(void) { return cutegemm_message; }

__attribute__((format(printf, 2, 3))) static int cutegemm_refuse(int code, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(cutegemm_message, sizeof cutegemm_message, format, values);
    va_end(values);
    return code;
}

static int cutegemm_cuda(int error) {
    return error ? cutegemm_refuse(error, "CUDA: %s", cudaGetErrorString(error)) : CUTEGEMM_OK;
}

static inline int cutegemm_size(const char *name, int64_t size, int64_t least, int64_t most) {
    if (size >= least && size <= most) return CUTEGEMM_OK;
    return cutegemm_refuse(CUTEGEMM_BAD_SIZE, "%s=%" PRId64 ": expected %" PRId64 " to %" PRId64, name, size, least,
                           most);
}

static inline int cutegemm_even(int64_t n) {
    if (n % 2 == 0) return CUTEGEMM_OK;
    return cutegemm_refuse(CUTEGEMM_BAD_SIZE, "n=%" PRId64 ": the epilogue pairs columns, so n must be even", n);
}

/* Blocks count their tiles and steps along k in 32 bits. */
static inline int cutegemm_steps(int64_t m, int64_t n, int64_t k, int64_t batch, int64_t outer, int rows, int columns,
                                 int depth) {
    double tiles = (double)((m + rows - 1) / rows) * (double)((n + columns - 1) / columns);
    double steps = (tiles * (double)batch * (double)outer + 2) * (double)(k > depth ? (k + depth - 1) / depth : 1);
    if (steps <= CUTEGEMM_SIZE_MAX) return CUTEGEMM_OK;
    return cutegemm_refuse(CUTEGEMM_BAD_SIZE, "%.4g steps of %dx%dx%d: at most %d in one call", steps, rows, columns,
                           depth, CUTEGEMM_SIZE_MAX);
}

static inline int cutegemm_pointer(const char *name, const void *address, unsigned align) {
    if (!address) return cutegemm_refuse(CUTEGEMM_NULL_POINTER, "%s is NULL", name);
    if ((uintptr_t)address % align == 0) return CUTEGEMM_OK;
    return cutegemm_refuse(CUTEGEMM_MISALIGNED, "%s=%p: expected a multiple of %u bytes", name, address, align);
}

static inline int cutegemm_stride(const char *name, int64_t stride, int64_t size, int64_t unit) {
    if (size <= 1 || (stride >= 0 && stride % unit == 0)) return CUTEGEMM_OK;
    return cutegemm_refuse(CUTEGEMM_BAD_STRIDE, "%s=%" PRId64 ": expected a multiple of %" PRId64 ", not negative",
                           name, stride, unit);
}

/* `size` lines of `line` elements, `stride` apart. */
static inline int cutegemm_lines(const char *name, int64_t stride, int64_t size, int64_t line, int64_t unit,
                                 int apart) {
    if (size <= 1 || stride >= line || (!apart && line % unit == 0)) return CUTEGEMM_OK;
    return cutegemm_refuse(CUTEGEMM_BAD_STRIDE, "%s=%" PRId64 ": lines of %" PRId64 " elements would overlap", name,
                           stride, line);
}

static int cutegemm_prepare(struct cutegemm_kernel *kernel, int device) {
    if (device < DEVICES && __atomic_load_n(&kernel->loaded[device], __ATOMIC_ACQUIRE)) return CUTEGEMM_OK;
    int error = 0;
    void **library = &kernel->library;
    void *init[] = {&library, &error}, *load[] = {&library, &device, &error};
    pthread_mutex_lock(&cutegemm_loading);
    if (!kernel->library) kernel->init(init);
    if (!error) kernel->load(load);
    if (!error && device < DEVICES) __atomic_store_n(&kernel->loaded[device], 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&cutegemm_loading);
    return cutegemm_cuda(error);
}

static int cutegemm_device(int *device, int *capability) {
    int major = 0, minor = 0;
    CUTEGEMM_CHECK(cutegemm_cuda(cudaGetDevice(device)));
    CUTEGEMM_CHECK(cutegemm_cuda(cudaDeviceGetAttribute(&major, CAPABILITY_MAJOR, *device)));
    CUTEGEMM_CHECK(cutegemm_cuda(cudaDeviceGetAttribute(&minor, CAPABILITY_MINOR, *device)));
    *capability = 10 * major + minor;
    return CUTEGEMM_OK;
}

static int cutegemm_no_kernel(const char *where, int device, int capability) {
    return cutegemm_refuse(CUTEGEMM_NO_KERNEL, "device %d is of compute capability %d.%d: this %s has no kernel for it",
                           device, capability / 10, capability % 10, where);
}

/* `values` ends in a place for the result's address. */
static int cutegemm_launch(const struct cutegemm_kernel *kernel, void **values, int32_t count) {
    int32_t result = 0;
    values[count - 1] = &result;
    kernel->launch(values, count);
    return cutegemm_cuda(result);
}"""

FIND = """\
/* The one of a function's kernels that the current device runs, loaded. */
static int cutegemm_find(const int *own, int count, struct cutegemm_kernel **found, int32_t *sm_count) {
    int device = 0, capability = 0;
    CUTEGEMM_CHECK(cutegemm_device(&device, &capability));
    for (int i = 0; i < count; i++)
        if (cutegemm_kernels[own[i]].capability == capability) {
            *found = cutegemm_kernels + own[i];
            CUTEGEMM_CHECK(cutegemm_cuda(cudaDeviceGetAttribute(sm_count, MULTIPROCESSORS, device)));
            return cutegemm_prepare(*found, device);
        }
    return cutegemm_no_kernel("function", device, capability);
}

int cutegemm_load(void) {
    int device = 0, capability = 0, served = 0;
    CUTEGEMM_CHECK(cutegemm_device(&device, &capability));
    for (unsigned i = 0; i < sizeof cutegemm_kernels / sizeof *cutegemm_kernels; i++)
        if (cutegemm_kernels[i].capability == capability) {
            CUTEGEMM_CHECK(cutegemm_prepare(cutegemm_kernels + i, device));
            served = 1;
        }
    if (served) return CUTEGEMM_OK;
    return cutegemm_no_kernel("library", device, capability);
}"""

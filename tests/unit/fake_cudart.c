/*
 * The CUDA runtime as a library of kernels sees it, without a GPU: memory is the host's, kernels load, and a launch is
 * written down instead of done. What no test reaches aborts.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNEXPECTED(...) (fprintf(stderr, "unexpected: " __VA_ARGS__), abort())

struct dim3 {
    unsigned x, y, z;
};
struct config {
    struct dim3 grid, block;
    size_t shared;
    void *stream;
};

/* What the test decides: the device's compute capability and SMs, what calls return, and the kernel's argument types
 * ('q': 64 bits, 'i': 32 bits, 'f': a float). */
int fake_capability = 80, fake_sm_count = 108, fake_device_result = 0, fake_load_result = 0, fake_launch_result = 0;
char fake_types[128];

/* What was done. */
int fake_libraries = 0, fake_loads = 0, fake_launches = 0;
unsigned fake_grid = 0, fake_block = 0;
size_t fake_shared = 0;
void *fake_stream = NULL;
int64_t fake_integers[128];
float fake_floats[128];

int cudaGetDevice(int *device) { return *device = 0, fake_device_result; }

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    switch (attribute) {
        case 16: return *value = fake_sm_count, 0;
        case 75: return *value = fake_capability / 10, 0;
        case 76: return *value = fake_capability % 10, 0;
        case 97: return *value = 227 * 1024, 0;
        default: UNEXPECTED("attribute %d", attribute);
    }
}

const char *cudaGetErrorString(int error) { return error == 35 ? "no driver" : "another error"; }

int cudaLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
    (void)code, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    *library = fake_types;
    return fake_libraries++, 0;
}

int cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
    if (library != fake_types || !strstr(name, "kernel")) UNEXPECTED("kernel %s", name);
    *kernel = fake_types;
    return fake_loads++, fake_load_result;
}

static int kernel_attribute(int *value, int attribute, void *kernel, int device) {
    (void)attribute, (void)kernel, (void)device;
    return *value = 0, 0;
}

static int device_get(int *device, int ordinal) { return *device = ordinal, 0; }

int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, uint64_t flags, int *status) {
    (void)version, (void)flags;
    if (!strcmp(name, "cuKernelGetAttribute")) {
        *(int (**)(int *, int, void *, int))function = kernel_attribute;
    } else if (!strcmp(name, "cuDeviceGet")) {
        *(int (**)(int *, int))function = device_get;
    } else {
        UNEXPECTED("entry point %s", name);
    }
    if (status) *status = 0;
    return 0;
}

int cudaDriverGetVersion(int *version) { return *version = 13000, 0; }
int cudaKernelSetAttributeForDevice(void *kernel, int a, int b, int c) { return (void)kernel, (void)a, (void)b, (void)c, 0; }
int cudaFuncSetAttribute(void *kernel, int a, int b) { return (void)kernel, (void)a, (void)b, 0; }

int cudaLaunchKernelExC(const struct config *config, const void *kernel, void **values) {
    if (kernel != fake_types) UNEXPECTED("kernel %p", kernel);
    fake_launches++;
    fake_grid = config->grid.x, fake_block = config->block.x, fake_shared = config->shared, fake_stream = config->stream;
    for (int i = 0; fake_types[i]; i++)
        switch (fake_types[i]) {
            case 'q': fake_integers[i] = *(int64_t *)values[i]; break;
            case 'i': fake_integers[i] = *(int32_t *)values[i]; break;
            case 'f': fake_floats[i] = *(float *)values[i]; break;
        }
    return fake_launch_result;
}

int cudaMalloc(void **address, size_t bytes) { return !(*address = aligned_alloc(256, (bytes + 255) / 256 * 256)); }
int cudaFree(void *address) { return free(address), 0; }
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) { return (void)kind, memcpy(to, from, bytes), 0; }
int cudaMemset(void *to, int value, size_t bytes) { return memset(to, value, bytes), 0; }
int cudaStreamCreate(void **stream) { return *stream = fake_types, 0; }
int cudaStreamDestroy(void *stream) { return (void)stream, 0; }
int cudaStreamSynchronize(void *stream) { return (void)stream, 0; }

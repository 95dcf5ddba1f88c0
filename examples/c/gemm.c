/*
 * out = gelu(x @ weight^T + bias) in bf16 from C: x is (m, k), weight (n, k) as torch.nn.Linear keeps it, bias (n).
 * Compares the result with one computed here in double, and exits with 1 where it differs.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cutegemm.h"

/* As cuda_runtime_api.h declares them; included, it would ask for a CUDA toolkit to compile this. */
int cudaMalloc(void **address, size_t bytes);
int cudaFree(void *address);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
int cudaStreamCreate(void **stream);
int cudaStreamDestroy(void *stream);
int cudaStreamSynchronize(void *stream);
const char *cudaGetErrorString(int error);
enum { TO_DEVICE = 1, TO_HOST = 2 };

enum { M = 300, N = 512, K = 264 };

static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); /* to nearest, ties to even */
}

static float from_bf16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void cuda(int error) {
    if (error) {
        fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
        exit(2);
    }
}

/* A matrix of `count` values between -1 and 1 on the host, and its copy on the GPU. */
static uint16_t *filled(size_t count, void **device) {
    static uint32_t state = 1;
    uint16_t *host = malloc(count * sizeof *host);
    if (!host) exit(2);
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525 + 1013904223;
        host[i] = to_bf16((float)(state >> 8) / (1 << 23) - 1);
    }
    cuda(cudaMalloc(device, count * sizeof *host));
    cuda(cudaMemcpy(*device, host, count * sizeof *host, TO_DEVICE));
    return host;
}

int main(void) {
    void *x_gpu, *weight_gpu, *bias_gpu, *out_gpu, *stream;
    uint16_t *x = filled(M * K, &x_gpu), *weight = filled(N * K, &weight_gpu), *bias = filled(N, &bias_gpu);
    uint16_t *out = filled(M * N, &out_gpu);
    cuda(cudaStreamCreate(&stream));

    int error = cutegemm_gemm_linear_gelu(
        x_gpu, weight_gpu, out_gpu, bias_gpu, M, N, K, 1, 1, /* batch, outer: one product */
        K, 0, 0,                                             /* x: a row is K elements after the one before */
        K, 0, 0,                                             /* weight */
        N, 0, 0,                                             /* out */
        0, 0,                                                /* bias: no rows */
        1.0f, stream);
    if (error) {
        fprintf(stderr, "cutegemm_gemm_linear_gelu: %d: %s\n", error, cutegemm_last_error());
        return 2;
    }
    cuda(cudaStreamSynchronize(stream));
    cuda(cudaMemcpy(out, out_gpu, M * N * sizeof *out, TO_HOST));

    double worst = 0;
    int wrong = 0;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = from_bf16(bias[j]);
            for (int l = 0; l < K; l++) sum += (double)from_bf16(x[i * K + l]) * from_bf16(weight[j * K + l]);
            double expected = 0.5 * sum * (1 + erf(sum / sqrt(2.0)));
            /* Half a unit in bf16's last place, and what summing in fp32 may lose. */
            double share = fabs(from_bf16(out[i * N + j]) - expected) / (fabs(expected) / 256 + 1e-3);
            wrong += !(share <= 1); /* NaN is wrong too */
            if (share > worst) worst = share;
        }
    printf("%dx%dx%d: %d of %d wrong, the largest error %.3g of what is allowed\n", M, N, K, wrong, M * N, worst);

    cuda(cudaStreamDestroy(stream));
    cuda(cudaFree(x_gpu)), cuda(cudaFree(weight_gpu)), cuda(cudaFree(bias_gpu)), cuda(cudaFree(out_gpu));
    free(x), free(weight), free(bias), free(out);
    return wrong ? 1 : 0;
}

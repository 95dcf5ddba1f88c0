// nvcuda::wmma on the host: each lane holds the whole of A's and B's fragments, and computes and stores a 32nd of the
// sums. That lanes need each other's part of what is stored stays as it is on a GPU.
#pragma once
#include "cuda.hpp"

struct __half {
    _Float16 x;
    operator float() const { return static_cast<float>(x); }
};
struct __nv_bfloat16 {
    unsigned short bits;
    operator float() const { return __uint_as_float(unsigned(bits) << 16); }
};

namespace nvcuda::wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
enum layout_t { mem_row_major };

template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
    static_assert(M == 16 && N == 16 && K == 16);
    float values[16][16];
};
template <typename F>
void fill_fragment(F& f, float value) {
    for (auto& row : f.values)
        for (float& x : row) x = value;
}
template <typename F, typename T>
void load_matrix_sync(F& f, const T* source, unsigned pitch) {
    if (reinterpret_cast<uintptr_t>(source) % 32 != 0 || pitch * sizeof(T) % 16 != 0) __builtin_trap();
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) f.values[i][j] = source[i * pitch + j];
}
// Calls `f` with row and column of each sum that is this lane's.
template <typename F>
void for_own(F f) {
    for (int i = lane_of_thread(); i < 256; i += 32) f(i / 16, i % 16);
}
template <typename D, typename A, typename B>
void mma_sync(D& d, const A& a, const B& b, const D& c) {
    for_own([&](int i, int j) {
        float sum = c.values[i][j];
        for (int k = 0; k < 16; ++k) sum += a.values[i][k] * b.values[k][j];
        d.values[i][j] = sum;
    });
}
template <typename F>
void store_matrix_sync(float* target, const F& f, unsigned pitch, layout_t) {
    for_own([&](int i, int j) { target[i * pitch + j] = f.values[i][j]; });
}
}  // namespace nvcuda::wmma

// What stands in for the ladder's PTX on the host. Copies by cp.async are made as late as the program allows: when
// their group is waited for. A kernel that reads too early reads what was there before.
#pragma once
#include "cuda.hpp"

inline float fp16_to_fp32(unsigned short bits) {
    _Float16 x;
    memcpy(&x, &bits, sizeof x);
    return static_cast<float>(x);
}
inline unsigned short fp32_to_fp16(float x) {
    const _Float16 y = static_cast<_Float16>(x);
    unsigned short bits;
    memcpy(&bits, &y, sizeof bits);
    return bits;
}
inline float bf16_to_fp32(unsigned short bits) { return __uint_as_float(unsigned(bits) << 16); }
inline unsigned short fp32_to_bf16(float x) {
    const unsigned bits = __float_as_uint(x);
    if (x != x) return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <int BYTES>
inline void cp_async(void* target, const void* source, int valid) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async moves 4, 8 or 16 bytes");
    const bool aligned = (reinterpret_cast<uintptr_t>(target) | reinterpret_cast<uintptr_t>(source)) % BYTES == 0;
    if (!aligned || valid < 0 || valid > BYTES) __builtin_trap();
    copy_later({target, source, BYTES, valid});
}
inline void cp_async_commit() { commit_copies(); }
template <int PENDING>
inline void cp_async_wait() {
    wait_for_copies(PENDING);
}

inline unsigned block_index() { return blockIdx.x; }
inline unsigned take_ticket(unsigned* counter) { return __atomic_fetch_add(counter, 1, __ATOMIC_ACQ_REL); }

inline char* dynamic_shared_memory() { return dynamic_shared(); }

// A matrix's row r, columns 2 c and 2 c + 1, are lane 4 r + c's.
template <bool TRANSPOSED>
inline void ldmatrix(unsigned (&matrices)[4], const void* row) {
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) __builtin_trap();
    const auto rows = static_cast<const unsigned short* const*>(of_the_warp(&row, sizeof row));
    const unsigned r = lane_of_thread() / 4, c = 2 * (lane_of_thread() % 4);
    for (int i = 0; i < 4; ++i) {
        const unsigned low = TRANSPOSED ? rows[8 * i + c][r] : rows[8 * i + r][c];
        const unsigned high = TRANSPOSED ? rows[8 * i + c + 1][r] : rows[8 * i + r][c + 1];
        matrices[i] = low | high << 16;
    }
}
inline void ldmatrix_x4(unsigned (&matrices)[4], const void* row) { ldmatrix<false>(matrices, row); }
inline void ldmatrix_x4_transposed(unsigned (&matrices)[4], const void* row) { ldmatrix<true>(matrices, row); }

template <float (*TO_FP32)(unsigned short)>
inline void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const auto half = [](unsigned word, int i) { return TO_FP32(static_cast<unsigned short>(word >> 16 * i)); };
    Factors own;
    for (int i = 0; i < 8; ++i) own.a[i / 2][i % 2] = half(a[i / 2], i % 2);
    for (int i = 0; i < 4; ++i) own.b[i / 2][i % 2] = half(i < 2 ? b0 : b1, i % 2);
    multiply_in_the_warp(d, own);
}
inline void mma_fp16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma<fp16_to_fp32>(d, a, b0, b1);
}
inline void mma_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma<bf16_to_fp32>(d, a, b0, b1);
}

inline float shuffle_xor(float x, int mask) {
    return static_cast<const float*>(of_the_warp(&x, sizeof x))[lane_of_thread() ^ mask];
}

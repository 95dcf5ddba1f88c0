// What stands in for the ladder's PTX on the host. Copies by cp.async are made as late as the program allows: when their
// group is waited for. A kernel that reads too early reads what was there before.
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

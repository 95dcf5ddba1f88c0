// Numbers as they lie in memory: the element types, rows of them as 16-byte chunks, and runs of them as fp32.
#pragma once
#include "ptx.cuh"

#define INLINE __device__ __forceinline__

struct fp16 {
    unsigned short bits;
};
struct bf16 {
    unsigned short bits;
};
using fp32 = float;

INLINE float to_fp32(fp32 x) { return x; }
INLINE float to_fp32(fp16 x) { return fp16_to_fp32(x.bits); }
INLINE float to_fp32(bf16 x) { return bf16_to_fp32(x.bits); }
INLINE void from_fp32(fp32& target, float x) { target = x; }
INLINE void from_fp32(fp16& target, float x) { target.bits = fp32_to_fp16(x); }
INLINE void from_fp32(bf16& target, float x) { target.bits = fp32_to_bf16(x); }

// What one instruction moves at most: 16 bytes, 4 or 8 elements. Kept as the four registers that hold it.
struct alignas(16) Chunk {
    unsigned words[4];
};
template <typename T>
constexpr int PER_CHUNK = 16 / int(sizeof(T));

// Element `i` of a chunk. Call it with an `i` that unrolling makes a constant: registers have no addresses.
template <typename T>
INLINE float element(const Chunk& chunk, int i) {
    if constexpr (sizeof(T) == 4) {
        return __uint_as_float(chunk.words[i]);
    } else {
        return to_fp32(T{static_cast<unsigned short>(chunk.words[i / 2] >> 16 * (i % 2))});
    }
}

template <typename T>
INLINE void set_element(Chunk& chunk, int i, T value) {
    if constexpr (sizeof(T) == 4) {
        chunk.words[i] = __float_as_uint(value);
    } else {
        chunk.words[i / 2] |= unsigned(value.bits) << 16 * (i % 2);  // of a chunk that was zero
    }
}

// BYTES (4, 8 or 16) from an address that is aligned to as many, in one access; the rest of the chunk is 0.
template <int BYTES = 16>
INLINE Chunk chunk_at(const void* address) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "one access moves 4, 8 or 16 bytes");
    if constexpr (BYTES == 16) {
        const uint4 words = *static_cast<const uint4*>(address);
        return Chunk{{words.x, words.y, words.z, words.w}};
    } else if constexpr (BYTES == 8) {
        const uint2 words = *static_cast<const uint2*>(address);
        return Chunk{{words.x, words.y}};
    } else {
        return Chunk{{*static_cast<const unsigned*>(address)}};
    }
}

template <int BYTES>
INLINE void put_chunk(void* address, const Chunk& chunk) {
    const unsigned* words = chunk.words;
    if constexpr (BYTES == 16) *static_cast<uint4*>(address) = make_uint4(words[0], words[1], words[2], words[3]);
    if constexpr (BYTES == 8) *static_cast<uint2*>(address) = make_uint2(words[0], words[1]);
    if constexpr (BYTES == 4) *static_cast<unsigned*>(address) = words[0];
}

// The chunk at `source`, of whose elements the first `valid` (any number, even below 0) exist; the others are zero.
// ALIGN is what the addresses of chunks are aligned to, in bytes: a chunk that isn't aligned is read by elements.
template <int ALIGN, typename T>
INLINE Chunk load_chunk(const T* source, int valid) {
    if (ALIGN >= 16 && valid >= PER_CHUNK<T>) return chunk_at(source);
    Chunk chunk = {};
#pragma unroll
    for (int i = 0; i < PER_CHUNK<T>; ++i)
        if (i < valid) set_element(chunk, i, source[i]);
    return chunk;
}

// The same, straight into shared memory: by cp.async where its 4 bytes are aligned, else by elements. Either way the
// data is there after cp_async_wait and a barrier.
template <int ALIGN, typename T>
INLINE void copy_chunk(void* target, const T* source, int valid) {
    constexpr int BYTES = ALIGN < 16 ? ALIGN : 16;
    if constexpr (BYTES >= 4) {
        constexpr int PER_COPY = BYTES / int(sizeof(T));
#pragma unroll
        for (int i = 0; i < PER_CHUNK<T>; i += PER_COPY) {
            const int left = valid - i;
            const int bytes = left >= PER_COPY ? BYTES : left > 0 ? left * int(sizeof(T)) : 0;
            cp_async<BYTES>(static_cast<char*>(target) + i * sizeof(T), source + i, bytes);
        }
    } else {
        *static_cast<Chunk*>(target) = load_chunk<ALIGN>(source, valid);
    }
}

// Bytes of one access to N elements whose addresses are aligned to `align`: as wide as it goes, or 0 for single
// elements.
template <typename T>
INLINE constexpr int access_bytes(int n, int align) {
    const int bytes = n * int(sizeof(T)) < 16 ? n * int(sizeof(T)) : 16;
    return bytes >= 4 && align >= bytes ? bytes : 0;
}

// N neighbours as fp32, the first `valid` of which exist. ALIGN as above; `values` beyond `valid` are left alone.
template <int ALIGN, int N, typename T>
INLINE void load_run(const T* source, int valid, float (&values)[N]) {
    constexpr int BYTES = access_bytes<T>(N, ALIGN);
    if constexpr (BYTES > 0) {
        if (valid >= N) {
            constexpr int PER_LOAD = BYTES / int(sizeof(T));
#pragma unroll
            for (int i = 0; i < N; i += PER_LOAD) {
                const Chunk chunk = chunk_at<BYTES>(source + i);
#pragma unroll
                for (int j = 0; j < PER_LOAD; ++j) values[i + j] = element<T>(chunk, j);
            }
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (i < valid) values[i] = to_fp32(source[i]);
}

// The reverse: N fp32 numbers, rounded to T, to neighbouring places of which the first `valid` exist.
template <int ALIGN, int N, typename T>
INLINE void store_run(T* target, int valid, const float (&values)[N]) {
    constexpr int BYTES = access_bytes<T>(N, ALIGN);
    if constexpr (BYTES > 0) {
        if (valid >= N) {
            constexpr int PER_STORE = BYTES / int(sizeof(T));
#pragma unroll
            for (int i = 0; i < N; i += PER_STORE) {
                Chunk chunk = {};
#pragma unroll
                for (int j = 0; j < PER_STORE; ++j) {
                    T rounded;
                    from_fp32(rounded, values[i + j]);
                    set_element(chunk, j, rounded);
                }
                put_chunk<BYTES>(target + i, chunk);
            }
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (i < valid) from_fp32(target[i], values[i]);
}

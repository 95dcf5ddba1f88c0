// Where elements lie in shared memory, as arithmetic and nothing else: a host compiler takes this file too, and the
// tests count bank conflicts with these very formulas.
//
// Shared memory has 32 banks of 4 bytes; a word's bank is its index modulo 32. A warp's access takes as many passes as
// the busiest bank has different words. Lanes that read one word share a pass: a broadcast is not a conflict. Of
// 16-byte accesses a pass serves 8 lanes, which are free of conflicts if their chunks differ modulo 8.
#pragma once

#ifdef __CUDACC__
#define LAYOUT __host__ __device__ constexpr
#else
#define LAYOUT constexpr
#endif

// Level 4's tile of A: ROWS x DEPTH of fp32, transposed, so that a thread finds 4 rows of one k in 16 bytes.
//
// It is filled by pieces of 4 elements along k, written to 4 places a pitch apart. Eight neighbouring lanes hold one
// row's pieces, 4 k apart: with a pitch of 64 words these are 4 * 64 words apart, all in one bank, an 8-way conflict.
//   swizzled  row ^ 4 * (k / 4 % 8) moves the 8 pieces to 8 groups of 4 banks; 16-byte groups stay whole.
//   padded    4 words more a row move pieces by 16 banks, which parts two of them, not eight: lanes have to be dealt
//             out two pieces to a row instead. (A pitch of 65 would part all, and end 16-byte reads, which are
//             aligned.)
template <int ROWS, int DEPTH, int PAD, bool SWIZZLE>
struct TransposedTile {
    static constexpr int PITCH = ROWS + PAD, WORDS = DEPTH * PITCH;
    static constexpr int PIECES = ROWS * DEPTH / 4;
    static constexpr int PER_ROW = PAD != 0 ? 2 : DEPTH / 4;  // pieces of one row that neighbouring lanes hold

    static LAYOUT int place(int row, int k) { return k * PITCH + (SWIZZLE ? row ^ 4 * (k / 4 % 8) : row); }
    static LAYOUT int row_of(int piece) { return piece / PER_ROW % ROWS; }
    static LAYOUT int k_of(int piece) { return 4 * (piece % PER_ROW + PER_ROW * (piece / (PER_ROW * ROWS))); }
};

// Tiles of 16-byte chunks, rows of CHUNKS of them as in global memory: level 5's of A, and those of levels 7 to 9.
//
// Eight rows' chunk c is what a pass of ldmatrix reads, and rows that fill the 32 banks have it in the same four of
// them: an 8-way conflict. The order of a row's chunks is permuted, by the row: in rows of 8 or more chunks chunk c
// lies where c ^ row % 8 would; rows of 4 fill the banks in twos, and each pair of them gets an order of its own; of
// rows of 2, each four.
template <int CHUNKS>
struct SwizzledRows {
    static constexpr int PERIOD = CHUNKS < 8 ? CHUNKS : 8, ROWS_PER_ORDER = 8 / PERIOD;
    static_assert(CHUNKS % PERIOD == 0 && 8 % PERIOD == 0, "rows of 1, 2, 4 or a multiple of 8 chunks");

    static LAYOUT int place(int row, int chunk) { return row * CHUNKS + (chunk ^ row / ROWS_PER_ORDER % PERIOD); }
};

// Level 10: how wgmma is told where an operand lies. Its rows are 128 bytes, 64 elements, in the order of
// `SwizzledRows<8>`, which TMA writes by itself and calls the 128-byte swizzle. Eight rows, 1024 bytes and aligned to
// them, are an atom of it.
constexpr int WGMMA_ROW = 128, WGMMA_ATOM = 1024;

// A descriptor: the address of the first element, and two distances, all in units of 16 bytes. `stride` leads from an
// atom to the next along the rows, `leading` from an atom to that of the next 64 elements of the same rows. Bits 62-63
// say 128-byte swizzle. The swizzle is of addresses (bits 4-6 are permuted by bits 7-9): an operand may begin inside of
// an atom.
LAYOUT unsigned long long wgmma_descriptor(unsigned address, unsigned leading, unsigned stride) {
    return static_cast<unsigned long long>(address & 0x3ffff) >> 4 |
           static_cast<unsigned long long>(leading >> 4) << 16 | static_cast<unsigned long long>(stride >> 4) << 32 |
           1ULL << 62;
}

// 16 of K from `k` on, of a tile of A at `tile`: rows of A along K. All 64 of a step's k lie in one row, so there is no
// next atom to lead to, and the 16 is not looked at.
LAYOUT unsigned long long wgmma_a(unsigned tile, int k) { return wgmma_descriptor(tile + 2 * k, 16, WGMMA_ATOM); }

// The same of a tile of B of DEPTH k: rows of B along N, in boxes of 64 columns, one after the other.
template <int DEPTH>
LAYOUT unsigned long long wgmma_b(unsigned tile, int k) {
    return wgmma_descriptor(tile + k * WGMMA_ROW, DEPTH * WGMMA_ROW, WGMMA_ATOM);
}

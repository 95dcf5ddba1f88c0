// What every level shares: its arguments, which tile is a block's, and how sums become D.
//
// A level is one kernel, `extern "C" __global__ void KERNEL(const Arguments args)`, for D = epilogue(alpha A B + beta
// C): A (m, k), B (k, n), C and D (m, n), all row-major, rows `ld…` elements apart, any size. Level 10 takes the tensor
// maps of A and B besides. `build.py` writes these in front of it, for the call that it is compiled for:
//   KERNEL            the kernel's name
//   Element           the type of A and B: fp32, fp16 or bf16
//   A_ALIGN, B_ALIGN  what A's and B's addresses and rows are aligned to, in bytes: 16, 8, 4 or 2
//   TILE_M, TILE_N    the part of D that a block computes; TILE_K, the elements of one step along K
//   THREADS, STAGES … what else `levels.py` says about the level
//   EpilogueArguments C, D, alpha, beta and the epilogue's operands
//   Epilogue          finishes and stores sums; `write` below calls it
#pragma once
#include "elements.cuh"

struct Arguments {
    const Element* a;
    const Element* b;
    long long lda, ldb;  // 64 bits: a matrix may hold more than 2^31 elements
    int m, n, k;
    int splits;         // blocks for each tile, 1 but on level 9, which has for more than one:
    float* parts;       // splits x TILE_M x TILE_N sums of each tile
    unsigned* tickets;  // 0 for each tile
    EpilogueArguments epilogue;
};

struct Tile {
    int row, column;  // D's first element in it
};

// Tile `number`. Tiles are numbered along grid x alone, which goes to 2^31 - 1 where y and z end at 65,535. They go
// down GROUP rows of tiles before the next column: blocks that run at the same time then share rows of A and columns of
// B in L2. ROWS: how tall they are, where blocks take several together.
template <int GROUP = 8, int ROWS = TILE_M>
INLINE Tile tile_of(const Arguments& args, unsigned number) {
    const int tiles_m = (args.m - 1) / ROWS + 1, tiles_n = (args.n - 1) / TILE_N + 1;
    const long long per_group = static_cast<long long>(GROUP) * tiles_n;
    const int first = static_cast<int>(number / per_group) * GROUP;
    const int rows = min(GROUP, tiles_m - first), within = static_cast<int>(number % per_group);
    return {(first + within % rows) * ROWS, within / rows * TILE_N};
}

INLINE Tile tile_of_block(const Arguments& args) { return tile_of(args, blockIdx.x); }

// N neighbouring sums of one row into D, as far as D goes. Nothing may wait for a thread that left here.
template <int N>
INLINE void write(const Arguments& args, const Epilogue& epilogue, int row, int column, const float (&sums)[N]) {
    if (row < args.m && column < args.n) epilogue.write(row, column, args.n - column, sums);
}

// The sums of the parts of K, added up in the order of K and finished: a kernel of its own behind the product's.
#pragma once

struct Parts {
    const float* sums;  // parts x rows x columns, these a multiple of 4
    int m, n, parts;
    int padding;
    EpilogueArguments epilogue;
};

extern "C" __global__ void __launch_bounds__(256) CUTEGEMM_NAME(_sum)(const Parts given) {
    const long long pitch = (given.n + 3LL) / 4 * 4, groups = pitch / 4, all = groups * given.m;
    const Epilogue epilogue(given.epilogue);
    for (long long i = blockIdx.x * 256LL + threadIdx.x; i < all; i += gridDim.x * 256LL) {
        const int row = int(i / groups), column = int(i % groups) * 4;
        const float* at = given.sums + row * pitch + column;
        float sums[4] = {};
        for (int part = 0; part < given.parts; ++part, at += pitch * given.m) {
            const float4 more = *reinterpret_cast<const float4*>(at);
            sums[0] += more.x, sums[1] += more.y, sums[2] += more.z, sums[3] += more.w;
        }
        epilogue.write(row, column, given.n - column, sums);
    }
}

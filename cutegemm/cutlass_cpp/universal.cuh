// A kernel of CUTLASS 2: two-stage or multistage, tiles in order, by stream-K, or K split.
#pragma once
#include "call.cuh"

#if VISITED
#include "cutlass/epilogue/threadblock/epilogue_with_visitor_callbacks.h"
#include "cutlass/gemm/kernel/gemm_universal_with_visitor.h"
#include "cutlass/gemm/kernel/gemm_universal_with_visitor_streamk.h"
#include "visitor.cuh"

using Swizzle = typename Emitted::ThreadblockSwizzle;
using Threads = cutlass::epilogue::threadblock::OutputTileThreadLayout<
    typename Emitted::Mma::Shape, typename Emitted::Mma::Operator::Shape, typename Emitted::ElementC,
    Emitted::Epilogue::OutputTileIterator::kElementsPerAccess>;
using Visited =
    cutlass::epilogue::threadblock::EpilogueWithVisitorCallbacks<typename Emitted::Epilogue, GraphVisitor<Threads>, 1>;
#if SHARED_TILES
using Gemm = cutlass::gemm::kernel::GemmWithEpilogueVisitorStreamk<typename Emitted::Mma, Visited, Swizzle>;
#else
using Gemm = cutlass::gemm::kernel::GemmWithEpilogueVisitor<typename Emitted::Mma, Visited, Swizzle>;
#endif
#else
using Gemm = Emitted;
#endif

constexpr int THREADS = 32 * Emitted::Mma::WarpCount::kCount;

#ifndef HOST_PART
extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(const __grid_constant__ typename Gemm::Params params) {
    extern __shared__ __align__(16) char shared[];
    Gemm::invoke(params, *reinterpret_cast<typename Gemm::SharedStorage*>(shared));
}
#if PARALLEL_PARTS
#include "parts.cuh"
#endif
#else
static typename Gemm::Params parameters(const Call& call) {
    using cutlass::gemm::GemmUniversalMode;
    const EpilogueArguments& epilogue = call.epilogue;
#if PARALLEL_PARTS
    const GemmUniversalMode mode = GemmUniversalMode::kGemmSplitKParallel;
    const typename Gemm::EpilogueOutputOp::Params finish(1.0f, 0.0f);
    const void* c = nullptr;
    void* d = call.workspace;
    const long long ldc = 0, ldd = (call.n + 3LL) / 4 * 4, part = ldd * call.m;
#elif VISITED
    const GemmUniversalMode mode = GemmUniversalMode::kGemm;
    const EpilogueArguments& finish = epilogue;
    const void* c = nullptr;
    void* d = nullptr;
    const long long ldc = call.n, ldd = call.n, part = 0;
#else
    const GemmUniversalMode mode = GemmUniversalMode::kGemm;
    const typename Gemm::EpilogueOutputOp::Params finish(epilogue.alpha, BETA);
    const void* c = SOURCE;
    void* d = epilogue.out0;
    const long long ldc = SOURCE_STRIDE, ldd = epilogue.out0_stride, part = 0;
#endif
    const typename Gemm::Arguments arguments(mode, {call.m, call.n, call.k}, call.parts, finish, call.a, call.b, c, d, 0,
                                             0, 0, part, call.lda, call.ldb, ldc, ldd);
    return typename Gemm::Params(arguments, call.sm_count, call.blocks_per_sm);
}

extern "C" const Facts CUTEGEMM_NAME(_facts) = {sizeof(typename Gemm::Params), alignof(typename Gemm::Params), THREADS,
                                                sizeof(typename Gemm::SharedStorage)};

extern "C" long long CUTEGEMM_NAME(_workspace)(const Call* call) { return parameters(*call).get_workspace_size(); }

extern "C" int CUTEGEMM_NAME(_prepare)(const Call* call, void* memory, unsigned* grid) {
    auto* params = new (memory) typename Gemm::Params(parameters(*call));
#if !PARALLEL_PARTS
    const auto status = params->init_workspace(call->workspace, static_cast<cudaStream_t>(call->stream));
    if (status != cutlass::Status::kSuccess) return int(status);
#endif
    const dim3 blocks = params->get_grid_dims();
    grid[0] = blocks.x, grid[1] = blocks.y, grid[2] = blocks.z;
    return 0;
}
#endif

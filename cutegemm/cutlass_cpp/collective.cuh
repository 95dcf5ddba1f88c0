// A kernel of CUTLASS 3: Hopper's TMA and wgmma, its warps specialised.
#pragma once
#include "call.cuh"

using Gemm = Emitted;
using Cluster = typename Gemm::ClusterShape;

#ifndef HOST_PART
extern "C" __global__ void __launch_bounds__(Gemm::MaxThreadsPerBlock, Gemm::MinBlocksPerMultiprocessor)
    __cluster_dims__(cute::size<0>(Cluster{}), cute::size<1>(Cluster{}), 1)
        KERNEL(const __grid_constant__ typename Gemm::Params params) {
    extern __shared__ __align__(128) char shared[];
    Gemm()(params, shared);
}
#if PACKED
#include "pack.cuh"
#endif
#else
// The stride of a matrix one of whose dimensions is contiguous, the other `pitch` elements apart.
template <class Stride>
static Stride stride_of(long long pitch) {
    Stride stride{};
    if constexpr (cute::is_static<cute::tuple_element_t<0, Stride>>::value) {
        cute::get<1>(stride) = pitch;
    } else {
        cute::get<0>(stride) = pitch;
    }
    return stride;
}

static typename Gemm::Arguments arguments(const Call& call) {
    const EpilogueArguments& epilogue = call.epilogue;
    typename Gemm::Arguments given{};
    given.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    given.problem_shape = {call.m, call.n, call.k, 1};
    given.mainloop.ptr_A = static_cast<decltype(given.mainloop.ptr_A)>(call.a);
    given.mainloop.dA = stride_of<typename Gemm::StrideA>(call.lda);
    given.mainloop.ptr_B = static_cast<decltype(given.mainloop.ptr_B)>(call.b);
    given.mainloop.dB = stride_of<typename Gemm::StrideB>(call.ldb);
#if VISITED
    given.epilogue.thread = {epilogue};
#else
    given.epilogue.thread.alpha = epilogue.alpha;
    given.epilogue.thread.beta = BETA;
    given.epilogue.ptr_C = static_cast<decltype(given.epilogue.ptr_C)>(static_cast<const void*>(SOURCE));
    given.epilogue.dC = stride_of<typename Gemm::StrideC>(call.m > 1 ? SOURCE_STRIDE : 0);
#endif
#if KEEP_FIRST
    given.epilogue.ptr_D = reinterpret_cast<decltype(given.epilogue.ptr_D)>(epilogue.out0);
    given.epilogue.dD = stride_of<typename Gemm::StrideD>(call.m > 1 ? epilogue.out0_stride : 0);
#endif
    given.hw_info = {0, call.sm_count};
    using Order = decltype(given.scheduler.raster_order);
    const Order orders[] = {Order::Heuristic, Order::AlongM, Order::AlongN};
    given.scheduler.max_swizzle_size = call.swizzle;
    given.scheduler.raster_order = orders[call.raster];
#if SHARED_TILES
    using Mode = decltype(given.scheduler.decomposition_mode);
    given.scheduler.splits = call.parts;
    given.scheduler.decomposition_mode = call.parts > 1 ? Mode::SplitK : Mode::StreamK;
#endif
    return given;
}

extern "C" const Facts CUTEGEMM_NAME(_facts) = {sizeof(typename Gemm::Params), alignof(typename Gemm::Params),
                                                Gemm::MaxThreadsPerBlock, Gemm::SharedStorageSize};

extern "C" long long CUTEGEMM_NAME(_workspace)(const Call* call) {
    return Gemm::get_workspace_size(arguments(*call));
}

extern "C" int CUTEGEMM_NAME(_prepare)(const Call* call, void* memory, unsigned* grid) {
    // TMA clips what lies beyond an edge: sizes are free, addresses and pitches are not.
    const auto given = arguments(*call);
    const auto address = reinterpret_cast<unsigned long long>(call->a) | reinterpret_cast<unsigned long long>(call->b);
    const long long pitches = (call->lda | call->ldb) * static_cast<long long>(sizeof(Element));
    if (((address | pitches) & 15) != 0) return int(cutlass::Status::kErrorMisalignedOperand);
    const auto status = Gemm::initialize_workspace(given, call->workspace, static_cast<cudaStream_t>(call->stream));
    if (status != cutlass::Status::kSuccess) return int(status);
    auto* params = new (memory) typename Gemm::Params(Gemm::to_underlying_arguments(given, call->workspace));
    const dim3 blocks = Gemm::get_grid_shape(*params);
    grid[0] = blocks.x, grid[1] = blocks.y, grid[2] = blocks.z;
    return 0;
}
#endif

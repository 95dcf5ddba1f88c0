// The epilogue as a node of CUTLASS 2's visitor trees: a leaf that takes the accumulators, reads the operands and stores
// the outputs itself.
#pragma once
#include "cutlass/epilogue/threadblock/fusion/visitors.hpp"

template <typename ThreadMap>
struct GraphVisitor {
    using Arguments = EpilogueArguments;
    using Params = EpilogueArguments;
    struct SharedStorage {};

    template <class ProblemShape>
    static constexpr Params to_underlying_arguments(const ProblemShape&, const Arguments& arguments, void*) {
        return arguments;
    }

    const Params* params;

    CUTLASS_HOST_DEVICE GraphVisitor() {}
    CUTLASS_HOST_DEVICE GraphVisitor(const Params& params, const SharedStorage&) : params(&params) {}

    template <class Coordinates, class ProblemShape>
    struct Callbacks : cutlass::epilogue::threadblock::EmptyCallbacks {
        Coordinates places;  // of the first of the columns that a thread has at a time: (column step, row step, step)
        ProblemShape shape;
        Epilogue epilogue;

        CUTLASS_DEVICE Callbacks(const Coordinates& places, const ProblemShape& shape, const Params& params)
            : places(places), shape(shape), epilogue(params) {}

        template <class Sum, int N>
        CUTLASS_DEVICE auto visit(int step, int row_step, int column_step, int, const cutlass::Array<Sum, N>& sums) {
            const auto place = places(column_step, row_step, step);
            const int row = cute::get<0>(place), column = cute::get<1>(place);
            if (row < cute::get<0>(shape) && column < cute::get<1>(shape)) {
                float values[N];
                CUTLASS_PRAGMA_UNROLL
                for (int i = 0; i < N; ++i) values[i] = sums[i];
                epilogue.write(row, column, cute::get<1>(shape) - column, values);
            }
            return sums;
        }
    };

    template <class ProblemShape>
    CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread, ProblemShape shape) {
        using namespace cute;
        const auto matrix = make_identity_tensor(shape);
        // (vector, column step, row step, steps…) of this thread, of which the vector's first element will do.
        const auto all = group_modes<3, 6>(ThreadMap::partition(matrix, thread, tile));
        const auto places = all(_0{}, _, _, _);
        return Callbacks<decltype(places), ProblemShape>(places, shape, *params);
    }
};

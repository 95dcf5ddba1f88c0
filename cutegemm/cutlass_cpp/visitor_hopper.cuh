// The epilogue as a node of CUTLASS 3's visitor trees for Hopper: a leaf that takes the accumulators, reads the operands
// and stores the outputs itself. With KEEP_FIRST the collective stores the first output, by TMA.
#pragma once
#include "cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp"

struct GraphVisitor : cutlass::epilogue::fusion::Sm90VisitorImpl<> {
    // Not the epilogue's own struct: CUTLASS takes a member called beta for a factor of its own source.
    struct Arguments {
        EpilogueArguments given;
    };
    using Params = EpilogueArguments;
    using ElementAux = float;  // what shared memory would hold of D, if D had no type
    struct SharedStorage {};

    template <class ProblemShape>
    static constexpr Params to_underlying_arguments(const ProblemShape&, const Arguments& arguments, void*) {
        return arguments.given;
    }

    template <class ProblemShape>
    static bool can_implement(const ProblemShape&, const Arguments&) {
        return true;
    }

    template <class ProblemShape>
    static size_t get_workspace_size(const ProblemShape&, const Arguments&) {
        return 0;
    }

    template <class ProblemShape>
    static cutlass::Status initialize_workspace(const ProblemShape&, const Arguments&, void*, cudaStream_t,
                                                cutlass::CudaHostAdapter* = nullptr) {
        return cutlass::Status::kSuccess;
    }

    const Params* params;

    CUTLASS_HOST_DEVICE GraphVisitor() {}
    CUTLASS_HOST_DEVICE GraphVisitor(const Params& params, const SharedStorage&) : params(&params) {}

    template <class Coordinates, class Corner>
    struct Callbacks : cutlass::epilogue::fusion::EmptyConsumerStoreCallbacks {
        Coordinates places;  // of a thread's elements in its own tile: (element, rows, columns, tile row, tile column)
        Corner left;         // rows and columns of D from the tile's first element on
        int first_row, first_column;
        Epilogue epilogue;

        CUTLASS_DEVICE Callbacks(const Coordinates& places, const Corner& left, int m, int n, const Params& params)
            : places(places),
              left(left),
              first_row(m - cute::get<0>(left)),
              first_column(n - cute::get<1>(left)),
              epilogue(params) {}

        // Neighbours in a fragment are neighbours in a row of D, two by two: so wgmma leaves them.
        template <class Sum, int N>
        CUTLASS_DEVICE auto visit(const cutlass::Array<Sum, N>& sums, int vector, int tile_row, int tile_column) {
            static_assert(N % 2 == 0, "a thread has pairs of neighbours");
            cutlass::Array<float, N> kept;
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < N; i += 2) {
                const auto place = places(cute::_, cute::_, cute::_, tile_row, tile_column)(vector * N + i);
                const int row = cute::get<0>(place), column = cute::get<1>(place);
                const float values[2] = {sums[i], sums[i + 1]};
                const bool inside = row < cute::get<0>(left) && column < cute::get<1>(left);
#if KEEP_FIRST
                float results[2] = {};
                if (inside) epilogue.write(first_row + row, first_column + column, cute::get<1>(left) - column, values, results);
                kept[i] = results[0];
                kept[i + 1] = results[1];
#else
                if (inside) epilogue.write(first_row + row, first_column + column, cute::get<1>(left) - column, values);
                kept[i] = values[0];
                kept[i + 1] = values[1];
#endif
            }
            return kept;
        }
    };

    template <bool ReferenceSrc, class... Args>
    CUTLASS_DEVICE auto get_consumer_store_callbacks(
        const cutlass::epilogue::fusion::ConsumerStoreArgs<Args...>& args) {
        const int m = cute::get<0>(args.problem_shape_mnkl), n = cute::get<1>(args.problem_shape_mnkl);
        using Places = cute::remove_cvref_t<decltype(args.tCcD)>;
        using Corner = cute::remove_cvref_t<decltype(args.residue_tCcD)>;
        return Callbacks<Places, Corner>(args.tCcD, args.residue_tCcD, m, n, *params);
    }
};

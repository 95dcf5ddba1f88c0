"""The transposed form of a call: D^T = epilogue^T(alpha * B^T A^T + beta * C^T), on the same memory."""

from __future__ import annotations

from cutegemm.problem import Problem
from cutegemm.request import Layout, Recipe


def better_transposed(problem: Problem) -> bool:
    """Whether every output is contiguous along M: then D^T = B^T A^T stores whole vectors where D can't.

    A paired epilogue needs its columns to stay columns.
    """
    signature = problem.signature
    return not signature.epilogue.has_pair and all(out.major == "m" for out in signature.outputs)


def transposed(recipe: Recipe) -> Recipe:
    """The same computation with M and N exchanged (see `Problem.transposed`). The epilogue must not pair columns."""
    rank = len(recipe.modes)

    def turn(layout: Layout) -> Layout:
        shape, strides = layout
        return Layout((*shape[:rank], *shape[rank:][::-1]), (*strides[:rank], *strides[rank:][::-1]))

    return Recipe(
        problem=recipe.problem.transposed(),
        modes=recipe.modes,
        a=turn(recipe.b),
        b=turn(recipe.a),
        c=None if recipe.c is None else turn(recipe.c),
        outs=tuple(turn(out) for out in recipe.outs),
        operands=tuple(None if layout is None else turn(layout) for layout in recipe.operands),
    )

"""The transposed form of a call: D^T = epilogue^T(alpha * B^T A^T + beta * C^T), on the same memory."""

from __future__ import annotations

from cutegemm.request import Layout, Recipe


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

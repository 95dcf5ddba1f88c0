"""The transposed form of a problem: D^T = epilogue^T(alpha * B^T A^T + beta * C^T), on the same memory."""

from __future__ import annotations

from dataclasses import replace

from cutegemm.problem import Access, Problem, Signature
from cutegemm.request import Layout, Recipe

_SWAPPED = {"m": "n", "n": "m"}


def transposed(recipe: Recipe) -> Recipe:
    """The same computation with M and N exchanged: A and B trade places, Rows become Cols.

    The epilogue must not pair columns.
    """
    problem, rank = recipe.problem, len(recipe.modes)
    old = problem.signature
    signature = Signature(
        a=_turn(old.b),
        b=_turn(old.a),
        c=None if old.c is None else _turn(old.c),
        outputs=tuple(_turn(out) for out in old.outputs),
        epilogue=old.epilogue.transposed(),
        operands=tuple(_turn(operand) for operand in old.operands),
        alpha=old.alpha,
        beta=old.beta,
    )

    def turn(layout: Layout) -> Layout:
        shape, strides = layout
        return Layout((*shape[:rank], *shape[rank:][::-1]), (*strides[:rank], *strides[rank:][::-1]))

    return Recipe(
        problem=Problem(problem.n, problem.m, problem.k, problem.batch, signature),
        modes=recipe.modes,
        a=turn(recipe.b),
        b=turn(recipe.a),
        c=None if recipe.c is None else turn(recipe.c),
        outs=tuple(turn(out) for out in recipe.outs),
        operands=tuple(None if layout is None else turn(layout) for layout in recipe.operands),
    )


def _turn(access: Access) -> Access:
    return replace(access, major=_SWAPPED.get(access.major, access.major))

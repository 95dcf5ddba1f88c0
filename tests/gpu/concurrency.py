"""Calls side by side and in a graph: none may meet another's workspace, whichever kernel it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def agree_on_streams(calls: Sequence[Callable[..., Tensor]], wanted: Sequence[Tensor], turns: int) -> None:
    """Each of `calls` on a stream of its own, `turns` times: all give what is `wanted`, bit for bit."""
    torch.cuda.synchronize()
    streams: list[torch.cuda.Stream] = [torch.cuda.Stream() for _ in calls]
    made: list[list[Tensor]] = [[] for _ in calls]
    for _ in range(turns):
        for call, stream, results in zip(calls, streams, made, strict=True):
            with torch.cuda.stream(stream):
                results.append(call())
    torch.cuda.synchronize()
    for results, right in zip(made, wanted, strict=True):
        assert all(torch.equal(one, right) for one in results)


def agree_in_a_graph(
    calls: Sequence[Callable[..., Tensor]], wanted: Sequence[Tensor], replays: int, times: int = 1
) -> None:
    """All of `calls`, `times` over, in one graph: each replay gives what is `wanted`, bit for bit."""
    outs = [torch.empty_like(one) for one in wanted]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            for call, out in zip(calls, outs, strict=True):
                call(out=out)
    for _ in range(replays):
        for out in outs:
            out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, right) for out, right in zip(outs, wanted, strict=True))

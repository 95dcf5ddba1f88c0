"""How long a call takes on the GPU: cold L2, CUDA graphs, events, contenders in turn.

Each contender is captured in a graph that calls it once per input set; the sets together exceed three times
the L2, so every call reads operands that have left the cache. Replays are timed with events for a minimum
time, and a figure is a median of rounds.

Contenders take turns within every round so that the room's and the board's temperature are shared, but not
each other's heat: a GPU at its power limit lowers its clock for what comes after a hungry contender (on an
H200 a position in the round was worth 15%). So each runs untimed before it is timed, which makes a figure its
own sustained state, and every second round goes through them backwards.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Replay = Callable[[], None]
Name = TypeVar("Name")
#: Runs a replay `repeats` times and returns the milliseconds it took on the device.
Clock = Callable[[Replay, int], float]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a contender is timed in each round, how long it runs untimed before, and how many rounds there are:
    fewer, at least one, where those of the slowest contender would take more than `budget_ms`."""

    min_ms: float = 30.0
    lead_ms: float = 40.0
    rounds: int = 7
    budget_ms: float = math.inf


FULL = Effort()
SWEEP = Effort(min_ms=5.0, lead_ms=5.0, rounds=3)


def input_sets(bytes_per_set: int, l2_bytes: int, *, most: int = 4096) -> int:
    """How many input sets exceed three times the L2; at least one, at most `most` (tiny problems)."""
    return max(1, min(most, 3 * l2_bytes // max(bytes_per_set, 1) + 1))


def contest(replays: Mapping[Name, Replay], calls: int, clock: Clock, effort: Effort = FULL) -> dict[Name, float]:
    """Microseconds per call of every contender; a replay makes `calls` calls."""
    found = {name: _repeats(replay, clock, effort.min_ms) for name, replay in replays.items()}
    repeats = {name: count for name, (count, _) in found.items()}
    ahead = {name: max(1, round(count * effort.lead_ms / effort.min_ms)) for name, count in repeats.items()}
    longest = max(((repeats[name] + ahead[name]) * ms for name, (_, ms) in found.items()), default=0.0)
    rounds = effort.rounds if effort.rounds * longest <= effort.budget_ms else max(1, int(effort.budget_ms / longest))
    samples: dict[Name, list[float]] = {name: [] for name in replays}
    for turn in range(rounds):
        for name in list(replays)[:: -1 if turn % 2 else 1]:
            clock(replays[name], ahead[name])  # clocks settle at what this contender draws
            samples[name].append(clock(replays[name], repeats[name]) * 1e3 / (repeats[name] * calls))
    return {name: statistics.median(times) for name, times in samples.items()}


def _repeats(replay: Replay, clock: Clock, min_ms: float) -> tuple[int, float]:
    """How many replays last `min_ms`, found by doubling: a single one is too short to extrapolate from; and the
    milliseconds of one."""
    repeats = 1
    while (ms := clock(replay, repeats)) < min_ms / 2:
        repeats *= 2
    return max(repeats, math.ceil(repeats * min_ms / ms)), ms / repeats


def event_clock(replay: Replay, repeats: int) -> float:
    """The `Clock` of the current CUDA device."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def capture(calls: Sequence[Callable[[], object]]) -> Replay:
    """A replay of one CUDA graph that makes `calls` in order. Each is made once before, to compile."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # capture forbids what a first call may do: compile, allocate a workspace
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    replay: Replay = graph.replay
    return replay


def host_us(call: Callable[[], object], synchronize: Callable[[], None], *, calls: int = 2000) -> float:
    """Host microseconds per warm call: `calls` of them without synchronising, after as many to warm up."""
    import time

    for _ in range(calls):
        call()
    synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    elapsed = time.perf_counter() - start
    synchronize()
    return elapsed * 1e6 / calls

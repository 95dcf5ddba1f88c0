"""The profiler's side of the ladder: ncu's CSV, what is asked of it, and the decision from counters to a level."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import Any

import pytest

from cutegemm.device import lookup
from cutegemm.errors import CuteGemmError, NotAvailableError
from cutegemm.hand_kernels import find
from cutegemm.ladder import profile
from cutegemm.ladder.diagnose import Diagnosis, Expected, Metrics, diagnose, expected
from cutegemm.ladder.profile import COUNTERS, choose, known, metrics, parse
from cutegemm.ladder.rungs import Rung, rungs
from cutegemm.roofline import occupancy

H200 = lookup("H200")
HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)


def line(number: int, kernel: str, metric: str, unit: str, value: str) -> str:
    head = f'"{number}","4711","python3","127.0.0.1","{kernel}","1","7","(32, 8, 1)","(1024, 1, 1)","0","9.0"'
    return f'{head},"Command line profiler metrics","{metric}","{unit}","{value}"'


PRINTED = "\n".join(
    [
        "==PROF== Connected to process 4711 (/usr/bin/python3)",
        '==PROF== Profiling "cutegemm_0a": 0%....50%....100% - 9 passes',
        '"a line of the program, in quotes"',
        "==PROF== Disconnected from process 4711",
        HEADER,
        line(0, "cutegemm_0a", "gpu__time_duration.sum", "nsecond", "1,234,500"),
        line(0, "cutegemm_0a", "l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum", "byte", "268,435,456"),
        line(0, "cutegemm_0a", "dram__bytes_read.sum", "Mbyte", "8.5"),
        line(0, "cutegemm_0a", "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio", "", "4"),
        line(0, "cutegemm_0a", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", "%", "n/a"),
        line(0, "cutegemm_0a", "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active", "%", "41.5"),
        line(1, "cutegemm_0b", "gpu__time_duration.sum", "usecond", "20.25"),
        line(1, "cutegemm_0b", "l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum", "byte", "0"),
        line(1, "cutegemm_0b", "sm__sass_data_bytes_mem_global_op_ldgsts.sum", "Kbyte", "1,000"),
        line(1, "cutegemm_0b", "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio", "", "nan"),
        line(1, "cutegemm_0b", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "", "25"),
        line(1, "cutegemm_0b", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", "", "100"),
    ]
)


def test_ncus_csv_is_read_among_what_else_is_printed() -> None:
    first, second = parse(PRINTED)
    assert (first.kernel, second.kernel) == ("cutegemm_0a", "cutegemm_0b")
    read = metrics(first)
    assert read.time_us == 1234.5 and read.ld_bytes == read.loaded_bytes == 2**28 and read.dram_bytes == 8.5e6
    assert read.fma_share == pytest.approx(0.415) and read.sectors_per_request == 4
    assert read.tensor_share is None and read.cp_async_bytes is None and read.conflict_share is None
    read = metrics(second)
    assert read.time_us == 20.25 and read.loaded_bytes == 1e6 and read.conflict_share == 0.25
    assert read.sectors_per_request is None
    assert parse("==ERROR== ERR_NVGPUCTRPERM - no permission") == [] == parse("")
    with pytest.raises(CuteGemmError, match="no time for k"):
        metrics(profile.Launch("k", {}))


def test_only_counters_that_this_ncu_has_are_asked_for() -> None:
    every = {name.split(".")[0] for field in COUNTERS.values() for names in field for name in names}
    names, missing = choose(frozenset(every))
    assert missing == [] and "sm__sass_data_bytes_mem_global_op_ldgsts.sum" in names
    assert len(names) == len(set(names)) == len(COUNTERS)
    assert choose(frozenset()) == (names, [])  # it didn't say what it has
    names, missing = choose(frozenset(every - {"sm__sass_data_bytes_mem_global_op_ldgsts", "dram__bytes_read"}))
    assert "l1tex__t_bytes_pipe_lsu_mem_global_op_ldgsts_cache_access.sum" in names
    assert len(missing) == 1 and missing[0] == "dram_bytes (dram__bytes_read.sum)"
    listing = ["Device NVIDIA H200 (GH100)", "-----", "dram__bytes_read    Counter  byte   # of bytes read", ""]
    assert known(listing) == {"dram__bytes_read"}


class Ncu:
    """A `subprocess.run` that plays ncu and the program that it runs."""

    def __init__(self, printed: str, code: int = 0, program: int = 0) -> None:
        self.printed, self.code, self.program, self.calls = printed, code, program, []  # type: ignore[var-annotated]

    def __call__(self, argv: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.calls.append(argv)
        if "--query-metrics" in argv:
            return subprocess.CompletedProcess(argv, 0, "", "")
        if argv[0] != "ncu":
            return subprocess.CompletedProcess(argv, self.program, "", "RuntimeError: no kernel image")
        return subprocess.CompletedProcess(argv, self.code, self.printed, "")


def test_the_levels_run_once_without_ncu_and_once_under_it(monkeypatch) -> None:
    ncu = Ncu(PRINTED)
    monkeypatch.setattr(profile.subprocess, "run", ncu)
    monkeypatch.setattr(profile, "tool", lambda: "ncu")
    found, missing = profile.profile(rungs("level3,level7", None, 1024))
    assert [m.time_us for m in found] == [1234.5, 20.25] and missing == []
    _, plain, counted = ncu.calls
    assert plain[1:] == ["-m", "cutegemm.ladder.profiled", "1024", "level3:fp32", "level7:bf16"]
    assert counted[-len(plain) :] == plain
    assert counted[1:4] == ["--csv", "--clock-control", "none"] and "regex:^cutegemm_" in counted


def test_what_goes_wrong_under_ncu_is_said_in_its_words(monkeypatch) -> None:
    monkeypatch.setattr(profile, "tool", lambda: "ncu")
    ladder = rungs("level3", None, 1024)
    monkeypatch.setattr(profile.subprocess, "run", Ncu("==ERROR== ERR_NVGPUCTRPERM - no permission", code=1))
    with pytest.raises(CuteGemmError, match="0 of 1 kernels: ==ERROR== ERR_NVGPUCTRPERM"):
        profile.profile(ladder)
    monkeypatch.setattr(profile.subprocess, "run", Ncu(PRINTED, program=1))
    with pytest.raises(CuteGemmError, match="no kernel image"):
        profile.profile(ladder)
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NotAvailableError, match="needs ncu"):
        profile.tool()


# ---------------------------------------------------------------- what a level should cause


def rung(name: str, n: int = 1024) -> Rung:
    return Rung(find(name), "fp32" if find(name).unit == "fp32" else "bf16", n)


@pytest.mark.parametrize(
    ("name", "sectors", "ideal", "at_l1"),
    [
        ("level1", 2.5, 2.5, 160 / 256),  # a sector for A's broadcast and four for B, of 2 x 128 bytes asked for
        ("level1-uncoalesced", 16.5, 2.5, 33 * 32 / 256),
        ("level2", (1 + 4 * 16) / 5, (1 + 4 * 16) / 5, (32 + 4 * 512) / (32 * 80)),
        ("level3", 4, 4, 1),
        ("level4", 16, 16, 1),
        ("level5", None, None, 1),
        ("level7", None, None, 1),
        ("level10", None, None, None),  # TMA's
    ],
)
def test_sectors_follow_from_where_lanes_read(
    name: str, sectors: float | None, ideal: float | None, at_l1: float | None
) -> None:
    wanted = expected(rung(name))
    assert (wanted.sectors_per_request, wanted.ideal_sectors) == (sectors, ideal)
    assert wanted.l1_bytes == (None if at_l1 is None else pytest.approx(at_l1 * wanted.formula_bytes))
    assert wanted.formula_bytes == rung(name).loaded_bytes


# ---------------------------------------------------------------- the decision


def decide(name: str, registers: int = 64, **counted: Any) -> Diagnosis:
    """With a time at which arithmetic and memory idle, unless `counted` says otherwise."""
    one = rung(name, 4096)
    idle = Metrics(
        time_us=2 * 4096**3 / (0.1 * (H200.fp32_flops if one.level.unit == "fp32" else H200.mma_flops)) * 1e6,
        ld_bytes=0,
        cp_async_bytes=0,
        sectors_per_request=4,
        bank_conflicts=0,
        shared_wavefronts=100,
        l1_share=0.2,
        fma_share=0.1,
        tensor_share=0.1,
        dram_bytes=1e8,
    )
    held = occupancy(H200, threads=one.level.threads, registers=registers, smem=one.level.smem_bytes)
    ideal = None if one.level.stages > 1 else 4.0
    wanted = Expected(one.loaded_bytes, one.loaded_bytes, ideal, ideal)
    return diagnose(one, replace(idle, **counted), wanted, H200, held)


def busy_dram(name: str) -> float:
    """Bytes that fill 70% of the memory's time at `decide`'s."""
    top = H200.fp32_flops if find(name).unit == "fp32" else H200.mma_flops
    return 0.7 * H200.hbm_bytes_per_s * 2 * 4096**3 / (0.1 * top)


@pytest.mark.parametrize(
    ("name", "counted", "bottleneck", "next"),
    [
        ("level1-uncoalesced", {"sectors_per_request": 16.5}, "scattered", "level1"),
        ("level1", {"dram_bytes": busy_dram("level1")}, "device memory", "level3"),
        ("level1", {"l1_share": 0.9}, "L1 and shared memory", "level3"),
        ("level2", {}, "latency of loads", "level3"),
        ("level3", {"l1_share": 0.8}, "L1 and shared memory", "level4"),
        ("level4-conflicting", {"bank_conflicts": 40, "l1_share": 0.9}, "bank conflicts", "level4"),
        ("level4", {"l1_share": 0.8}, "L1 and shared memory", "level5"),
        ("level5", {"fma_share": 0.7}, "the FMA pipe", "level6"),
        ("level6", {"l1_share": 0.8}, "L1 and shared memory", "level7"),
        ("level6", {"bank_conflicts": 40}, "bank conflicts", "level7"),
        ("level7", {}, "tensor cores that wait", "level8"),
        ("level7", {"dram_bytes": busy_dram("level7")}, "device memory", "level8"),
        ("level8", {"tensor_share": 0.8}, "a few points short", "level9"),
        ("level9", {"tensor_share": 0.95}, "the tensor cores", "level10"),
        ("level9", {"tensor_share": 0.8}, "a few points short", "level10"),
        ("level10", {"tensor_share": 0.95}, "the tensor cores", None),
        ("level10", {"tensor_share": 0.8}, "a few points short", None),
        ("level10", {"dram_bytes": busy_dram("level10")}, "device memory", None),
    ],
)
def test_each_finding_leads_to_the_level_that_answers_it(name, counted, bottleneck, next) -> None:
    found = decide(name, **counted)
    assert bottleneck in found.bottleneck and found.next == next, found


def test_what_is_first_wins() -> None:
    """A memory or L1 that is busy with scattered or conflicting accesses is a symptom of these."""
    found = decide("level1-uncoalesced", sectors_per_request=16.5, l1_share=0.9, dram_bytes=busy_dram("level1"))
    assert "scattered" in found.bottleneck
    assert "FMA" in decide("level5", fma_share=0.8, l1_share=0.9).bottleneck


def test_an_idle_pipe_with_few_bytes_points_at_occupancy() -> None:
    loaded = rung("level5", 4096).loaded_bytes
    found = decide("level5", registers=240, cp_async_bytes=loaded)
    assert found.bottleneck == "occupancy: too few warps to hide latency, limited by registers"
    assert any("GB, what its lanes ask for; the formula has 4.29" in text for text in found.evidence)
    assert any("limited by registers, not shared memory" in text for text in found.evidence)
    assert "though bytes are down" in decide("level3").bottleneck
    assert any("0.5 times" in text for text in decide("level5", cp_async_bytes=loaded / 2).evidence)


def test_no_level_that_the_gpu_cannot_run_is_named() -> None:
    one = rung("level9", 4096)
    found = diagnose(one, Metrics(time_us=1e3, tensor_share=0.95), expected(one), lookup("A100"), None)
    assert found.bottleneck == "the tensor cores" and found.next is None


@pytest.mark.parametrize(
    ("ld", "cp_async", "loaded"),
    [
        (8.0, None, 8.0),
        (8.0, 0.0, 8.0),
        (8.0, 8.0, 8.0),  # the count of loads has cp.async's
        (0.0, 8.0, 8.0),  # it doesn't
        (None, 8.0, 8.0),
        (None, None, None),
    ],
)
def test_bytes_of_cp_async_are_counted_once(ld: float | None, cp_async: float | None, loaded: float | None) -> None:
    assert Metrics(1.0, ld_bytes=ld, cp_async_bytes=cp_async).loaded_bytes == loaded


def test_counters_that_are_missing_decide_nothing() -> None:
    one = rung("level3", 1024)
    found = diagnose(one, Metrics(time_us=1e6), expected(one), H200, None)
    assert "latency" in found.bottleneck and len(found.evidence) == 1

"""Exports of Nsight Compute: NVTX ranges name operators and modules, else kernels say what they are."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ncu_exports import Launch, nvtx_cell, nvtx_export

from frx_graph.analyzers.observations.ncu_observations import NcuObserver
from frx_graph.analyzers.observations.observation import ElementCount, ObservedCall, RunFile, RunSetting, Work
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.ncu.csv_file import read_ncu_csv
from frx_graph.evidence.ncu.launch import KernelLaunch
from frx_graph.evidence.trace.events import Operand
from frx_graph.records import CopyKind, OperandRole

TO_LAST = "void nchwToNhwcKernel<float, float, float, 1, 0, 2>(int)"
GEMM = "ampere_sgemm_64x64_nn"
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(int)::lambda>(int, T2)"
CONV = "aten::convolution, seq = 3, op_id = 9, sizes = [[8, 64, 32, 32], [64, 64, 3, 3], [], [], []]"
CONVOLUTION = ObservedCall("aten::convolution", (Operand((8, 64, 32, 32), None), Operand((64, 64, 3, 3), None)))
TIME = ("gpu__time_duration.sum", "us", "6.75")
STRIDED = ("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio", "", "20.5")


def read(path: Path, *launches: tuple[Launch, str], metrics: tuple[tuple[str, str, str], ...] = (TIME,)) -> RunFile:
    path.write_text(nvtx_export(launches, metrics))
    gathered = NcuObserver()
    read_ncu_csv(path, gathered.add)
    return gathered.build_run_file(str(path))


def test_torchs_ranges_name_operators_with_shapes(tmp_path: Path) -> None:
    ranges = nvtx_cell("step", "aten::conv2d, seq = 3", CONV)
    file = read(
        tmp_path / "a.csv", (Launch(0, TO_LAST), ranges), (Launch(1, GEMM), ranges), (Launch(2, TO_LAST), ranges)
    )
    assert file.setting == RunSetting("cuda", None)
    (seen,) = file.observations
    assert (seen.work, seen.count, seen.steps) == (Work.CONVERSION, 2, None)
    assert seen.calls == (CONVOLUTION, ObservedCall("aten::conv2d"))
    assert (seen.ranges, seen.phase) == (("step",), Phase.FORWARD)
    assert seen.roles == frozenset({OperandRole.INPUT, OperandRole.WEIGHT})
    assert seen.seconds == pytest.approx(13.5e-6)
    assert seen.where == "line 3"
    (fact,) = seen.measurements
    assert (fact.metric, fact.value, fact.unit) == ("duration", pytest.approx(6.75e-6), "s")
    assert (fact.provenance.line, fact.provenance.name) == (3, "gpu__time_duration.sum")


def test_sequence_numbers_do_not_distinguish_calls(tmp_path: Path) -> None:
    cells = [nvtx_cell(CONV.replace("seq = 3, op_id = 9", f"seq = {n}, op_id = {n + 50}")) for n in range(30)]
    launches = [(Launch(n, TO_LAST), cell) for n, cell in enumerate(cells)]
    (seen,) = read(tmp_path / "a.csv", *launches).observations
    assert seen.count == 30


def test_backward_is_recognized_by_its_node(tmp_path: Path) -> None:
    cell = nvtx_cell("autograd::engine::evaluate_function: ConvolutionBackward0", CONV)
    (seen,) = read(tmp_path / "a.csv", (Launch(0, TO_LAST), cell)).observations
    assert (seen.phase, seen.roles) == (Phase.BACKWARD, frozenset(OperandRole))


def test_ranges_of_the_programs_own_are_kept(tmp_path: Path) -> None:
    (seen,) = read(tmp_path / "a.csv", (Launch(0, TO_LAST), nvtx_cell("forward", "layer1.conv2"))).observations
    assert (seen.calls, seen.ranges, seen.phase) == ((), ("forward", "layer1.conv2"), None)


def test_copy_is_reported_with_the_operator_that_requested_it(tmp_path: Path) -> None:
    chain = ("aten::reshape, seq = 1, sizes = [[4, 8], []]", "aten::clone, sizes = [[4, 8], []]")
    copied = (*chain, "aten::copy_, sizes = [[4, 8], [8, 4], []]")
    matmul = ("aten::matmul, sizes = [[4, 8], [8, 2]]", *chain)
    file = read(
        tmp_path / "a.csv",
        (Launch(0, COPY), nvtx_cell(*chain)),
        (Launch(1, COPY), nvtx_cell(*copied)),
        (Launch(2, COPY), nvtx_cell(*matmul)),
    )
    asked, written, inside = file.observations
    assert (asked.kinds, asked.copied) == (frozenset({CopyKind.RESHAPE}), Operand((4, 8), None))
    # `copy_` has the target first.
    assert written.copied == Operand((8, 4), None)
    assert inside.kinds == frozenset({CopyKind.OPERATOR})


def test_elementwise_copy_size_is_estimated_from_the_grid(tmp_path: Path) -> None:
    (seen,) = read(tmp_path / "a.csv", (Launch(0, COPY, grid="(10, 1, 1)"), "")).observations
    assert seen.elements == ElementCount(9 * 512 + 1, 10 * 512)
    assert (seen.work, seen.calls) == (Work.COPY, ())


def test_uncoalesced_kernels_are_reported_with_their_sectors(tmp_path: Path) -> None:
    file = read(tmp_path / "a.csv", (Launch(0, "softmax_warp"), nvtx_cell(CONV)), metrics=(TIME, STRIDED))
    (seen,) = file.observations
    assert (seen.work, seen.detail) == (Work.UNCOALESCED, "20.5 sectors for each global load of a warp")
    assert seen.calls == (CONVOLUTION,)
    assert {fact.metric for fact in seen.measurements} == {"duration", "sectors_per_load"}
    coalesced = (STRIDED[0], "", "4.0")
    assert read(tmp_path / "b.csv", (Launch(0, "softmax_warp"), ""), metrics=(TIME, coalesced)).observations == ()


def test_without_times_of_all_the_time_is_not_known(tmp_path: Path) -> None:
    (seen,) = read(
        tmp_path / "a.csv", (Launch(0, TO_LAST), ""), metrics=(("launch__waves_per_multiprocessor", "", "1"),)
    ).observations
    assert seen.seconds is None


@pytest.mark.parametrize(
    "sizes",
    [
        "[[8, 64], [[1], [2]]]",
        "[[8, 64]",
        "[8, 64]",
        "[[-1, 2]]",
        "[[8, 64], [x]]",
        "[]",
        "[[], []]",
        f"[[{'9' * 5000}]]",
        "[[8,, 64]]",
    ],
)
def test_sizes_that_are_none_of_tensors_are_not_known(tmp_path: Path, sizes: str) -> None:
    cell = nvtx_cell(f"aten::cat, seq = 1, sizes = {sizes}")
    (seen,) = read(tmp_path / "a.csv", (Launch(0, TO_LAST), cell)).observations
    assert [call.operands for call in seen.calls] in ([None], [])


def test_a_name_without_end_is_not_looked_into() -> None:
    """It would take hours: the square of its length."""
    gathered = NcuObserver()
    names = ("aten::x, sizes = [" + "], input_op_ids = [" * 50_000,)
    gathered.add(KernelLaunch("0", "1", TO_LAST, "0", "9.0", None, None, "a", 1, {}, ranges=names))
    (seen,) = gathered.build_run_file("a").observations
    assert (seen.calls, seen.ranges) == ((), names)


@given(st.lists(st.text(max_size=60), max_size=4), st.text(max_size=60), st.integers())
def test_no_range_is_too_hostile(ranges: list[str], kernel: str, seed: int) -> None:
    gathered = NcuObserver()
    made = random.Random(seed)
    names = tuple(made.choice((text, f"aten::x, sizes = {text}", f"aten::{text}, seq = 1")) for text in ranges)
    gathered.add(KernelLaunch("0", "1", f"nchwToNhwc{kernel}", "0", "9.0", None, None, "a", 1, {}, ranges=names))
    assert len(gathered.build_run_file("a").observations) <= 1

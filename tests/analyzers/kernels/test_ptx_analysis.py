"""Which GPU PTX is assembled for, and what can run it at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from frx_graph.analyzers.kernels.ptx_analysis import analyze_ptx_module, label_ptx_kernel, resolve_target_gpu
from frx_graph.evidence.ptx.parsing import read_ptx
from frx_graph.evidence.ptx.ptxas import Assembled
from frx_graph.rules.gpu_profile import require_gpu

MODULE = read_ptx(Path(__file__).parents[2] / "data" / "ptx" / "kernels_sm80.ptx")


@pytest.mark.parametrize(
    ("target", "features", "missing"),
    [
        ("sm_75", (), ()),
        ("sm_80", ("cp_async", "mbarrier"), ()),
        ("sm_90", ("cp_async", "mbarrier", "tma"), ("wgmma",)),
        ("sm_90a", ("cp_async", "mbarrier", "tma", "wgmma"), ()),
        ("sm_100f, debug", ("cp_async", "mbarrier", "tma", "tcgen05"), ()),
        ("sm_120a", ("cp_async", "mbarrier", "tma"), ()),
    ],
)
def test_target_features_are_resolved(target: str, features: tuple[str, ...], missing: tuple[str, ...]) -> None:
    gpu = resolve_target_gpu(target, None)
    assert gpu is not None
    assert (gpu.target, gpu.features, gpu.missing) == (target.split(",")[0], features, missing)


def test_a_target_that_is_not_listed_has_no_limits() -> None:
    assert resolve_target_gpu("sm_20", None) is None
    assert resolve_target_gpu("nonsense", None) is None
    assert resolve_target_gpu("nonsense", require_gpu("H100")) is None


@pytest.mark.parametrize(
    ("target", "gpu", "assembled_for"),
    [
        ("sm_80", "H100", "sm_90"),
        ("sm_80", "A100", "sm_80"),
        ("sm_90", "A100", None),
        ("sm_90a", "H200", "sm_90a"),
        ("sm_90a", "B200", None),
        ("sm_100f", "B300", "sm_103f"),
        ("sm_103f", "B200", None),
        ("sm_100f", "RTX5090", None),
        ("sm_80", "MI300X", None),
    ],
)
def test_named_gpu_resolves_to_a_target(target: str, gpu: str, assembled_for: str | None) -> None:
    found = resolve_target_gpu(target, require_gpu(gpu))
    assert (None if found is None else found.target) == assembled_for


@pytest.mark.parametrize(("registers", "pct"), [(32, 100.0), (33, 75.0), (64, 50.0), (255, 12.5)])
def test_occupancy_that_registers_allow(registers: int, pct: float) -> None:
    assembled = {kernel.name: Assembled(registers, 0, 0, 0, 0) for kernel in MODULE.kernels}
    analysis = analyze_ptx_module(MODULE, assembled, resolve_target_gpu(MODULE.target, None))
    assert analysis.full_occupancy_registers == 32
    assert {kernel.register_occupancy_pct for kernel in analysis.kernels} == {pct}


def test_without_the_assembler_or_limits_there_is_none() -> None:
    unassembled = analyze_ptx_module(MODULE, {}, resolve_target_gpu(MODULE.target, None))
    assert {kernel.register_occupancy_pct for kernel in unassembled.kernels} == {None}
    assembled = {kernel.name: Assembled(32, 0, 0, 0, 0) for kernel in MODULE.kernels}
    unlisted = analyze_ptx_module(MODULE, assembled, None)
    assert unlisted.full_occupancy_registers is None
    assert {kernel.register_occupancy_pct for kernel in unlisted.kernels} == {None}


MODULE = read_ptx(Path(__file__).parents[2] / "data" / "ptx" / "kernels_sm80.ptx")
KERNELS = {kernel.name: kernel for kernel in MODULE.kernels}
SPILLED = Assembled(32, 1144, 1396, 2244, 0)
CLEAN = Assembled(22, 0, 0, 0, 0)
LOCAL_ARRAY = KERNELS["_Z11local_arrayPKfPf"]


def labels(name: str, assembled: Assembled | None) -> list[str]:
    return [found.label for found in label_ptx_kernel(KERNELS[name], assembled)]


def test_a_spill_is_what_the_assembler_calls_one() -> None:
    assert labels("spills", SPILLED)[0] == "ptx_register_spills"
    assert "ptx_register_spills" not in labels("spills", CLEAN)
    assert "ptx_register_spills" not in labels("spills", None)


def test_array_in_local_memory_is_not_a_spill() -> None:
    assert LOCAL_ARRAY.local_bytes > 0
    for assembled in (CLEAN, None):
        assert "ptx_register_spills" not in [found.label for found in label_ptx_kernel(LOCAL_ARRAY, assembled)]


@pytest.mark.parametrize(("registers", "fires"), [(63, False), (64, True)])
def test_registers_flip_at_their_line(registers: int, fires: bool) -> None:
    assert ("ptx_register_pressure" in labels("saxpy", Assembled(registers, 0, 0, 0, 0))) is fires


def test_virtual_registers_are_little_evidence() -> None:
    (found,) = [one for one in label_ptx_kernel(KERNELS["spills"], None) if one.label == "ptx_register_pressure"]
    assert found.confidence < 0.5
    assert "virtual only, low confidence" in found.evidence
    # 595 virtual registers, 22 real ones.
    assert "ptx_register_pressure" not in labels("spills", CLEAN)
    assert "ptx_register_pressure" not in labels("saxpy", None)


def test_double_precision_is_named() -> None:
    assert "ptx_fp64_usage" in labels("_Z12nested_loopsILi32EEvPKdPdi", None)
    assert "ptx_fp64_usage" not in labels("saxpy", None)


def test_advice_includes_ptxas_figures() -> None:
    found = analyze_ptx_module(MODULE, {"spills": SPILLED})
    assert found.bottlenecks[0].label == "ptx_register_spills"
    (card,) = [one for one in found.recommendations if one.card.id == "rec_ptx_reduce_register_pressure"]
    assert [check.current for check in card.checks] == [1396, 32]

"""Risks of PTX: spills are only what the assembler says, and virtual registers are little evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from frx_graph.analyzers.kernels.ptx_analysis import analyse_ptx
from frx_graph.analyzers.kernels.ptx_labels import ptx_labels
from frx_graph.evidence.ptx.parsing import read_ptx
from frx_graph.evidence.ptx.ptxas import Assembled

MODULE = read_ptx(Path(__file__).parents[2] / "data" / "ptx" / "kernels_sm80.ptx")
KERNELS = {kernel.name: kernel for kernel in MODULE.kernels}
SPILLED = Assembled(32, 1144, 1396, 2244, 0)
CLEAN = Assembled(22, 0, 0, 0, 0)
LOCAL_ARRAY = KERNELS["_Z11local_arrayPKfPf"]


def labels(name: str, assembled: Assembled | None) -> list[str]:
    return [found.label for found in ptx_labels(KERNELS[name], assembled)]


def test_a_spill_is_what_the_assembler_calls_one() -> None:
    assert labels("spills", SPILLED)[0] == "ptx_register_spills"
    assert "ptx_register_spills" not in labels("spills", CLEAN)
    assert "ptx_register_spills" not in labels("spills", None)


def test_an_array_in_local_memory_is_no_spill() -> None:
    assert LOCAL_ARRAY.local_bytes > 0
    for assembled in (CLEAN, None):
        assert "ptx_register_spills" not in [found.label for found in ptx_labels(LOCAL_ARRAY, assembled)]


@pytest.mark.parametrize(("registers", "fires"), [(63, False), (64, True)])
def test_registers_flip_at_their_line(registers: int, fires: bool) -> None:
    assert ("ptx_register_pressure" in labels("saxpy", Assembled(registers, 0, 0, 0, 0))) is fires


def test_virtual_registers_are_little_evidence() -> None:
    (found,) = [one for one in ptx_labels(KERNELS["spills"], None) if one.label == "ptx_register_pressure"]
    assert found.confidence < 0.5
    assert "virtual only, low confidence" in found.evidence
    # 595 virtual registers, 22 real ones.
    assert "ptx_register_pressure" not in labels("spills", CLEAN)
    assert "ptx_register_pressure" not in labels("saxpy", None)


def test_double_precision_is_named() -> None:
    assert "ptx_fp64_usage" in labels("_Z12nested_loopsILi32EEvPKdPdi", None)
    assert "ptx_fp64_usage" not in labels("saxpy", None)


def test_advice_has_what_the_assembler_said() -> None:
    found = analyse_ptx(MODULE, {"spills": SPILLED})
    assert found.bottlenecks[0].label == "ptx_register_spills"
    (card,) = [one for one in found.recommendations if one.card.id == "rec_ptx_reduce_register_pressure"]
    assert [check.current for check in card.checks] == [1396, 32]

"""NVTX ranges of an export are read by name, the outermost first."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ncu_exports import Launch, nvtx_cell, nvtx_export, wide_export

from frx_graph.evidence.ncu.csv_file import find_nvtx_columns, parse_range_names, read_ncu_csv
from frx_graph.evidence.ncu.launch import KernelLaunch

CONV = "aten::conv2d, seq = 3, sizes = [[8, 64, 32, 32], [64, 64, 3, 3], [], []]"


def launches(path: Path, text: str) -> list[KernelLaunch]:
    path.write_text(text)
    found: list[KernelLaunch] = []
    read_ncu_csv(path, found.append)
    return found


def test_nested_ranges_are_separated_from_their_payload() -> None:
    assert parse_range_names(nvtx_cell("forward", CONV)) == ("forward", CONV)


def test_a_range_of_another_domain_is_one_too() -> None:
    cell = '12  "<default domain>:step:none:none:none:none:none:none"  "CCCL:reduce:none:none:none:none:REGISTERED:x" '
    assert parse_range_names(cell) == ("step", "reduce")


@pytest.mark.parametrize("cell", ["", "12", '12  "forward"', '12  "a:b:none"', '"::none:none:none:none:none:none"'])
def test_non_ranges_are_left_out(cell: str) -> None:
    assert parse_range_names(cell) == ()


@given(st.text(max_size=200))
def test_no_cell_is_too_hostile(cell: str) -> None:
    assert all(isinstance(name, str) and name for name in parse_range_names(cell))


def test_an_export_without_the_columns_has_no_ranges() -> None:
    assert find_nvtx_columns(("ID", "Kernel Name", "Push/Pop_Range")) == ()


@pytest.mark.parametrize("wide", [True, False])
def test_each_launch_has_the_ranges_of_its_row(tmp_path: Path, wide: bool) -> None:
    rows = [(Launch(0), nvtx_cell("model", CONV)), (Launch(1), "")]
    first, second = launches(tmp_path / "report.csv", nvtx_export(rows, wide=wide))
    assert first.ranges == ("model", CONV)
    assert second.ranges == ()
    assert first.values == {"duration": pytest.approx(6.75e-6)}


def test_a_usual_export_is_read_as_before(tmp_path: Path) -> None:
    (launch,) = launches(tmp_path / "a.csv", wide_export(["gpu__time_duration.sum"], ["us"], (Launch(), ["6.75"])))
    assert launch.ranges == ()

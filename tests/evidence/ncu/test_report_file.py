"""Binary reports: the same launches as of their export, and nothing of a damaged one. NVIDIA's reader does the work."""

from __future__ import annotations

import importlib.util
import random
from dataclasses import replace
from pathlib import Path

import pytest
from ncu_exports import Launch, nvtx_cell, nvtx_export, wide_export
from ncu_reports import A40, ReportLaunch, ReportRule, report

from frx_graph.errors import EvidenceError
from frx_graph.evidence.file_kind import FileKind, detect_file_kind
from frx_graph.evidence.ncu import report_file
from frx_graph.evidence.ncu.csv_file import read_ncu_csv
from frx_graph.evidence.ncu.launch import Form, KernelLaunch, NcuExport
from frx_graph.evidence.ncu.report_file import read_ncu_report

needs_reader = pytest.mark.skipif(importlib.util.find_spec("ncu_report") is None, reason="needs the [ncu] extra")
UNITS = {
    "gpu__time_duration.sum": ("ns", 1637408.0),
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("%", 94.22630107345078),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", 74.79701589740463),
    "dram__bytes_read.sum": ("byte", 537008896.0),
    "dram__bytes.sum.per_second": ("byte/s", 655227110164.3573),
    "smsp__cycles_elapsed.avg.per_second": ("hz", 1304636177.596368),
    "launch__registers_per_thread": ("register/thread", 18.0),
    "launch__shared_mem_per_block_static": ("byte/block", 0.0),
    "launch__waves_per_multiprocessor": ("", 520.1269841269841),
    "smsp__pcsamp_warps_issue_stalled_branch_resolving": ("branches", 510.0),
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": ("inst", 1.5399536805328324),
}
VALUES = {name: value for name, (_, value) in UNITS.items()}
STENCIL = ReportLaunch("void stencil2d<double>(const T1 *, T1 *)", {**A40, **VALUES})


def read(path: Path, content: bytes) -> tuple[NcuExport, list[KernelLaunch]]:
    path.write_bytes(content)
    launches: list[KernelLaunch] = []
    return read_ncu_report(path, launches.append), launches


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.ncu-rep"


@needs_reader
def test_a_report_is_read_as_its_export_is(path: Path, tmp_path: Path) -> None:
    export, (launch, second) = read(path, report(STENCIL, STENCIL))
    assert (export.form, export.launches, export.unknown_units, export.unreadable) == (Form.REPORT, 2, {}, {})
    names = ["device__attribute_display_name", *UNITS]
    identity = Launch(kernel=STENCIL.kernel, block="(16, 16, 1)", grid="(512, 512, 1)", capability="8.6")
    cells = ["NVIDIA A40", *(repr(value) for value in VALUES.values())]
    exported = tmp_path / "report.csv"
    exported.write_text(wide_export(names, ["", *(unit for unit, _ in UNITS.values())], (identity, cells)))
    expected: list[KernelLaunch] = []
    assert read_ncu_csv(exported, expected.append).unknown_units == {}
    (other,) = expected
    assert launch.values == other.values
    assert launch.names == other.names
    for name in ("number", "kernel", "device", "device_name", "compute_capability", "grid", "block"):
        assert getattr(launch, name) == getattr(other, name), name
    assert (launch.line, second.number) == (None, "1")


@needs_reader
def test_unmeasured_metric_is_not_zero(path: Path) -> None:
    values = {"gpu__time_duration.sum": float("nan"), "dram__bytes_read.sum": "n/a", "launch__sm_count": 84}
    _, (launch,) = read(path, report(ReportLaunch(values={**A40, **values})))
    assert launch.values == {"sm_count": 84.0}


@needs_reader
def test_units_of_an_unknown_chip_are_named_and_not_guessed(path: Path) -> None:
    export, (launch,) = read(path, report(ReportLaunch(values={"gpu__time_duration.sum": 5.0, "launch__sm_count": 84})))
    assert export.unknown_units == {"gpu__time_duration.sum in ''": 1}
    assert "duration" not in launch.values
    assert (launch.grid, launch.device_name, launch.compute_capability) == (None, "", "")


@needs_reader
def test_rule_messages_are_attached_to_their_launch(path: Path) -> None:
    rules = [
        ReportRule("SOLBottleneck", "SpeedOfLight", "Look at @section:SourceCounters:Source Counters@.", 1),
        ReportRule("CPIStall", "WarpStateStats", "See the @url:Kernel Profiling Guide:https://docs.nvidia.com/x@."),
        ReportRule("Empty", "WarpStateStats", ""),
    ]
    _, (launch,) = read(path, report(ReportLaunch(values=A40, rules=rules)))
    assert [(rule.name, rule.kind, rule.section, rule.text) for rule in launch.rules] == [
        ("SOLBottleneck", "INF", "SpeedOfLight", "Look at Source Counters."),
        ("CPIStall", "OPT", "WarpStateStats", "See the Kernel Profiling Guide (https://docs.nvidia.com/x)."),
    ]


@needs_reader
def test_hostile_names_come_through_whole(path: Path) -> None:
    name = 'k<"\x1b[31m", [red]>(\n‮é💥)'
    _, (launch,) = read(path, report(ReportLaunch(name, dict(A40))))
    assert launch.kernel == name


@needs_reader
def test_damage_is_refused_or_read(path: Path) -> None:
    whole = report(STENCIL, STENCIL)
    draw = random.Random(0)
    refused = 0
    for _ in range(12):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 10, 100))):
            data[draw.randrange(4, len(data))] ^= 1 << draw.randrange(8)
        try:
            export, launches = read(path, bytes(data))
        except EvidenceError as error:
            refused += 1
            assert str(path) in str(error)
        else:
            assert export.launches == len(launches) > 0
    assert refused


@needs_reader
def test_a_launch_that_cannot_be_read_is_missed(path: Path) -> None:
    # Of the second launch a field that must be there is called otherwise.
    whole = report(STENCIL, STENCIL)
    source = bytes((15 << 3 | 2, 2, 8, 1))
    at = whole.rindex(source)
    with pytest.raises(EvidenceError, match=r"missing required fields|1 of 2 launches|without any metric"):
        read(path, whole[:at] + bytes((18 << 3 | 2,)) + whole[at + 1 :])


@needs_reader
def test_the_reader_has_limits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_file, "_SECONDS", 0.0)
    with pytest.raises(EvidenceError, match="took longer than 0 s"):
        read(path, report(STENCIL))
    monkeypatch.undo()
    monkeypatch.setattr(report_file, "_MOST_MEMORY", 1 << 20)
    with pytest.raises(EvidenceError, match="ncu-report cannot read it"):
        read(path, report(STENCIL))


def test_report_without_a_launch_is_refused(path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"without a launch|needs ncu-report"):
        read(path, report())


def test_missing_package_error_names_the_extra(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EvidenceError, match=r"needs ncu-report \(pip install 'frx-graph\[ncu\]'"):
        read(path, report(STENCIL))
    with pytest.raises(EvidenceError, match="not complete"):
        read(path, report(STENCIL)[:-1])


def test_a_report_is_one_by_its_content(tmp_path: Path) -> None:
    for name in ("kernel.ptx", "trace.json", "report.csv", "report"):
        path = tmp_path / name
        path.write_bytes(report(STENCIL))
        assert detect_file_kind(path) is FileKind.NCU_REPORT
    text = tmp_path / "report.ncu-rep"
    text.write_text(".version 8.0\n.target sm_80\n")
    assert detect_file_kind(text) is FileKind.PTX


@needs_reader
def test_ranges_are_those_of_the_export(path: Path, tmp_path: Path) -> None:
    pushed = (
        "model.conv1",
        "aten::conv2d, seq = 3, sizes = [[8, 64, 32, 32], [64, 64, 3, 3], [], []]",
        " ",
        "[red]\x1b‮",
    )
    _, (inside, outside) = read(path, report(replace(STENCIL, pushed=pushed, started=("epoch 1",)), STENCIL))
    exported = tmp_path / "report.csv"
    exported.write_text(nvtx_export([(Launch(), nvtx_cell(*(name for name in pushed if name.strip())))]))
    expected: list[KernelLaunch] = []
    read_ncu_csv(exported, expected.append)
    assert inside.ranges == (*expected[0].ranges, "epoch 1")
    assert outside.ranges == ()


@needs_reader
def test_whole_numbers_may_be_stored_as_floating_point_ones(path: Path) -> None:
    """As in most public reports, NVIDIA's own samples among them."""
    doubles = {name: float(size) for name, size in A40.items() if "_dim_" in name or "capability" in name}
    _, (launch,) = read(path, report(replace(STENCIL, values={**STENCIL.values, **doubles})))
    assert (launch.grid, launch.block, launch.compute_capability) == ((512, 512, 1), (16, 16, 1), "8.6")
    with pytest.raises(EvidenceError, match="grid"):
        read(path, report(replace(STENCIL, values={**STENCIL.values, "launch__grid_dim_x": 512.5})))


@needs_reader
def test_a_share_of_a_peak_that_cannot_be_is_left_out(path: Path) -> None:
    name = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
    export, (launch,) = read(path, report(replace(STENCIL, values={**STENCIL.values, name: 250.0})))
    assert "dram_throughput" not in launch.values
    assert export.impossible == {f"{name}: 250": 1}

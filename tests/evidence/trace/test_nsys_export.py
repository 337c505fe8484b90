"""Nsight Systems' SQLite export, with the tables and columns of NVIDIA's "SQLite Export Schema Reference"."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from frx_graph.analyze.trace import analyze_run
from frx_graph.cli.main import run
from frx_graph.errors import EvidenceError
from frx_graph.evidence.file_kind import FileKind, detect_file_kind
from frx_graph.evidence.trace.events import ActivityKind
from frx_graph.evidence.trace.nsys_export import read_nsys_export
from frx_graph.evidence.trace.reading import read_trace

THREAD = 0x1000000 * 4711 + 12
NAMES = {
    1: "void gemm<float>(float*)",
    2: "gemm",
    3: "cudaLaunchKernel_v7000",
    4: "forward",
    5: "cudaMemcpyAsync_v3020",
}
KERNEL = (
    "start", "end", "deviceId", "streamId", "correlationId", "demangledName", "shortName",
    "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
)  # fmt: skip
COPY = ("start", "end", "deviceId", "streamId", "correlationId", "bytes", "copyKind", "srcKind", "dstKind")
CALL = ("start", "end", "globalTid", "correlationId", "nameId")
RANGE = ("start", "end", "eventType", "text", "textId", "globalTid")
Table = tuple[Sequence[str], Iterable[Sequence[Any]]]


def written(folder: Path, tables: Mapping[str, Table], **more: str) -> Path:
    path = folder / "report.sqlite"
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database:
        for name, (columns, rows) in tables.items():
            database.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
            database.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", rows)
        for statement in more.values():
            database.execute(statement)
        database.commit()
    return path


def report(folder: Path, steps: int = 4) -> Path:
    kernels, calls, copies, ranges = [], [], [], []
    for step in range(steps):
        at = 1_000_000 * step
        ranges.append((at, at + 900_000, 59, f"step {step}", None, THREAD))
        ranges.append((at + 10_000, at + 60_000, 59, "aten::mm, seq = 3, sizes = [[2, 2]]", None, THREAD))
        calls.append((at + 20_000, at + 25_000, THREAD, 2 * step, 3))
        kernels.append((at + 30_000, at + 130_000, 0, 7, 2 * step, 1, 2, 8, 1, 1, 128, 1, 1))
        calls.append((at + 200_000, at + 260_000, THREAD, 2 * step + 1, 5))
        copies.append((at + 210_000, at + 250_000, 0, 7, 2 * step + 1, 4096, 1, 0, 2))
    return written(
        folder,
        {
            "StringIds": (("id", "value"), NAMES.items()),
            "CUPTI_ACTIVITY_KIND_KERNEL": (KERNEL, kernels),
            "CUPTI_ACTIVITY_KIND_MEMCPY": (COPY, copies),
            "CUPTI_ACTIVITY_KIND_RUNTIME": (CALL, calls),
            "NVTX_EVENTS": (RANGE, ranges),
            "TARGET_INFO_GPU": (("id", "name"), [(0, "NVIDIA H100")]),
        },
    )


def test_every_table(tmp_path: Path) -> None:
    path = report(tmp_path)
    assert detect_file_kind(path) is FileKind.TRACE
    found = read_trace(path)
    kernel, copy = found.activities[0], found.activities[-1]
    assert (kernel.name, kernel.duration_ns, kernel.device, kernel.stream) == (NAMES[1], 100_000, 0, "7")
    assert (kernel.grid, kernel.block, kernel.correlation) == ((8, 1, 1), (128, 1, 1), 0)
    assert (copy.kind, copy.name, copy.bytes) == (ActivityKind.MEMCPY, "Memcpy HtoD (Pageable -> Device)", 4096)
    assert {call.name for call in found.calls} == {"cudaLaunchKernel", "cudaMemcpyAsync"}
    assert found.calls[0].thread.process == "4711"
    assert [one.name for one in found.operators if not one.annotation] == ["aten::mm"] * 4
    assert next(one.name for one in found.operators if one.annotation) == "step 0"
    assert found.device_names == {0: "NVIDIA H100"}


def test_the_devices_busy_time_is_the_union_of_their_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = report(tmp_path)
    timeline = analyze_run(path).run.timeline
    assert timeline.busy_share == pytest.approx(4 * 140_000 / 3_900_000)
    assert run(["analyze", str(path)]) in (1, 2)
    assert "gemm" in capsys.readouterr().out


def test_columns_and_tables_may_be_missing(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"CUPTI_ACTIVITY_KIND_KERNEL": (("start", "end"), [(1, 5), (None, 3), (9, 2), ("a", "b"), (4, 8)])}
    )
    found = read_nsys_export(path)
    assert [(one.name, one.device, one.grid) for one in found.activities] == [("unknown kernel", None, ())] * 2


@pytest.mark.parametrize("content", [b"SQLite format 3\0", b"SQLite format 3\0" + b"\xff" * 5000])
def test_damaged_databases_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "report.sqlite"
    path.write_bytes(content)
    with pytest.raises(EvidenceError, match="nsys export --type sqlite"):
        read_trace(path)


def test_other_databases_and_views_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="without kernels"):
        read_trace(written(tmp_path, {"frx_ledger_events": (("id",), [])}))
    endless = "WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start FROM n) SELECT start, start AS 'end' FROM n"
    view = f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}"
    with pytest.raises(EvidenceError, match="without kernels"):
        read_trace(written(tmp_path, {"StringIds": (("id", "value"), [])}, view=view))


def test_the_binary_format_names_the_command(tmp_path: Path) -> None:
    path = tmp_path / "report.nsys-rep"
    path.write_bytes(b"\0\1\2")
    with pytest.raises(EvidenceError, match="nsys export --type sqlite"):
        read_trace(path)


def test_long_names_are_cut(tmp_path: Path) -> None:
    rows = [(1, 1000, 0, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1)]
    path = written(
        tmp_path,
        {
            "StringIds": (("id", "value"), [(1, "x" * 10_000)]),
            "CUPTI_ACTIVITY_KIND_KERNEL": (KERNEL, rows),
        },
    )
    (kernel,) = read_nsys_export(path).activities
    assert len(kernel.name) == 4_000

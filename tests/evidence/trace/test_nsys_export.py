"""Nsight Systems' SQLite export, with the tables and columns of NVIDIA's "SQLite Export Schema Reference"."""

from __future__ import annotations

import json
import os
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
from frx_graph.evidence.trace import nsys_export
from frx_graph.evidence.trace.events import ActivityKind, parse_transfer
from frx_graph.evidence.trace.nsys_export import read_nsys_export
from frx_graph.evidence.trace.reading import read_trace
from frx_graph.evidence.trace.torch_trace import read_torch_trace

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


MARKS = {"NVTX_EVENTS": (RANGE, [(5, None, 34, "mark", None, THREAD)])}
OTHER_THREAD = 0x1000000 * 4712 + 12
ON_DEVICE = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")


@pytest.mark.parametrize(
    "tables",
    [
        MARKS,
        {"CUPTI_ACTIVITY_KIND_KERNEL": (KERNEL, [])},
        {"CUPTI_ACTIVITY_KIND_KERNEL": (("start", "end"), [(float("inf"), 5), (-5, 10), (0, 0)])},
        {"NVTX_EVENTS": (RANGE, [(1, 5, 59, "step", None, THREAD)])},
        {
            "StringIds": (("id", "value"), NAMES.items()),
            "CUPTI_ACTIVITY_KIND_RUNTIME": (CALL, [(10**13, 10**13 + 5, THREAD, 1, 3)]),
            "CUPTI_ACTIVITY_KIND_KERNEL": (("start", "end"), [(0, 5)]),
        },
    ],
)
@pytest.mark.parametrize("command", [["analyze"], ["analyze", "--trace"], ["compare"], ["reconcile"]])
def test_without_usable_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tables: Mapping[str, Table], command: list[str]
) -> None:
    path = str(written(tmp_path, tables))
    assert run([*command, path, *([path] if command == ["compare"] else [])]) == 2
    assert "an export without any operator or kernel" in capsys.readouterr().err


def test_a_missing_time_names_table_and_column(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="CUPTI_ACTIVITY_KIND_KERNEL lacks the column start"):
        read_trace(written(tmp_path, {**MARKS, "CUPTI_ACTIVITY_KIND_KERNEL": (("foo", "bar"), [(1, 2)])}))
    with pytest.raises(EvidenceError, match="NVTX_EVENTS lacks the column end"):
        read_trace(written(tmp_path, {"NVTX_EVENTS": (("start",), [(1,)])}))
    computed = "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(x, start AS (x), end AS (x + 5))"
    with pytest.raises(EvidenceError, match="CUPTI_ACTIVITY_KIND_KERNEL lacks the column start"):
        read_trace(written(tmp_path, MARKS, computed=computed))


def test_virtual_tables_are_not_read(tmp_path: Path) -> None:
    virtual = "CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_KERNEL USING fts5(start, end)"
    with pytest.raises(EvidenceError, match="without kernels"):
        read_trace(written(tmp_path, {"StringIds": (("id", "value"), [])}, virtual=virtual))


@pytest.mark.parametrize("kernels", [0, 40])
def test_launches_of_cuda_graphs_are_work(tmp_path: Path, kernels: int) -> None:
    begun = range(0, 40_000_000, 1_000_000)
    graphs = [(at + 6_000, at + 999_000, 0, 7, at, 5) for at in begun]
    small = [(at, at + 5_000, 0, 7) for at in begun[:kernels]]
    path = written(
        tmp_path,
        {
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ((*ON_DEVICE[:5], "graphId"), graphs),
            "CUPTI_ACTIVITY_KIND_KERNEL": (ON_DEVICE[:4], small),
        },
    )
    found = [one for one in read_trace(path).activities if one.name == "CUDA graph 5"]
    assert [(one.device, one.stream, one.duration_ns, one.grid) for one in found] == [(0, "7", 993_000, ())] * 40
    assert analyze_run(path).run.timeline.busy_share > 0.99


@pytest.mark.parametrize(
    ("kind", "source", "target", "direction", "memory"),
    [
        (1, None, None, "HtoD", None),
        (2, 2, 1, "DtoH", "pinned"),
        (3, 0, 3, "HtoD", "pageable"),
        (4, 3, 0, "DtoH", "pageable"),
        (5, 3, 3, "DtoD", None),
        (7, 2, 3, "DtoD", None),
        (8, 2, 2, "DtoD", None),
        (9, 0, 1, "HtoH", "pageable"),
        (10, 2, 2, "PtoP", None),
        (12, 4, 7, "DtoH", "managed"),
        (0, 0, 2, None, "pageable"),
        (99, 99, 2, None, None),
        (None, None, None, None, None),
        ("1", b"1", 2.5, None, None),
    ],
)
def test_unknown_copies_stay_unknown(
    tmp_path: Path, kind: Any, source: Any, target: Any, direction: str | None, memory: str | None
) -> None:
    rows = [(1, 5, 0, 7, 1, 8, kind, source, target)]
    (copy,) = read_trace(written(tmp_path, {"CUPTI_ACTIVITY_KIND_MEMCPY": (COPY, rows)})).activities
    found = parse_transfer(copy.name)
    assert (found.direction, found.host_memory) == (direction, memory)


def test_calls_of_other_processes_launch_nothing(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {
            "StringIds": (("id", "value"), NAMES.items()),
            "CUPTI_ACTIVITY_KIND_KERNEL": (ON_DEVICE, [(30, 90, 0, 7, 1, THREAD & ~0xFFFFFF)]),
            "CUPTI_ACTIVITY_KIND_RUNTIME": (CALL, [(10, 20, THREAD, 1, 3), (15, 25, OTHER_THREAD, 1, 3)]),
        },
    )
    assert [(one.thread.process, one.correlation) for one in read_trace(path).calls] == [("4711", 1), ("4712", None)]


def test_several_processes_with_work_on_devices_are_refused(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {
            "CUPTI_ACTIVITY_KIND_KERNEL": (ON_DEVICE, [(1, 5, 0, 7, 1, THREAD)] * 2),
            "CUPTI_ACTIVITY_KIND_MEMSET": (ON_DEVICE, [(1, 5, 0, 7, 1, OTHER_THREAD)]),
        },
    )
    with pytest.raises(EvidenceError, match=r"2 processes used a device.*report\.%p"):
        read_trace(path)


def test_devices_are_named_by_the_number_that_cuda_gives_them(tmp_path: Path) -> None:
    tables: dict[str, Table] = {
        "CUPTI_ACTIVITY_KIND_KERNEL": (ON_DEVICE, [(1, 5, 0, 7, 1, THREAD)]),
        "TARGET_INFO_GPU": (("id", "name"), [(0, "NVIDIA T4"), (1, "NVIDIA H100")]),
    }
    assert read_trace(written(tmp_path, tables)).device_names == {}
    tables["TARGET_INFO_CUDA_DEVICE"] = (("gpuId", "cudaId", "pid"), [(1, 0, 4711), (0, 0, 4712), (9, 1, 4711)])
    assert read_trace(written(tmp_path, tables)).device_names == {0: "NVIDIA H100"}


@pytest.mark.parametrize("name", [b"inv\xff.sqlite", b"q?a#b%20.sqlite"])
def test_any_path_is_read(tmp_path: Path, name: bytes) -> None:
    path = tmp_path / os.fsdecode(name)
    report(tmp_path).rename(path)
    assert len(read_trace(path).activities) == 8


def test_an_unknown_stream_is_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(at, at + 500, 0, stream) for at, stream in enumerate([None, "\x1b[31mS", b"\xff", -1, 2.5], start=1_000)]
    path = written(tmp_path, {"CUPTI_ACTIVITY_KIND_KERNEL": (ON_DEVICE[:4], rows)})
    assert {one.stream for one in read_trace(path).activities} == {""}
    run(["analyze", "--json", str(path)])
    (device,) = json.loads(capsys.readouterr().out)["result"]["devices"]
    assert [one["stream"] for one in device["streams"]] == [""]


def test_a_table_that_takes_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = report(tmp_path, steps=1_000)
    monkeypatch.setattr(nsys_export, "_STEPS", 20_000)
    assert len(read_trace(path).activities) == 2_000
    # The steps of all rows count together.
    monkeypatch.setattr(nsys_export, "_STEPS", 10_000)
    with pytest.raises(EvidenceError, match="a table has too many rows"):
        read_trace(path)


def test_rows_that_wait_beside_the_database_are_named(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end)")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 5)")
        database.commit()
        with pytest.raises(EvidenceError, match=r"still in report\.sqlite-wal"):
            read_nsys_export(path)
    assert len(read_nsys_export(path).activities) == 1


def test_other_readers_name_the_format(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="is an SQLite database, which Nsight Systems exports, expected JSON"):
        read_torch_trace(report(tmp_path))


def test_a_trace_without_possible_times_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "ts": 0,
        "dur": 5,
        "pid": 0,
        "tid": 7,
        "args": {"correlation": 1},
    }
    call = {**kernel, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 9e9, "dur": 50}
    path.write_text(json.dumps({"traceEvents": [kernel, call]}))
    assert run(["analyze", str(path)]) == 2
    assert "whose times can be right" in capsys.readouterr().err

"""Read what Nsight Systems recorded, from its SQLite export: `nsys export --type sqlite report.nsys-rep`.

NVIDIA's "SQLite Export Schema Reference" (2021.5 to 2025) describes tables and columns. Tables are there only if
something was recorded for them. Ranges of NVTX are annotations, except that `aten::…`, which
`torch.autograd.profiler.emit_nvtx` writes, are operators. Each process numbers its own devices and correlations, so an
export in which several used a device is refused. The file comes from anywhere: only tables are read, no views, and work
that takes too long is ended.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from frx_graph.errors import EvidenceError
from frx_graph.evidence.trace.events import ActivityKind, DeviceActivity, HostThread, Operator, RuntimeCall
from frx_graph.evidence.trace.parsing import clean_text
from frx_graph.evidence.trace.torch_trace import TorchTrace, build_trace

SQLITE_MAGIC: Final = b"SQLite format 3\0"
_HINT: Final = "nsys export --type sqlite report.nsys-rep makes one"
_KERNEL, _RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
_MEMCPY, _MEMSET = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPH: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_NVTX: Final = "NVTX_EVENTS"
_ON_DEVICES: Final = (_KERNEL, _GRAPH, _MEMCPY, _MEMSET)
_TIMED: Final = (*_ON_DEVICES, _RUNTIME, _NVTX)
_ACTIVITY: Final = ("start", "end", "deviceId", "streamId", "correlationId")
_STEPS: Final = 200_000_000
"""Limit on the steps of SQLite's machine in one query, over all rows. A kernel's takes 15, so 13 million fit."""
_PUSH_POP, _START_END = 59, 60
_COPIES: Final[Mapping[Any, str]] = {
    **dict.fromkeys((1, 3, 11), "HtoD"),
    **dict.fromkeys((2, 4, 12), "DtoH"),
    **dict.fromkeys((5, 6, 7, 8, 13), "DtoD"),
    9: "HtoH",
    10: "PtoP",
}
"""`ENUM_CUDA_MEMCPY_OPER`: `CUpti_ActivityMemcpyKind`, and from 11 on unified memory. Arrays, as in 3 to 7, lie on
devices."""
_MEMORIES: Final[Mapping[Any, str]] = {
    **dict.fromkeys((2, 5), "Device"),
    **dict.fromkeys((4, 6), "Managed"),
    0: "Pageable",
    1: "Pinned",
    3: "Array",
}
"""`ENUM_CUDA_MEM_KIND`."""
_UNKNOWN: Final = "Unknown"
_TEXT: Final = 4_000
_OPERATOR: Final = "aten::"


@dataclass(frozen=True, slots=True)
class _Export:
    database: sqlite3.Connection
    columns: Mapping[str, frozenset[str]]
    """By table. Generated columns, which nsys does not write, are left out."""

    def select(self, table: str, *columns: str, distinct: bool = False) -> Iterator[tuple[Any, ...]]:
        """Yield these columns of a table, None for one that it lacks; nothing without the table."""
        if table not in self.columns:
            return
        asked = ", ".join(f'"{column}"' if column in self.columns[table] else "NULL" for column in columns)
        yield from self.database.execute(f'SELECT {"DISTINCT " if distinct else ""}{asked} FROM "{table}"')


def read_nsys_export(path: Path) -> TorchTrace:
    """Read the export at `path`. Raises `EvidenceError` if it cannot be read, is another database, or is of several
    processes."""
    _check_merged(path)
    try:
        address = f"file:{quote(os.fsencode(path))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as database:
            return _read_export(path, _open_export(path, database))
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
            raise EvidenceError(
                f"{path}: a table has too many rows", "record less, as with nsys profile --duration 10"
            ) from error
        raise EvidenceError(f"{path}: cannot be read: {error}", _HINT) from error


def _check_merged(path: Path) -> None:
    """Raise `EvidenceError` if rows still wait beside the database: one that is opened as immutable lacks them."""
    log = Path(f"{os.path.realpath(path)}-wal")
    if log.is_file() and log.stat().st_size > 0:
        raise EvidenceError(
            f"{path}: a part of it is still in {log.name}",
            f"close the program that writes it, then sqlite3 {path} 'PRAGMA wal_checkpoint(TRUNCATE)'",
        )


def _open_export(path: Path, database: sqlite3.Connection) -> _Export:
    database.text_factory = lambda raw: raw.decode("utf-8", "replace")
    database.set_progress_handler(lambda: 1, _STEPS)
    database.execute("PRAGMA trusted_schema = OFF")
    # Only a table of rows has a root page: a virtual one has none.
    tables = {
        row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
    }
    if tables.isdisjoint(_TIMED):
        raise EvidenceError(f"{path}: a database without kernels, CUDA calls or NVTX ranges", _HINT)
    wanted = tables & {*_TIMED, "StringIds", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE"}
    columns = {table: _list_columns(database, table) for table in wanted}
    for table in sorted(wanted & {*_TIMED}):
        missing = [column for column in ("start", "end") if column not in columns[table]]
        if missing:
            raise EvidenceError(f"{path}: the table {table} lacks the column {missing[0]}", _HINT)
    return _Export(database, columns)


def _list_columns(database: sqlite3.Connection, table: str) -> frozenset[str]:
    return frozenset(row[1] for row in database.execute(f'PRAGMA table_info("{table}")'))


def _read_export(path: Path, export: _Export) -> TorchTrace:
    processes = {
        process
        for table in _ON_DEVICES
        for (number,) in export.select(table, "globalPid", distinct=True)
        if (process := _get_process(number))
    }
    if len(processes) > 1:
        raise EvidenceError(
            f"{path}: {len(processes):,} processes used a device, and frx analyses one",
            "record each by itself, as with torchrun --no-python nsys profile -o report.%p python train.py",
        )
    process = next(iter(processes), None)
    names = dict(export.select("StringIds", "id", "value"))
    trace = build_trace(
        path,
        operators=list(_read_ranges(export, names)),
        calls=list(_read_calls(export, names, process)),
        activities=[*_read_kernels(export, names), *_read_graphs(export), *_read_copies(export)],
        frames=[],
        device_names=_read_devices(export, process),
    )
    if not trace.activities and all(operator.annotation for operator in trace.operators):
        raise EvidenceError(
            f"{path}: an export without any operator or kernel", "record with nsys profile --trace cuda,nvtx"
        )
    return trace


def _read_devices(export: _Export, process: str | None) -> dict[int, str]:
    """Return the names of devices, by CUDA's number. Without the table that says which GPU each is, they are known if
    all GPUs have the same name."""
    gpus = {
        number: clean_text(name)
        for number, name in export.select("TARGET_INFO_GPU", "id", "name")
        if isinstance(number, int) and isinstance(name, str)
    }
    numbered = {
        number: gpus[gpu]
        for number, gpu, owner in export.select("TARGET_INFO_CUDA_DEVICE", "cudaId", "gpuId", "pid")
        if isinstance(number, int) and gpu in gpus and (process is None or owner is None or str(owner) == process)
    }
    return numbered or (gpus if len(set(gpus.values())) == 1 else {})


def _read_kernels(export: _Export, names: Mapping[Any, Any]) -> Iterator[DeviceActivity]:
    sizes = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
    for long, short, *row in export.select(_KERNEL, "demangledName", "shortName", *_ACTIVITY, *sizes):
        name = _get_name(names, long) or _get_name(names, short) or "unknown kernel"
        yield from _build_activity(ActivityKind.KERNEL, name, *row[:5], shape=row[5:])


def _read_graphs(export: _Export) -> Iterator[DeviceActivity]:
    """Yield launches of CUDA graphs as kernels of that name, as the export does not show what is inside."""
    for number, *row in export.select(_GRAPH, "graphId", *_ACTIVITY):
        name = f"CUDA graph {number}" if isinstance(number, int) else "CUDA graph"
        yield from _build_activity(ActivityKind.KERNEL, name, *row)


def _read_copies(export: _Export) -> Iterator[DeviceActivity]:
    for kind, source, target, *row in export.select(_MEMCPY, "copyKind", "srcKind", "dstKind", *_ACTIVITY, "bytes"):
        between = f"{_MEMORIES.get(source, _UNKNOWN)} -> {_MEMORIES.get(target, _UNKNOWN)}"
        yield from _build_activity(ActivityKind.MEMCPY, f"Memcpy {_COPIES.get(kind, _UNKNOWN)} ({between})", *row)
    for fill in export.select(_MEMSET, *_ACTIVITY, "bytes"):
        yield from _build_activity(ActivityKind.MEMSET, "Memset (Device)", *fill)


def _build_activity(
    kind: ActivityKind,
    name: str,
    start: Any,
    end: Any,
    device: Any,
    stream: Any,
    correlation: Any,
    size: Any = None,
    *,
    shape: Iterable[Any] = (),
) -> Iterator[DeviceActivity]:
    """Yield the activity, nothing without usable times; `shape` is the grid and the block, three numbers each."""
    span, queue = _get_span(start, end), _get_number(stream)
    if span is None:
        return
    known = [one if isinstance(one, int) else None for one in shape]
    grid, block = (tuple(one for one in part if one is not None) for part in (known[:3], known[3:]))
    yield DeviceActivity(
        name=name,
        start_ns=span[0],
        duration_ns=span[1],
        kind=kind,
        device=_get_number(device),
        stream="" if queue is None else str(queue),
        correlation=_get_number(correlation),
        grid=grid if len(grid) == 3 else (),
        block=block if len(block) == 3 else (),
        bytes=_get_number(size),
    )


def _read_calls(export: _Export, names: Mapping[Any, Any], process: str | None) -> Iterator[RuntimeCall]:
    """Yield the calls of CUDA. Those of another process than the one that used a device launched nothing."""
    for start, end, number, correlation, name in export.select(
        _RUNTIME, "start", "end", "globalTid", "correlationId", "nameId"
    ):
        span, called, thread = _get_span(start, end), _get_name(names, name), _get_thread(number)
        if span is not None and called:
            yield RuntimeCall(
                # The version of the interface follows the name: cudaLaunchKernel_v7000.
                name=called.partition("_v")[0],
                start_ns=span[0],
                duration_ns=span[1],
                thread=thread,
                correlation=_get_number(correlation) if process in (None, thread.process) else None,
            )


def _read_ranges(export: _Export, names: Mapping[Any, Any]) -> Iterator[Operator]:
    for start, end, kind, text, number, thread in export.select(
        _NVTX, "start", "end", "eventType", "text", "textId", "globalTid"
    ):
        span = _get_span(start, end) if kind in (_PUSH_POP, _START_END) else None
        said = text if isinstance(text, str) and text else _get_name(names, number)
        if span is None or not said:
            continue
        # `aten::conv2d, seq = 3, sizes = [[…]]`
        called = said.partition(",")[0] if said.startswith(_OPERATOR) else said
        yield Operator(
            name=clean_text(called[:_TEXT]),
            start_ns=span[0],
            duration_ns=span[1],
            thread=_get_thread(thread),
            annotation=not said.startswith(_OPERATOR),
        )


def _get_span(start: Any, end: Any) -> tuple[int, int] | None:
    """Return start and duration; None for other values, and for two zeros, which CUPTI writes for unknown times."""
    if not (isinstance(start, int) and isinstance(end, int)) or not 0 <= start <= end < 1 << 62 or end == 0:
        return None
    return start, end - start


def _get_name(names: Mapping[Any, Any], number: Any) -> str:
    value = names.get(number)
    return clean_text(value[:_TEXT]) if isinstance(value, str) else ""


def _get_number(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else None


def _get_thread(number: Any) -> HostThread:
    """Return the process and thread in a serialized identifier, each 24 bits."""
    known = number if isinstance(number, int) else 0
    return HostThread(str(known // 0x1000000 % 0x1000000), str(known % 0x1000000))


def _get_process(number: Any) -> str | None:
    """Return the process in a serialized identifier; None if it has none."""
    process = _get_thread(number).process
    return None if process == "0" else process

"""Read what Nsight Systems recorded, from its SQLite export: `nsys export --type sqlite report.nsys-rep`.

NVIDIA's "SQLite Export Schema Reference" (2021.5 to 2025) describes tables and columns. Tables are there only if
something was recorded for them. Ranges of NVTX are annotations, except that `aten::…`, which
`torch.autograd.profiler.emit_nvtx` writes, are operators. The file comes from anywhere: only tables are read, no views,
and work that takes too long is ended.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
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
_NVTX: Final = "NVTX_EVENTS"
_STEPS: Final = 200_000_000
"""Limit on steps of SQLite's machine between two rows; a million rows take a tenth."""
_PUSH_POP, _START_END = 59, 60
_COPIES: Final[Mapping[int, str]] = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
"""`CUpti_ActivityMemcpyKind`."""
_MEMORIES: Final[Mapping[int, str]] = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Device", 4: "Managed", 5: "Device"}
"""`ENUM_CUDA_MEM_KIND`."""
_TEXT: Final = 4_000
_OPERATOR: Final = "aten::"


def read_nsys_export(path: Path) -> TorchTrace:
    """Read the export at `path`. Raises `EvidenceError` if it cannot be read, or is another database."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)) as database:
            return _read_database(path, database)
    except sqlite3.Error as error:
        raise EvidenceError(f"{path}: cannot be read: {error}", _HINT) from error


def _read_database(path: Path, database: sqlite3.Connection) -> TorchTrace:
    database.row_factory = sqlite3.Row
    database.text_factory = lambda raw: raw.decode("utf-8", "replace")
    database.execute("PRAGMA trusted_schema = OFF")
    tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables & {_KERNEL, _RUNTIME, _NVTX}:
        raise EvidenceError(f"{path}: a database without kernels, CUDA calls or NVTX ranges", _HINT)
    database.set_progress_handler(lambda: 1, _STEPS)
    names = dict(_select(database, tables, "StringIds", "id", "value"))
    return build_trace(
        path,
        operators=list(_read_ranges(database, tables, names)),
        calls=list(_read_calls(database, tables, names)),
        activities=[*_read_kernels(database, tables, names), *_read_copies(database, tables)],
        frames=[],
        device_names={
            number: clean_text(name)
            for number, name in _select(database, tables, "TARGET_INFO_GPU", "id", "name")
            if isinstance(number, int) and isinstance(name, str)
        },
    )


def _select(database: sqlite3.Connection, tables: set[str], table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield these columns of a table, None for one that it lacks; nothing without the table."""
    if table not in tables:
        return
    there = {row[1] for row in database.execute(f'PRAGMA table_info("{table}")')}
    asked = ", ".join(f'"{column}"' if column in there else "NULL" for column in columns)
    for row in database.execute(f'SELECT {asked} FROM "{table}"'):
        yield tuple(row)


def _read_kernels(database: sqlite3.Connection, tables: set[str], names: Mapping[Any, Any]) -> Iterator[DeviceActivity]:
    columns = ("start", "end", "deviceId", "streamId", "correlationId", "demangledName", "shortName")
    sizes = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
    for start, end, device, stream, correlation, long, short, *shape in _select(
        database, tables, _KERNEL, *columns, *sizes
    ):
        span = _get_span(start, end)
        if span is not None:
            grid, block = ([one for one in part if isinstance(one, int)] for part in (shape[:3], shape[3:]))
            yield DeviceActivity(
                name=_get_name(names, long) or _get_name(names, short) or "unknown kernel",
                start_ns=span[0],
                duration_ns=span[1],
                kind=ActivityKind.KERNEL,
                device=_get_number(device),
                stream=str(stream),
                correlation=_get_number(correlation),
                grid=tuple(grid) if len(grid) == 3 else (),
                block=tuple(block) if len(block) == 3 else (),
            )


def _read_copies(database: sqlite3.Connection, tables: set[str]) -> Iterator[DeviceActivity]:
    columns = ("start", "end", "deviceId", "streamId", "correlationId", "bytes")
    for start, end, device, stream, correlation, size, kind, source, target in _select(
        database, tables, _MEMCPY, *columns, "copyKind", "srcKind", "dstKind"
    ):
        between = f"{_MEMORIES.get(source, 'Device')} -> {_MEMORIES.get(target, 'Device')}"
        found = _build_transfer(ActivityKind.MEMCPY, f"Memcpy {_COPIES.get(kind, 'DtoD')} ({between})", start, end)
        if found is not None:
            yield found(device, stream, correlation, size)
    for start, end, device, stream, correlation, size in _select(database, tables, _MEMSET, *columns):
        found = _build_transfer(ActivityKind.MEMSET, "Memset (Device)", start, end)
        if found is not None:
            yield found(device, stream, correlation, size)


def _build_transfer(kind: ActivityKind, name: str, start: Any, end: Any) -> Any:
    span = _get_span(start, end)
    if span is None:
        return None

    def build(device: Any, stream: Any, correlation: Any, size: Any) -> DeviceActivity:
        return DeviceActivity(
            name=name,
            start_ns=span[0],
            duration_ns=span[1],
            kind=kind,
            device=_get_number(device),
            stream=str(stream),
            correlation=_get_number(correlation),
            bytes=_get_number(size),
        )

    return build


def _read_calls(database: sqlite3.Connection, tables: set[str], names: Mapping[Any, Any]) -> Iterator[RuntimeCall]:
    for start, end, thread, correlation, name in _select(
        database, tables, _RUNTIME, "start", "end", "globalTid", "correlationId", "nameId"
    ):
        span, called = _get_span(start, end), _get_name(names, name)
        if span is not None and called:
            yield RuntimeCall(
                # The version of the interface follows the name: cudaLaunchKernel_v7000.
                name=called.partition("_v")[0],
                start_ns=span[0],
                duration_ns=span[1],
                thread=_get_thread(thread),
                correlation=_get_number(correlation),
            )


def _read_ranges(database: sqlite3.Connection, tables: set[str], names: Mapping[Any, Any]) -> Iterator[Operator]:
    for start, end, kind, text, number, thread in _select(
        database, tables, _NVTX, "start", "end", "eventType", "text", "textId", "globalTid"
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
    if not (isinstance(start, int) and isinstance(end, int)) or not 0 <= start <= end < 1 << 62:
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

"""Read the log of cuDNN's frontend: `CUDNN_FRONTEND_LOG_INFO=1 CUDNN_FRONTEND_LOG_FILE=cudnn.log`.

From version 1.0 on, the frontend writes each graph that it builds on one line of JSON, with `context`, `nodes` and
`tensors`. All other lines are passed over. Dimensions are in the order N, C, H, W, whatever the layout is.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from frx_graph.errors import EvidenceError
from frx_graph.evidence.opening import open_evidence

EXPECTED: Final = "a log of cuDNN's frontend, from version 1.0 on"
IS_CUDNN_LOG: Final = re.compile(rb"^\[cudnn_frontend\]|\"cudnn_frontend_version\"", re.MULTILINE)
_LONGEST_LINE: Final = 1 << 22
_MOST_TENSORS: Final = 64
_LONGEST_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class CudnnTensor:
    """An operand: its port, such as X or W, its type in cuDNN's words, and dimensions and strides in elements."""

    port: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CudnnOperation:
    """A node of a graph. `kind` is cuDNN's tag, such as `CONV_FPROP`."""

    kind: str
    inputs: tuple[CudnnTensor, ...]
    outputs: tuple[CudnnTensor, ...]

    def get(self, port: str) -> CudnnTensor | None:
        """Return the operand of a port; None without one."""
        return next((one for one in (*self.inputs, *self.outputs) if one.port == port), None)


@dataclass(frozen=True, slots=True)
class CudnnLog:
    """The operations of all graphs, in order, each once, with the number of graphs that have it. `unreadable` counts
    graphs that are not JSON, `rebuilt` graphs that were built before."""

    source: Path
    operations: Mapping[CudnnOperation, int]
    graphs: int
    rebuilt: int
    unreadable: int


def read_cudnn_log(path: Path) -> CudnnLog:
    """Read the log at `path`. Raises `EvidenceError` if it cannot be read, or has no graph."""
    operations: Counter[CudnnOperation] = Counter()
    graphs: Counter[tuple[CudnnOperation, ...]] = Counter()
    unreadable = 0
    with (
        open_evidence(path, EXPECTED) as raw,
        io.TextIOWrapper(raw, encoding="utf-8", errors="replace", newline="\n") as file,
    ):
        while line := file.readline(_LONGEST_LINE):
            at = line.find("{")
            if at < 0 or '"nodes"' not in line or '"tensors"' not in line:
                continue
            try:
                found = json.loads(line[at:])
            except (ValueError, RecursionError):
                unreadable += 1
                continue
            graph = tuple(_read_operations(found)) if isinstance(found, dict) else ()
            graphs[graph] += 1
            operations.update(graph)
    if not graphs:
        raise EvidenceError(f"{path}: has no graph, expected {EXPECTED}", "CUDNN_FRONTEND_LOG_INFO=1 writes them")
    return CudnnLog(path, dict(operations), graphs.total(), graphs.total() - len(graphs), unreadable)


def _read_operations(graph: Mapping[str, Any]) -> Iterator[CudnnOperation]:
    nodes, tensors = graph.get("nodes"), graph.get("tensors")
    if not (isinstance(nodes, list) and isinstance(tensors, dict)):
        return
    for node in nodes:
        if isinstance(node, dict) and isinstance(node.get("tag"), str):
            yield CudnnOperation(
                node["tag"][:_LONGEST_NAME],
                tuple(_read_tensors(node.get("inputs"), tensors)),
                tuple(_read_tensors(node.get("outputs"), tensors)),
            )


def _read_tensors(ports: Any, tensors: Mapping[str, Any]) -> Iterator[CudnnTensor]:
    for port, key in list(ports.items())[:_MOST_TENSORS] if isinstance(ports, dict) else ():
        tensor = tensors.get(str(key))
        if not isinstance(tensor, dict):
            continue
        shape, strides = _read_sizes(tensor.get("dim")), _read_sizes(tensor.get("stride"))
        if shape is not None and strides is not None and len(shape) == len(strides):
            yield CudnnTensor(port[:_LONGEST_NAME], str(tensor.get("data_type"))[:_LONGEST_NAME], shape, strides)


def _read_sizes(found: Any) -> tuple[int, ...] | None:
    if not isinstance(found, list) or not 0 < len(found) <= 8:
        return None
    known = all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 1 << 48 for one in found)
    return tuple(found) if known else None

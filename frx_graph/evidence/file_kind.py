"""Detect the kind of an evidence file by its content."""

from __future__ import annotations

import enum
import re
from pathlib import Path

from frx_graph.errors import EvidenceError
from frx_graph.evidence.cudnn_log import IS_CUDNN_LOG
from frx_graph.evidence.memory_snapshot import PICKLE_MAGIC, is_gzipped_snapshot
from frx_graph.evidence.ncu.report_blocks import MAGIC
from frx_graph.evidence.opening import GZIP_MAGIC, open_evidence
from frx_graph.evidence.torch_log import IS_TORCH_LOG

EXPECTED = (
    "a torch.profiler trace (.json, .json.gz), an Nsight Systems export (.sqlite), an Nsight Compute report (.ncu-rep) "
    "or CSV export (.csv), PTX (.ptx), CUDA source (.cu), a log of TORCH_TRACE or cuDNN (.log), or a snapshot of CUDA "
    "memory"
)
_SNIFFED_BYTES = 1 << 16
_OPENS_JSON = re.compile(rb"\s*(?:\{\s*(?:[\"}]|\Z)|\[\s*(?:[\]{]|\Z))")
"""Does not match output that programs print before a table: `[Vector addition of 50000 elements]`."""
_NCU = re.compile(rb"^(?:==PROF==|\"ID\",\"Process ID\")", re.MULTILINE)
_PTX = re.compile(rb"^\s*\.version\s+\d+\.\d+", re.MULTILINE)
_CUDA = re.compile(rb"\b__global__\b|[\w>)]\s*<<<[^;{}]{1,500}>>>\s*\(")
_CUDA_SUFFIXES = (".cu", ".cuh", ".cuda")
_SQLITE = b"SQLite format 3\0"
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


class FileKind(enum.StrEnum):
    """Kinds of evidence files."""

    TRACE = "trace"
    NCU_CSV = "ncu"
    NCU_REPORT = "ncu_report"
    PTX = "ptx"
    CUDA = "cuda_source"
    TORCH_LOG = "torch_log"
    CUDNN_LOG = "cudnn_log"
    MEMORY = "memory"


def detect_file_kind(path: Path, expected: str = EXPECTED) -> FileKind:
    """Detect the kind of a file. Raises `EvidenceError` if it is missing, or of no readable kind; `expected` describes
    the readable ones."""
    with open_evidence(path, expected) as file:
        start = file.read(_SNIFFED_BYTES)
    if not start.strip():
        raise EvidenceError(f"{path}: is empty, expected {expected}")
    if start.startswith(MAGIC):
        return FileKind.NCU_REPORT
    if start.startswith(_SQLITE) or path.suffix == ".nsys-rep":
        return FileKind.TRACE
    if start.startswith(PICKLE_MAGIC):
        return FileKind.MEMORY
    for mark in _BYTE_ORDER_MARKS:
        start = start.removeprefix(mark)
    text = start.replace(b"\0", b"")
    if start.startswith(GZIP_MAGIC):
        return FileKind.MEMORY if is_gzipped_snapshot(start) else FileKind.TRACE
    if IS_TORCH_LOG.search(text):
        # It contains graphs, kernels and PTX as text.
        return FileKind.TORCH_LOG
    if IS_CUDNN_LOG.search(text):
        return FileKind.CUDNN_LOG
    # A program may print JSON before the table.
    if _NCU.search(text):
        return FileKind.NCU_CSV
    if is_json_start(text):
        return FileKind.TRACE
    suffix = path.suffix.lower()
    if suffix in _CUDA_SUFFIXES and _CUDA.search(text):
        # It may contain PTX as text.
        return FileKind.CUDA
    if _PTX.search(text):
        return FileKind.PTX
    if b"==PROF==" in text or b'"ID",' in text or suffix == ".csv":
        return FileKind.NCU_CSV
    if suffix in _CUDA_SUFFIXES or _CUDA.search(text):
        return FileKind.CUDA
    if suffix == ".json":
        return FileKind.TRACE
    raise EvidenceError(f"{path}: neither its name nor its content tells what it is, expected {expected}")


def is_json_start(start: bytes) -> bool:
    """Return True for the beginning of an object, or of a list of objects: a trace, unlike a line in brackets."""
    return _OPENS_JSON.match(start) is not None

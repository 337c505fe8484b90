"""Text that a run has left: oneDNN's verbose log, or code that Inductor has written."""

from __future__ import annotations

import enum
import re
from pathlib import Path

from frx_graph.errors import EvidenceError
from frx_graph.evidence.file_kind import is_json_start
from frx_graph.evidence.inductor_code import GeneratedCode, read_inductor_code
from frx_graph.evidence.onednn import Primitive, parse_log
from frx_graph.evidence.opening import GZIP_MAGIC
from frx_graph.evidence.text_lines import open_text_lines

_SNIFFED_BYTES = 1 << 20
"""Limit on the text that a program prints before its first convolution."""
_ONEDNN = (b"onednn_verbose,", b"dnnl_verbose,")
_ONEDNN_LINE = re.compile(rb"^(?:onednn|dnnl)_verbose,", re.MULTILINE)
_INDUCTOR = (b"async_compile.", b"torch._inductor")


class LogKind(enum.StrEnum):
    """Writers of logs."""

    ONEDNN = "onednn_log"
    INDUCTOR = "inductor_code"


def detect_log_kind(path: Path) -> LogKind | None:
    """Return the writer of the file; None if it is neither, or cannot be read."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            start = file.read(_SNIFFED_BYTES).replace(b"\0", b"")
    except OSError:
        return None
    if _ONEDNN_LINE.search(start):
        return LogKind.ONEDNN
    if start.startswith(GZIP_MAGIC) or is_json_start(start):
        return None
    if any(mark in start for mark in _ONEDNN):
        return LogKind.ONEDNN
    return LogKind.INDUCTOR if all(mark in start for mark in _INDUCTOR) else None


def read_onednn_log(path: Path) -> tuple[Primitive, ...]:
    """Return all primitives of the log at `path`. Raises `EvidenceError` for a log without any."""
    with open_text_lines(path, "a oneDNN verbose log") as lines:
        primitives = parse_log(lines)
        read = lines.number
    if not primitives:
        raise EvidenceError(f"{path}: no primitive ran in {read:,} lines", "run the program with ONEDNN_VERBOSE=1")
    return primitives


def read_inductor_file(path: Path) -> GeneratedCode:
    """Return the copies in the code at `path`. Raises `EvidenceError` for code without a graph that calls a loop."""
    with open_text_lines(path, "code that Inductor has written") as lines:
        code = read_inductor_code(lines)
        read = lines.number
    if not code.calls:
        raise EvidenceError(
            f"{path}: no loop of Inductor's is called in {read:,} lines",
            "take output_code.py, or TORCH_LOGS=output_code",
        )
    return code

"""Read a recorded timeline: a trace of torch.profiler, or Nsight Systems' export."""

from __future__ import annotations

from pathlib import Path

from frx_graph.errors import EvidenceError
from frx_graph.evidence.trace.nsys_export import SQLITE_MAGIC, read_nsys_export
from frx_graph.evidence.trace.torch_trace import TorchTrace, read_torch_trace


def read_trace(path: Path) -> TorchTrace:
    """Read the timeline at `path`, by its content. Raises `EvidenceError`."""
    if path.suffix == ".nsys-rep":
        raise EvidenceError(
            f"{path}: Nsight Systems' own format is not read", f"nsys export --type sqlite {path}, then name that file"
        )
    return read_nsys_export(path) if _is_database(path) else read_torch_trace(path)


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except OSError:
        return False

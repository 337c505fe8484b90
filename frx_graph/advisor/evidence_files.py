"""Read files of a run, of any supported kind, for the layout work that they show."""

from __future__ import annotations

from pathlib import Path

from frx_graph.analyzers.observations.log_observations import observe_generated_code, observe_onednn_log
from frx_graph.analyzers.observations.ncu_observations import NcuObserver
from frx_graph.analyzers.observations.observation import RunFile
from frx_graph.analyzers.observations.trace_observations import observe_trace
from frx_graph.analyzers.trace.analysis import prepare_trace
from frx_graph.errors import EvidenceError
from frx_graph.evidence.file_kind import FileKind, detect_file_kind
from frx_graph.evidence.ncu.csv_file import read_ncu_csv
from frx_graph.evidence.ncu.report_file import read_ncu_report
from frx_graph.evidence.run_log import LogKind, detect_log_kind, read_inductor_file, read_onednn_log
from frx_graph.evidence.trace.torch_trace import read_torch_trace
from frx_graph.support.garbage_collection import pause_gc

EXPECTED = (
    "a torch.profiler trace, an Nsight Compute report or CSV export, a oneDNN verbose log, or code that Inductor has "
    "written"
)


def read_run_file(path: Path) -> RunFile:
    """Return what the file at `path` shows; its content decides its kind. Raises `EvidenceError` for a file that cannot
    be read or has another kind."""
    match detect_log_kind(path):
        case LogKind.ONEDNN:
            return observe_onednn_log(read_onednn_log(path), str(path))
        case LogKind.INDUCTOR:
            return observe_generated_code(read_inductor_file(path), str(path))
    kind = detect_file_kind(path, EXPECTED)
    if kind is FileKind.TRACE:
        trace = read_torch_trace(path)
        with pause_gc():
            return observe_trace(prepare_trace(trace))
    if kind in (FileKind.NCU_CSV, FileKind.NCU_REPORT):
        gathered = NcuObserver()
        read = read_ncu_report if kind is FileKind.NCU_REPORT else read_ncu_csv
        read(path, gathered.add)
        return gathered.build_run_file(str(path))
    raise EvidenceError(f"{path}: does not describe a program that ran; expected {EXPECTED}")

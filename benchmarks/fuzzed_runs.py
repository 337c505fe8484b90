"""Readers of run events and device samples, with valid files for `fuzzed_formats.py` to damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from written_runs import waiting_run

from frx_graph.analyzers.run.analysis import analyze_record
from frx_graph.analyzers.run.steps import Scope
from frx_graph.evidence.run.device_samples import read_device_samples
from frx_graph.evidence.run.event_stream import read_event_stream
from frx_graph.evidence.run.events import GpuSample, RunEvent
from frx_graph.reports.render.document import to_json
from frx_graph.reports.runs.run_document import build_run_document
from frx_graph.reports.runs.run_report import render_run

Report = tuple[Mapping[str, Any], Callable[[], str]]


def events_report(path: Path) -> Report:
    """Of a file of events alone."""
    stream = read_event_stream(path)
    return _record_report(stream.events, (), len(stream.events))


def samples_report(path: Path) -> Report:
    """Of a file of samples alone."""
    samples = read_device_samples(path)
    return _record_report((), samples, len(samples))


def _record_report(events: Sequence[RunEvent], samples: Sequence[GpuSample], read: int) -> Report:
    document = build_run_document(f"{read} read", analyze_record(events, samples, None), None, (), (), (), ())

    def text() -> str:
        return render_run(document.result, Scope.AUTO, "a file", top=3, width=100, color=False)

    return to_json(document), text


def event_streams() -> Iterator[bytes]:
    """Files with events of all types."""
    run = waiting_run(6)
    for kind, payload in (
        ("memcpy_span", {"copy_kind": "h2d"}),
        ("sync_wait", {}),
        ("profiler_window", {"kernel_count": 900, "median_cuda_kernel_duration_us": 4.2, "small_kernel_fraction": 0.9}),
        ("gpu_sample", {"gpu_index": 0, "utilization_gpu_pct": 4, "memory_used_bytes": 9, "memory_total_bytes": 10}),
        ("shape_snapshot", {"of": "parameters", "shapes": {"w": [4, 4]}, "strides": {"w": [4, 1]}}),
        ("warning_annotation", {"message": "full", "dropped": 3}),
    ):
        run.event(kind, run.now, 5, **payload)
    yield run.lines().encode()


def samples_of_devices() -> Iterator[bytes]:
    """Files as `frx collect` writes them."""
    run = waiting_run(6)
    yield "\n".join(run.samples).encode()

"""Read a run, a trace or an advice as a recording that can be compared with another one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from frx_graph.advice import Advice, Totals
from frx_graph.analyze.run import analyze_bundle
from frx_graph.analyze.trace import analyze_run
from frx_graph.analyzers.run.steps import Scope
from frx_graph.analyzers.run_change.recording import (
    COPY_TRAFFIC,
    MEMORY_TRAFFIC,
    Cost,
    KernelUse,
    KnownProblem,
    Recording,
    RecordKind,
)
from frx_graph.analyzers.timeline.labels import Answer
from frx_graph.capture.call_site import UNKNOWN_SITE, CallSite
from frx_graph.evidence.kernel_name import normalize_kernel_name, strip_serial_number
from frx_graph.records import Copy
from frx_graph.reports.advice.advice_file import read_advice
from frx_graph.reports.advice.fingerprint import compute_fingerprints
from frx_graph.reports.render.source_path import find_checkout_root, shorten_path
from frx_graph.reports.runs.run_document import RunResult, SummaryPart
from frx_graph.reports.runs.trace_document import LabelPart, TraceResult, build_trace_document

_MEMORY = "device memory, most"
_SHARES = {
    "waiting for input": "loader_wait_share",
    "copies to the device": "h2d_share",
    "copies from it": "d2h_share",
    "forward": "forward_share",
    "backward": "backward_share",
    "optimizer": "optimizer_share",
    "waiting for devices": "sync_share",
    "device busy": "gpu_busy_share",
    _MEMORY: "peak_memory_share",
}


def read_recording(path: Path, kind: RecordKind) -> Recording:
    """Read the record at `path`. Raises `EvidenceError` if it is damaged, or not of this kind."""
    match kind:
        case RecordKind.RUN:
            return _record_run(str(path), analyze_bundle(path).document.result)
        case RecordKind.TRACE:
            found = analyze_run(path)
            document = build_trace_document(found.trace, found.run, found.findings, find_checkout_root(Path.cwd()))
            return _record_trace(str(path), document.result)
        case RecordKind.ADVICE:
            return _record_advice(str(path), read_advice(path), find_checkout_root(Path.cwd()))


def _record_run(name: str, result: RunResult) -> Recording:
    found = result.get_scope(Scope.AUTO)
    trace = result.trace
    steps = tuple(one.wall_ms for one in found.per_step if one.wall_ms is not None and not one.failed)
    problems = {
        f"{one.of} {one.tensor} {one.shape}": KnownProblem(one.rule, one.title, one.tensor, one.count / one.among)
        for one in found.layout_findings
    }
    shares, step_ms = _select_shares(found.run_summary), found.run_summary.step_ms
    times = {} if step_ms is None else {one: share * step_ms for one, share in shares.items() if one != _MEMORY}
    return Recording(
        name=name,
        kind=RecordKind.RUN,
        step_ms=steps,
        labels=_select_labels(found.labels),
        undecided=_select_undecided(found.labels),
        shares=shares,
        shares_ms=times,
        kernels={} if trace is None else _sum_kernels(trace),
        per_step=trace is None or bool(trace.window.steps),
        problems=problems | ({} if trace is None else _list_layout_problems(trace)),
        costs={} if trace is None else _sum_layout_times(trace),
        machine={} if trace is None else _name_devices(trace),
    )


def _record_trace(name: str, result: TraceResult) -> Recording:
    shares = {
        "waiting for input": result.host.dataloader_wait_share,
        "waiting for devices": result.host.sync_wait_share,
        "layout copies": result.layout_share,
    }
    busy = [one.busy_share for one in result.devices]
    known = {name: share for name, share in shares.items() if share is not None}
    known |= {"device busy": sum(busy) / len(busy)} if busy else {}
    steps = len(result.window.steps)
    times = {
        "waiting for input": result.host.dataloader_wait_ms,
        "waiting for devices": result.host.sync_wait_ms,
        "layout copies": sum(one.total_ms for one in result.layout),
        "device busy": sum(one.busy_ms for one in result.devices) / len(busy) if busy else None,
    }
    return Recording(
        name=name,
        kind=RecordKind.TRACE,
        step_ms=tuple(one.ms for one in result.window.steps),
        labels=_select_labels(result.labels),
        undecided=_select_undecided(result.labels),
        shares=known,
        shares_ms={name: ms / steps for name, ms in times.items() if steps and ms is not None},
        kernels=_sum_kernels(result),
        per_step=bool(result.window.steps),
        problems=_list_layout_problems(result),
        costs=_sum_layout_times(result),
        machine=_name_devices(result),
    )


def _record_advice(name: str, advice: Advice, root: Path) -> Recording:
    marks = compute_fingerprints(advice.findings, root)
    environment = advice.environment
    return Recording(
        name=name,
        kind=RecordKind.ADVICE,
        problems={
            mark: KnownProblem(
                one.rule,
                one.title,
                f"{shorten_path(one.site.file, root)}:{one.site.line}",
                None if one.count_per_step is None else float(one.count_per_step),
                bytes_per_step=one.bytes_per_step,
                place_in_model=_name_place_in_model(one.site),
            )
            for mark, one in zip(marks, advice.findings, strict=True)
        },
        costs=_list_advice_costs(advice.totals, advice.observed),
        machine={
            "program": advice.target,
            "device": environment.device_name,
            "torch": environment.torch_version,
            "inner compiler": environment.inner,
            "threads": str(environment.threads),
        },
    )


def _name_place_in_model(site: CallSite) -> str | None:
    known = site.function not in ("", UNKNOWN_SITE.function) or site.module_path
    return f"{site.function} {site.module_path}" if known else None


def _list_advice_costs(totals: Totals, observed: Sequence[Copy] | None) -> dict[str, Cost]:
    """Return the totals of a step. Those of a step that was run are left out if none was."""
    copied, share = totals.copy_bytes_per_step, totals.bandwidth_overhead_pct
    costs = {
        "layout copies": Cost(totals.copies_per_step, ""),
        COPY_TRAFFIC: Cost(copied, "byte"),
        "their share of the memory traffic": Cost(share, "%"),
        MEMORY_TRAFFIC: Cost(copied / share * 100 if copied and share else None, "byte"),
    }
    if observed is not None:
        costs["observed layout copies"] = Cost(sum(copy.count for copy in observed), "")
        costs["observed traffic of layout copies"] = Cost(sum(copy.bytes for copy in observed), "byte")
    return costs


def _sum_layout_times(trace: TraceResult) -> dict[str, Cost]:
    steps = len(trace.window.steps)
    return (
        {"time of layout copies": Cost(sum(one.total_ms for one in trace.layout) / 1e3 / steps, "s")} if steps else {}
    )


def _select_labels(labels: Sequence[LabelPart]) -> dict[str, float]:
    return {one.label: one.score for one in labels if one.answer is Answer.PRESENT}


def _select_undecided(labels: Sequence[LabelPart]) -> frozenset[str]:
    return frozenset(one.label for one in labels if one.answer is Answer.UNDECIDABLE)


def _select_shares(summary: SummaryPart) -> dict[str, float]:
    shares = {name: getattr(summary, attribute) for name, attribute in _SHARES.items()}
    return {name: share for name, share in shares.items() if share is not None}


def _sum_kernels(trace: TraceResult) -> Mapping[str, KernelUse]:
    """Return the kernels by name, per step or of all. Inductor's numbers of kernels differ from program to program, and
    sizes among template arguments change with the data: neither is part of the name."""
    steps = max(1, len(trace.window.steps))
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for kernel in trace.kernels:
        total = sums[strip_serial_number(normalize_kernel_name(kernel.name))]
        total[0] += kernel.count / steps
        total[1] += kernel.total_ms / steps
    return {name: KernelUse(count, ms) for name, (count, ms) in sums.items()}


def _list_layout_problems(trace: TraceResult) -> dict[str, KnownProblem]:
    steps = len(trace.window.steps)
    return {
        one.fingerprint: KnownProblem(
            one.rule,
            one.title,
            one.operator if one.site is None else f"{one.site.file}:{one.site.line}",
            one.copies / steps if steps else None,
            bytes_per_step=one.bytes / steps if steps and one.bytes is not None else None,
            ms_per_step=one.total_ms / steps if steps else None,
        )
        for one in trace.layout
    }


def _name_devices(trace: TraceResult) -> dict[str, str]:
    names = sorted({one.name for one in trace.devices if one.name is not None})
    return {"device": ", ".join(names)} if names else {}

"""Analyse a run from its bundle.

The best source comes first. That is `derived/summary.json`, if it matches these files and this version. Next are events
(`raw/trace.jsonl`), with a profiler's trace for devices, and then that trace with samples of devices. A summary without
its files is used unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from frx_graph.analyze.layers import TraceEvidence, analyze_run
from frx_graph.analyze.run_summary import Role, describe_source, find_raw_files, load_summary
from frx_graph.analyzers.run.analysis import RunRecord, analyze_record
from frx_graph.analyzers.run.steps import Activity
from frx_graph.errors import EvidenceError
from frx_graph.evidence.run import bundle_layout
from frx_graph.evidence.run.bundle import OpenBundle, open_bundle
from frx_graph.evidence.run.device_samples import read_device_samples
from frx_graph.evidence.run.event_stream import EventStream, read_event_stream
from frx_graph.evidence.run.events import GpuSample, RunWarning
from frx_graph.reports.render.quantities import format_count
from frx_graph.reports.render.source_path import find_checkout_root
from frx_graph.reports.runs.run_document import RunDocument, SourcePart, build_run_document
from frx_graph.reports.runs.trace_document import MissingPart, TraceResult, build_trace_document

_MOST_WARNINGS = 20
_ONE_TRACE = "only the first readable trace by name is analysed: pass this one to `frx analyze` to see it"
_COLLECT = "frx collect -- python train.py writes a bundle"


@dataclass(frozen=True, slots=True)
class RunAdvice:
    """The document of a run, and its source in words."""

    document: RunDocument
    read_from: str


def analyze_bundle(path: Path) -> RunAdvice:
    """Analyse the bundle at `path`, a folder or a zip. Raises `EvidenceError` if it is not a bundle, or nothing in it
    can be read."""
    with open_bundle(path) as bundle:
        return advise_on_run(bundle)


def advise_on_run(bundle: OpenBundle) -> RunAdvice:
    """Analyse an open bundle."""
    kept, why_not = load_summary(bundle)
    if kept is not None:
        return RunAdvice(RunDocument(result=kept), f"{bundle_layout.SUMMARY}{why_not}")
    if why_not and not any(find_raw_files(bundle)):
        raise EvidenceError(f"{bundle_layout.SUMMARY}: {why_not}", _COLLECT)
    document = analyze_files(bundle)
    read = ", ".join(source.path for source in document.result.sources)
    return RunAdvice(document, f"{read} ({why_not})" if why_not else read)


def analyze_files(bundle: OpenBundle) -> RunDocument:
    """Analyse events, trace and samples without an earlier summary; this makes `derived/summary.json`."""
    unread: list[MissingPart] = []
    errors: list[EvidenceError] = []
    sources: list[SourcePart] = []
    stream = EventStream(())
    samples: tuple[GpuSample, ...] = ()
    traced: TraceEvidence | None = None
    for role, path in find_raw_files(bundle):
        if role == "trace" and traced is not None:
            unread.append(MissingPart(subject=bundle.get_relative_name(path), reason=_ONE_TRACE))
            continue
        try:
            match role:
                case "events":
                    stream = read_event_stream(path)
                case "trace":
                    traced = analyze_run(path)
                case "samples":
                    samples = read_device_samples(path)
        except EvidenceError as error:
            errors.append(error)
            unread.append(MissingPart(subject=bundle.get_relative_name(path), reason=_strip_root(bundle, error)))
            continue
        sources.append(describe_source(bundle, role, path))
    if not sources and errors:
        raise EvidenceError(_strip_root(bundle, errors[0]), errors[0].hint)
    record = analyze_record(stream.events, samples, None if traced is None else traced.run)
    there = {role for role, _ in find_raw_files(bundle)}
    missing = [*_list_stream_gaps(stream), *_list_step_gaps(record), *_list_missing_sources(there)]
    warnings = tuple(dict.fromkeys(event.message for event in stream.events if isinstance(event, RunWarning)))
    trace = _build_trace_result(bundle, traced)
    return build_run_document(bundle.name, record, trace, sources, missing, unread, warnings[:_MOST_WARNINGS])


def _strip_root(bundle: OpenBundle, error: EvidenceError) -> str:
    """Remove the folder into which a zip is unpacked from a message: it no longer exists when the message is read."""
    return error.message.replace(f"{bundle.root}/", "")


def _build_trace_result(bundle: OpenBundle, traced: TraceEvidence | None) -> TraceResult | None:
    if traced is None:
        return None
    document = build_trace_document(traced.trace, traced.run, traced.findings, find_checkout_root(Path.cwd()))
    return document.result.model_copy(update={"source": bundle.get_relative_name(Path(document.result.source))})


def _list_stream_gaps(stream: EventStream) -> Iterator[MissingPart]:
    if stream.unreadable:
        yield MissingPart(
            subject="events",
            reason=f"{format_count(stream.unreadable, 'line')} could not be read: {stream.first_problem}",
        )
    if stream.torn:
        yield MissingPart(subject="events", reason="the last line is torn: the program was ended while it wrote")
    if stream.left_out:
        yield MissingPart(subject="events", reason=f"{stream.left_out:,} at the end exceed the limit")
    if stream.foreign:
        yield MissingPart(subject="events", reason=f"{stream.foreign:,} have types that frx does not know")
    dropped = sum(event.dropped or 0 for event in stream.events if isinstance(event, RunWarning))
    if dropped:
        yield MissingPart(subject="events", reason=f"{dropped:,} were dropped by the program")


def _list_step_gaps(record: RunRecord) -> Iterator[MissingPart]:
    if record.clock_changes:
        yield MissingPart(subject="time", reason=f"the clock went back {format_count(record.clock_changes, 'time')}")
    if record.unfinished:
        yield MissingPart(subject="steps", reason=f"{format_count(record.unfinished, 'step')} began and did not end")
    if not record.run.figures.steps:
        yield MissingPart(subject="steps", reason="no step is marked: use `frx.step_context` or `profiler.step()`")
    elif Activity.LOADER not in record.run.figures.means:
        yield MissingPart(
            subject="waits for input", reason="not recorded: use `frx_graph.instrument_dataloader(loader)`"
        )
    if record.from_trace and record.run.figures.steps:
        yield MissingPart(subject="whole run", reason="only the profiled steps are known: the program wrote no events")


def _list_missing_sources(there: Set[Role]) -> Iterator[MissingPart]:
    """List the files that the bundle lacks."""
    if "samples" not in there:
        yield MissingPart(subject="samples of devices", reason=f"no {bundle_layout.GPU_METRICS}")
    if "trace" not in there:
        yield MissingPart(subject="profiler's trace", reason="none, so kernels, launches and conversions are not seen")

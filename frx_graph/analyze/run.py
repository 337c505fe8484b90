"""Analyse a run from its bundle.

The best source comes first. That is `derived/summary.json`, if it matches these files and this version. Next are events
(`raw/trace.jsonl`), with a profiler's trace for devices, and then that trace with samples of devices. A summary without
its files is used unchanged.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from frx_graph.analyze.run_summary import Role, describe_source, find_raw_files, load_summary
from frx_graph.analyze.trace import TraceEvidence, analyze_run
from frx_graph.analyzers.run.analysis import RunRecord, analyze_record
from frx_graph.analyzers.run.steps import Activity
from frx_graph.errors import EvidenceError
from frx_graph.evidence.run import bundle_layout
from frx_graph.evidence.run.bundle import OpenBundle, open_bundle
from frx_graph.evidence.run.device_samples import read_device_samples
from frx_graph.evidence.run.event_stream import EventStream, read_event_stream
from frx_graph.evidence.run.events import GpuSample, RunWarning
from frx_graph.evidence.run.host_samples import HostSample, read_host_samples
from frx_graph.evidence.run.run_facts import RunFacts, read_run_facts
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
    samples: tuple[GpuSample, ...] | None = None
    host: tuple[HostSample, ...] = ()
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
                case "host":
                    host = read_host_samples(path)
        except EvidenceError as error:
            errors.append(error)
            unread.append(MissingPart(subject=bundle.get_relative_name(path), reason=_strip_root(bundle, error)))
            continue
        sources.append(describe_source(bundle, role, path))
    if not sources and errors:
        raise EvidenceError(_strip_root(bundle, errors[0]), errors[0].hint)
    facts = read_run_facts(bundle.find(bundle_layout.METADATA))
    record = analyze_record(stream.events, samples, None if traced is None else traced.run, host, facts.host.processors)
    missing = _list_gaps(stream, record, {role for role, _ in find_raw_files(bundle)}, facts)
    warnings = tuple(dict.fromkeys(event.message for event in stream.events if isinstance(event, RunWarning)))
    trace: TraceResult | None = None
    if traced is not None:
        document = build_trace_document(traced.trace, traced.run, traced.findings, find_checkout_root(Path.cwd()))
        source = bundle.get_relative_name(Path(document.result.source))
        trace = document.result.model_copy(update={"source": source})
    return build_run_document(
        bundle.name, record, trace, sources, missing, unread, warnings[:_MOST_WARNINGS], facts.command
    )


def _strip_root(bundle: OpenBundle, error: EvidenceError) -> str:
    """Remove the folder into which a zip is unpacked from a message: it no longer exists when the message is read."""
    return error.message.replace(f"{bundle.root}/", "")


def _list_gaps(stream: EventStream, record: RunRecord, there: Set[Role], facts: RunFacts) -> list[MissingPart]:
    """List what the events, the steps and the files of the bundle lack."""
    unreadable, steps = format_count(stream.unreadable, "line"), record.run.figures.steps
    dropped = sum(event.dropped or 0 for event in stream.events if isinstance(event, RunWarning))
    loads = Activity.LOADER in record.run.figures.means
    gaps = (
        (stream.unreadable, "events", f"{unreadable} could not be read: {stream.first_problem}"),
        (stream.torn, "events", "the last line is torn: the program was ended while it wrote"),
        (stream.left_out, "events", f"{stream.left_out:,} at the end exceed the limit"),
        (stream.foreign, "events", f"{stream.foreign:,} have types that frx does not know"),
        (dropped, "events", f"{dropped:,} were dropped by the program"),
        (record.clock_changes, "time", f"the clock went back {format_count(record.clock_changes, 'time')}"),
        (facts.failure, "program", f"it failed: {facts.failure}"),
        (record.unfinished, "steps", f"{format_count(record.unfinished, 'step')} began and did not end"),
        (
            not steps,
            "steps",
            "no step is marked: `frx init --patch train.py` adds the calls that mark them, or use `profiler.step()`",
        ),
        (steps and not loads, "waits for input", "not recorded: use `frx_graph.instrument_dataloader(loader)`"),
        (
            record.from_trace and steps,
            "whole run",
            "only the profiled steps are known: the program wrote no events",
        ),
        ("samples" not in there, "samples of devices", f"no {bundle_layout.GPU_METRICS}"),
        ("trace" not in there, "profiler's trace", "none, so kernels, launches and conversions are not seen"),
    )
    return [MissingPart(subject=subject, reason=reason) for missing, subject, reason in gaps if missing]

"""Decide if the summary in a bundle may be used: this version of frx must have made it from the files in the bundle."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from frx_graph.evidence.run import bundle_layout
from frx_graph.evidence.run.bundle import OpenBundle
from frx_graph.reports.runs.run_document import RunResult, SourcePart
from frx_graph.support.plain_text import clean_line
from frx_graph.version import __version__

Role = Literal["events", "trace", "samples", "host"]
LONGEST_SUMMARY: Final = 64 << 20
TOO_LONG: Final = f"the summary is longer than {LONGEST_SUMMARY:,} bytes"
_ROOT_TRACE: Final = bundle_layout.PROFILER_TRACE.name
_PROFILE = re.compile(rf"{re.escape(str(bundle_layout.PROFILER))}/[^/]+\.json(?:\.gz)?", re.DOTALL)


def find_raw_files(bundle: OpenBundle) -> Iterator[tuple[Role, Path]]:
    """Yield the files that can be analysed, best first."""
    if (events := bundle.find(bundle_layout.EVENTS)) is not None and events.stat().st_size:
        yield "events", events
    for trace in bundle.find_traces():
        yield "trace", trace
    if (samples := bundle.find(bundle_layout.GPU_METRICS)) is not None and samples.stat().st_size:
        yield "samples", samples
    if (host := bundle.find(bundle_layout.HOST_METRICS)) is not None and host.stat().st_size:
        yield "host", host


def describe_source(bundle: OpenBundle, role: Role, path: Path) -> SourcePart:
    """Return a file of the bundle as a summary lists it."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return SourcePart(role=role, path=bundle.get_relative_name(path), bytes=path.stat().st_size, sha256=digest)


def load_summary(bundle: OpenBundle) -> tuple[RunResult | None, str]:
    """Return the summary in the bundle if it may be used, and a note about it."""
    path = bundle.find(bundle_layout.SUMMARY)
    if path is None:
        return None, ""
    if path.stat().st_size > LONGEST_SUMMARY:
        return None, TOO_LONG
    files = {bundle.get_relative_name(file): (role, file) for role, file in find_raw_files(bundle)}
    raw = [(role, name) for name, (role, _) in files.items()]
    return parse_summary(path.read_bytes(), raw, lambda source: describe_source(bundle, *files[source.path]) == source)


def list_raw_files(sizes: Mapping[str, int]) -> tuple[tuple[Role, str], ...]:
    """List the same files for a bundle that is not open, from sizes in bytes by file name."""
    samples: Sequence[tuple[Role, str]] = (
        ("samples", str(bundle_layout.GPU_METRICS)),
        ("host", str(bundle_layout.HOST_METRICS)),
    )
    events = str(bundle_layout.EVENTS)
    first = (str(bundle_layout.PROFILER_TRACE), _ROOT_TRACE)
    traces = [name for name in first if name in sizes]
    traces += sorted(name for name in sizes if name not in first and _PROFILE.fullmatch(name))
    found: list[tuple[Role, str]] = [("events", events)] if sizes.get(events) else []
    found += [("trace", name) for name in traces]
    return (*found, *(one for one in samples if sizes.get(one[1])))


def parse_summary(
    text: bytes, raw: Sequence[tuple[Role, str]], still: Callable[[SourcePart], bool]
) -> tuple[RunResult | None, str]:
    """Return the summary in `text` if it may be used, and a note about it.

    `raw` lists the files that could be analysed instead, by name in the bundle. `still` returns True if such a file is
    unchanged.
    """
    try:
        kept = RunResult.model_validate_json(text)
    except ValidationError:
        return None, "the summary was not written by this version of frx"
    unread = {part.subject for part in kept.unread}
    now = [(role, name) for role, name in raw if name not in unread]
    if not now:
        return kept, "" if kept.frx_version == __version__ else f", as frx-graph {kept.frx_version} wrote it"
    if kept.frx_version != __version__:
        return None, f"analysed again: frx-graph {clean_line(kept.frx_version, 40)} wrote the summary"
    same = [(source.role, source.path) for source in kept.sources] == now and all(map(still, kept.sources))
    return (kept, "") if same else (None, "analysed again: the summary was made from other files")

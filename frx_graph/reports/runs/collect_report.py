"""What was collected of a run, for people."""

from __future__ import annotations

import signal

from frx_graph.reports.render.plain_text import one_line
from frx_graph.reports.render.quantities import plural
from frx_graph.reports.runs.collect_document import CapturedPart, CollectDocument

_LONGEST = 2000


def render_collected(document: CollectDocument) -> str:
    """Where the bundle is, and what is in it."""
    out = [
        f"frx collect completed{_ending(document)}",
        f"Run bundle: {one_line(document.bundle, _LONGEST)}",
        *([f"Zip bundle: {one_line(document.zip, _LONGEST)}"] if document.zip is not None else []),
        f"Captured ({plural(len(document.files), 'file')}):",
        *(f"  {_file(file)}" for file in document.files),
        *(f"Warning: {one_line(warning, _LONGEST)}" for warning in document.warnings),
    ]
    return "\n".join(out) + "\n"


def _ending(document: CollectDocument) -> str:
    """How the workload ended where that was not well."""
    if document.signal is not None:
        known = document.signal in set(signal.Signals)
        name = signal.Signals(document.signal).name if known else f"signal {document.signal}"
        return f": the workload was ended by {name}"
    return f": the workload ended with exit code {document.exit_code}" if document.exit_code else ""


def _file(file: CapturedPart) -> str:
    return f"{one_line(file.path)} [imported]" if file.imported_from is not None else one_line(file.path)

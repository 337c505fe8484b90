"""What held a run back, from the folder of a run that has ended: `derived/summary.json`, and its label."""

from __future__ import annotations

import json
from pathlib import Path

from frx_graph.analyze.run import analyse_files
from frx_graph.analyzers.run.steps import Scope
from frx_graph.analyzers.timeline.labels import INSUFFICIENT
from frx_graph.errors import FrxError
from frx_graph.evidence.run import bundle_layout
from frx_graph.evidence.run.bundle import open_bundle
from frx_graph.support.atomic_file import write_atomically


def diagnose(folder: Path) -> str | None:
    """The label, of its steady state where there is one; None where nothing holds it back, or nobody knows what does.
    The summary stays in the folder."""
    try:
        with open_bundle(folder) as bundle:
            result = analyse_files(bundle).result
    except (FrxError, OSError):
        # What a tune measures does not hang on it.
        return None
    path = folder / bundle_layout.SUMMARY
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(result.model_dump(mode="json", by_alias=True), indent=2) + "\n")
    label = result.scope(Scope.AUTO).diagnosis.user_facing_bottleneck
    return None if label == INSUFFICIENT else label

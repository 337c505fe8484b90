"""Run one tune from its settings to its report, which is updated whenever more is known."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Literal

from frx_graph.reports.render.document import to_json
from frx_graph.reports.trials.tune_report import RulePart, TuneDocument, find_winner, render_markdown_report
from frx_graph.runs.tune.bench import TuneBench
from frx_graph.runs.tune.cluster_bench import ClusterBench, EngineOn
from frx_graph.runs.tune.examination import Diagnose
from frx_graph.runs.tune.families import FAMILIES, Family, make_custom_family
from frx_graph.runs.tune.search import Search, SearchState
from frx_graph.runs.tune.settings import TuneSettings
from frx_graph.runs.tune.tune_folder import TuneFolder
from frx_graph.runs.workload.workload import redact_secrets
from frx_graph.support.atomic_file import write_atomically
from frx_graph.version import __version__

REPORT, MARKDOWN = "autopilot_report.json", "report.md"
Status = Literal["running", "complete", "interrupted", "failed"]


def list_families(settings: TuneSettings) -> tuple[Family, ...]:
    """Return all families in the order of their stages; the user's own last."""
    own = (make_custom_family(settings.candidates),) if settings.candidates else ()
    return (*FAMILIES, *own)


class TuneRun:
    """Runs a tune, and keeps its report current, also after an interrupt. The nodes of `cluster` measure; without one,
    this machine does."""

    def __init__(
        self,
        settings: TuneSettings,
        folder: TuneFolder,
        *,
        diagnose: Diagnose = lambda _: None,
        say: Callable[[str], None] = lambda _: None,
        progress: Callable[[str], None] = lambda _: None,
        environment: Mapping[str, str] | None = None,
        cluster: EngineOn | None = None,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._say = say
        self._bench = (
            TuneBench(settings, folder, diagnose=diagnose, progress=progress, environment=environment)
            if cluster is None
            else ClusterBench(settings, folder, cluster, progress=progress)
        )
        self._known = SearchState()

    def run(self) -> TuneDocument:
        """Run the tune. Raises `TrialError` if the program itself fails; the report then says how far it came."""
        families = list_families(self._settings)
        search = Search(self._bench, families, self._settings, self._bench.gather_facts, self._note, self._say)
        try:
            self._note(search.run())
        except Exception:
            self._write("failed")
            raise
        except BaseException:
            self._write("interrupted")
            raise
        return self._write("complete")

    def make_document(self, status: Status) -> TuneDocument:
        """Return the current report."""
        known = self._known
        rule = self._settings.make_protocol(known.candidates) if known.candidates else None
        own = {"minimum_speedup": self._settings.min_speedup, "candidates": known.candidates}
        return TuneDocument(
            id=self._folder.name,
            job=self._settings.name,
            command=redact_secrets(self._settings.command),
            status=status,
            frx_version=__version__,
            settings=self._settings.model_dump(mode="json", exclude={"command", "name"}),
            rule=None if rule is None else RulePart.from_record(rule, **own),
            baseline=known.baseline,
            trials=known.trials,
            left_out=known.left_out,
            winner=find_winner(known.trials),
        )

    def _note(self, known: SearchState) -> None:
        self._known = known
        if not known.complete:
            with contextlib.suppress(OSError):
                self._write("running")

    def _write(self, status: Status) -> TuneDocument:
        document = self.make_document(status)
        text = json.dumps(to_json(document), indent=2, allow_nan=False) + "\n"
        write_atomically(self._folder.path / REPORT, text)
        write_atomically(self._folder.path / MARKDOWN, render_markdown_report(document))
        return document

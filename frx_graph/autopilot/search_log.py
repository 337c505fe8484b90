"""Log what the search for a graph's plan tries and finds, since the user's call waits for it; keep it for the report.

Only the first rank of a distributed program writes lines.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal

from frx_graph.advice import AutopilotSearch, TriedCandidate
from frx_graph.distributed.consensus import is_first_rank
from frx_graph.errors import FrxError, summarize_error
from frx_graph.measure.machine.busy_programs import MachineLoad, describe_load
from frx_graph.support.torch_internals import CompileContext
from frx_graph.support.user_log import write_line
from frx_graph.trials.verdict import Outcome, Verdict

_LOGGER = logging.getLogger(__name__)
_RESULTS: dict[Outcome, Literal["promoted", "rejected", "equivalent", "inconclusive"]] = {
    Outcome.PROMOTE: "promoted",
    Outcome.REJECT: "rejected",
    Outcome.EQUIVALENT: "equivalent",
    Outcome.INCONCLUSIVE: "inconclusive",
}
_WORDS = {"equivalent": "no difference that matters"}


class SearchLog:
    """Logs one search, as a context manager around it: an error is its end, too."""

    def __init__(self, signature: str, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._signature = signature
        self._graph = str(CompileContext.current_compile_id() or signature)
        self._seconds = seconds
        self._clock = clock
        self._began = clock()
        self.is_shown = is_first_rank()
        """True if this process writes lines."""
        self._names: tuple[str, ...] = ()
        self._tried: list[TriedCandidate] = []
        self._departed = False
        self._end: str | None = None
        self._took = 0.0

    def __enter__(self) -> SearchLog:
        limit = f"for at most {self._seconds:.0f} s"
        self._write(f"graph {self._graph}: asking for candidates, and trying them, {limit}; this call waits")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._end is None and error is not None:
            self._finish(_describe_error(error))
            self._write(f"graph {self._graph}: stopped after {self._took:.0f} s: {self._end}")

    def start(self, names: Sequence[str], seconds: float) -> None:
        """Log the candidates that are tried alone, and the time that is left for them."""
        self._names = tuple(names)
        if names:
            count = f"{len(names)} candidate{'s' if len(names) > 1 else ''}"
            limit = f"for at most {seconds:.0f} s"
            self._write(f"trying {count} on graph {self._graph}, {limit}: {', '.join(names)}")

    def note_load(self, load: MachineLoad) -> None:
        """Log what other programs do, if that would void measurements."""
        if load.is_busy:
            effect = "disturbed measurements are repeated, which takes longer, and may leave candidates untried"
            self._write(f"graph {self._graph}: the machine is busy: {describe_load(load)}; {effect}")

    def note_stage(self, stage: str) -> None:
        """Log the stage of the current trial, for `FRX_LOG=debug`."""
        self._write(f"graph {self._graph}: {stage}", logging.DEBUG)

    def note_skipped(self, name: str, reason: str) -> None:
        """Log why a candidate is not tried."""
        self._write(f"{self._format_candidate(name)}: not tried, {reason}")

    def note_departure(self, departure: str) -> None:
        """Log once how the program as the compiler alone makes it differs from eager; empty: it does not."""
        if departure and not self._departed:
            self._departed = True
            self._write(f"graph {self._graph}: {departure}", logging.WARNING)

    def note_trial(self, name: str, verdict: Verdict, ratio: float | None) -> None:
        """Log how the trial of a candidate ended. `ratio` is baseline time over candidate time; None: unknown."""
        tried = TriedCandidate(name, _RESULTS[verdict.outcome], verdict.reason, ratio)
        self._tried.append(tried)
        word = _WORDS.get(tried.result, tried.result)
        found = f"{word}, {tried.reason}" if ratio is None else f"{_format_gain(ratio)}, {word}"
        self._write(f"{self._format_candidate(name)}: {found}")

    def finish(self, reason: str, *, complete: bool = True) -> None:
        """Log the end of the search, for `reason`, and what came of it. Not `complete`: the time budget ended."""
        self._finish(reason)
        promoted = sum(tried.result == "promoted" for tried in self._tried)
        counted = f"{promoted} of {len(self._tried)} promoted" if self._tried else reason
        fastest = self._find_fastest()
        outcome = "it is compiled as without frx" if fastest is None else f"{fastest} is the fastest"
        rest = "; frx_graph.report() has the rest" if self._tried else ""
        cut = "" if complete or not self._tried else f", {reason}"
        self._write(f"graph {self._graph}: done after {self._took:.0f} s{cut}: {counted}, {outcome}{rest}")

    def make_summary(self) -> AutopilotSearch | None:
        """Return the search for a report; None while it runs."""
        if self._end is None:
            return None
        return AutopilotSearch(
            self._graph, self._signature, self._took, tuple(self._tried), self._find_fastest(), self._end
        )

    def _finish(self, reason: str) -> None:
        self._end, self._took = reason, self._clock() - self._began

    def _find_fastest(self) -> str | None:
        promoted = [tried for tried in self._tried if tried.result == "promoted"]
        return max(promoted, key=lambda tried: tried.ratio or 0.0).name if promoted else None

    def _format_candidate(self, name: str) -> str:
        if name not in self._names:
            return f"together, {name}"
        return f"candidate {self._names.index(name) + 1} of {len(self._names)}, {name}"

    def _write(self, text: str, level: int = logging.INFO) -> None:
        if self.is_shown:
            write_line(_LOGGER, level, text)


def _describe_error(error: BaseException) -> str:
    if isinstance(error, FrxError):
        return error.message
    return summarize_error(error) if isinstance(error, Exception) else "interrupted"


def _format_gain(ratio: float) -> str:
    return f"{100 * (ratio - 1):.1f} % faster" if ratio >= 1 else f"{100 * (1 - ratio):.1f} % slower"

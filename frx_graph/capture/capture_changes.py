"""Compare the captures of a baseline and a candidate: new breaks, graphs, guards, recompiles, CUDA-graph skips."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from frx_graph.capture.capture_facts import CaptureFacts

_RESUMED = "torch_dynamo_resume_in"


class CaptureChange(enum.StrEnum):
    """Kinds of regressions."""

    GRAPH_BREAK = "new graph break"
    MORE_GRAPHS = "more graphs"
    GUARD = "new guard"
    RECOMPILE = "new recompile"
    CUDAGRAPH_SKIP = "more CUDA-graph skips"


@dataclass(frozen=True, slots=True)
class CaptureRegression:
    """One regression of the capture. `detail` is for people: the place and the reason."""

    kind: CaptureChange
    detail: str


def find_regressions(baseline: CaptureFacts, candidate: CaptureFacts) -> tuple[CaptureRegression, ...]:
    """Return the regressions of the candidate: graph breaks, graphs, guards, recompiles and CUDA-graph skips.

    Both must have run the same number of steps; raises `ValueError` otherwise. Breaks are compared by place and reason,
    guards by frame and expression, recompiles by frame and reason, however often the line ran. What torch did not
    report for one of them is not compared.
    """
    if baseline.steps != candidate.steps:
        raise ValueError(f"{baseline.steps} steps of the baseline, {candidate.steps} of the candidate")
    untold = {*baseline.untold, *candidate.untold}
    found: list[CaptureRegression] = []
    if "graph breaks" not in untold:
        breaks = Counter(candidate.breaks) - Counter(baseline.breaks)
        found.extend(CaptureRegression(CaptureChange.GRAPH_BREAK, f"{b.place}: {b.reason}") for b in breaks)
    if "compilations" not in untold:
        if candidate.graphs > baseline.graphs and not _has_new_functions(baseline, candidate):
            detail = f"{candidate.graphs} instead of {baseline.graphs}"
            found.append(CaptureRegression(CaptureChange.MORE_GRAPHS, detail))
        found.extend(_find_new_recompiles(baseline, candidate))
    if "guards" not in untold:
        found.extend(_find_new_guards(baseline, candidate))
    if candidate.cudagraph_skips > baseline.cudagraph_skips:
        reasons = [r for r in candidate.cudagraph_skip_reasons if r not in baseline.cudagraph_skip_reasons]
        detail = f"{candidate.cudagraph_skips} instead of {baseline.cudagraph_skips}"
        detail = f"{detail}: {'; '.join(reasons)}" if reasons else detail
        found.append(CaptureRegression(CaptureChange.CUDAGRAPH_SKIP, detail))
    return tuple(found)


def _has_new_functions(baseline: CaptureFacts, candidate: CaptureFacts) -> bool:
    """Return True if the candidate compiles functions that ran without a compiler before: it was asked to. What follows
    a graph break in one is reported as the break."""
    known = {(frame.name, frame.place) for frame in baseline.frames}
    return any(
        (frame.name, frame.place) not in known and not frame.name.startswith(_RESUMED) for frame in candidate.frames
    )


def _find_new_recompiles(baseline: CaptureFacts, candidate: CaptureFacts) -> Iterator[CaptureRegression]:
    known = Counter((recompile.frame, recompile.reason) for recompile in baseline.recompiles)
    spare = sum(known.values())
    # Failing guards read alike in both arms except for their values, such as strides. More recompiles than the
    # baseline's are worse for any reason; the same number for another reason is not.
    if len(candidate.recompiles) <= spare:
        return
    fresh = []
    for recompile in candidate.recompiles:
        key = (recompile.frame, recompile.reason)
        if known[key]:
            known[key] -= 1
        else:
            fresh.append(recompile)
    for recompile in fresh[-(len(candidate.recompiles) - spare) :]:
        detail = f"step {recompile.step}, {recompile.frame}: {recompile.reason}"
        yield CaptureRegression(CaptureChange.RECOMPILE, detail)


def _find_new_guards(baseline: CaptureFacts, candidate: CaptureFacts) -> Iterator[CaptureRegression]:
    """Compare frames that both have: one that only the candidate has is reported as a break or graph."""
    known = {(frame.name, frame.place): frame.guards for frame in baseline.frames}
    for frame in candidate.frames:
        before = known.get((frame.name, frame.place), frame.guards)
        for guard in frame.guards:
            if guard not in before:
                yield CaptureRegression(CaptureChange.GUARD, f"{frame.name} ({frame.place}): {guard}")

"""Propose candidates for a program: rewrites that measured times favour, and other inner compilers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from frx_graph.compiler.plans import ALL_REWRITES, filter_by_risk
from frx_graph.errors import TrialError
from frx_graph.passes import inner_choice
from frx_graph.records import Candidate, Risk
from frx_graph.support.allocator import Allocation, read_allocation
from frx_graph.trial_worker.launch import start_arm
from frx_graph.trials.arm_messages import Load, Loaded, MadeGraph, Warm, Warmed, ask
from frx_graph.trials.arm_process import ArmError
from frx_graph.trials.worker_client import RunningArms, StartArm

Propose = Callable[[tuple[Candidate, ...], Sequence[str]], tuple[MadeGraph, ...]]
"""Takes the choice of an inner compiler, if any, and rewrites; returns what measured times favour among them."""

_TOGETHER = {"backward_layout": "propagate_layout"}
"""Rewrites that are tried with another: a layout is one decision, forward and backward."""
_PROPOSING_SECONDS = 1800.0


def propose_rewrites(
    base: Load, rewrites: Sequence[str], seconds: float = _PROPOSING_SECONDS, start: StartArm = start_arm
) -> tuple[MadeGraph, ...]:
    """Return, for each graph, those of `rewrites` that measured times favour under the inner compiler of `base`. Takes
    at most `seconds`. Raises `TrialError` if the program does not run."""
    deadline = time.monotonic() + seconds
    try:
        with RunningArms(start) as running:
            arm = running.start()
            ask(arm, replace(base, proposes=tuple(rewrites)), Loaded, seconds)
            return ask(arm, Warm(1), Warmed, max(0.0, deadline - time.monotonic())).graphs
    except ArmError as error:
        raise TrialError(
            f"the program does not run: {error.message}", error.hint or "run it by itself first"
        ) from error


def group_by_portion(candidates: Sequence[Candidate]) -> dict[str, float]:
    """Return the names under which `candidates` are tried, largest predicted saving first, with its seconds; 0: no
    prediction. Rewrites for another inner compiler are tried with it."""
    chosen = [candidate.choices[0] for candidate in candidates if candidate.rewrite == inner_choice.NAME]
    found: dict[str, float] = {}
    for candidate in candidates:
        name = chosen[0] if chosen else _TOGETHER.get(candidate.rewrite, candidate.rewrite)
        found[name] = found.get(name, 0.0) + (candidate.predicted_seconds or 0.0)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def find_choices(graphs: Sequence[MadeGraph], highest: Risk, *, isolated: bool = True) -> dict[str, Candidate]:
    """Return the inner compilers, and their options, by name, that could matter to a graph and are allowed. Memory is
    pooled for good, so that is not tried in the user's process, nor if it is pooled already."""
    found: dict[str, Candidate] = {}
    for graph in graphs:
        for one in graph.untried:
            name = one.choices[0]
            found[name] = _add_predictions(found[name], one) if name in found else one
    if not isolated or read_allocation() is not Allocation.DEFAULT:
        found.pop(inner_choice.POOLED, None)
    return {name: found[name] for name in filter_by_risk(found, highest, isolated=isolated)}


def apply_choice(
    choice: Candidate, graphs: Sequence[MadeGraph], rewrites: Sequence[str], propose: Propose
) -> tuple[MadeGraph, ...]:
    """Return a program's graphs for the compiler of `choice`, with the `rewrites` that measured times then favour.
    Inductor with another layout is tried without rewrites."""
    if not inner_choice.takes_rewrites(choice):
        return tuple(replace(graph, applied=(_get_own_choice(choice, graph),)) for graph in graphs)
    baseline = {graph.signature: _find_run_seconds(graph.untried) for graph in graphs}
    return tuple(_compare_with(baseline.get(graph.signature), graph) for graph in propose((choice,), rewrites))


def predict_step(graphs: Sequence[MadeGraph]) -> tuple[float | None, float | None]:
    """Return the seconds of a step that the plans of `graphs` save, and the price of the step; None: unknown."""
    runs = [_find_run_seconds(graph.applied) for graph in graphs]
    return _sum_known(one.predicted_seconds for graph in graphs for one in graph.applied), _sum_known(runs)


def _get_own_choice(choice: Candidate, graph: MadeGraph) -> Candidate:
    """Return the choice with its prediction for one graph."""
    return next((one for one in graph.untried if one.choices == choice.choices), choice)


def _compare_with(baseline: float | None, graph: MadeGraph) -> MadeGraph:
    """Return a graph under another compiler, whose choice saves the difference of both prices without rewrites."""
    own = _find_run_seconds(graph.applied)
    saved = None if baseline is None or own is None else baseline - own
    return replace(
        graph,
        applied=tuple(
            replace(
                one,
                predicted_seconds=saved if one.rewrite == inner_choice.NAME else one.predicted_seconds,
                run_seconds=baseline,
            )
            for one in graph.applied
        ),
    )


def _find_run_seconds(candidates: Iterable[Candidate]) -> float | None:
    return next((one.run_seconds for one in candidates if one.run_seconds is not None), None)


def _add_predictions(first: Candidate, second: Candidate) -> Candidate:
    return replace(
        first,
        predicted_seconds=_sum_known((first.predicted_seconds, second.predicted_seconds)),
        run_seconds=_sum_known((first.run_seconds, second.run_seconds)),
    )


def _sum_known(values: Iterable[float | None]) -> float | None:
    total: float | None = 0.0
    for value in values:
        total = None if total is None or value is None else total + value
    return total


def list_rewrites(portion: str) -> tuple[str, ...]:
    """The rewrites that are tried by this name."""
    return (portion, *(rewrite for rewrite, other in _TOGETHER.items() if other == portion))


def find_known_portion(together: Sequence[Candidate], portion: str) -> tuple[Candidate, ...] | None:
    """Return the proposal for `portion` alone if that for all rewrites `together` shows it, else None: the first
    rewrites are the same as they would be alone."""
    own = list_rewrites(portion)
    last = max((ALL_REWRITES.index(one.rewrite) for one in together if one.rewrite in own), default=-1)
    if any(ALL_REWRITES.index(one.rewrite) < last for one in together if one.rewrite not in own):
        return None
    return tuple(one for one in together if one.rewrite in own)

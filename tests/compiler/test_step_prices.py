"""A step is a forward and its backward; what each candidate saves is related to both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frx_graph.capture.captured_graph import Phase
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph
from frx_graph.compiler.step_prices import price_steps
from frx_graph.passes.inner_choice import EVERY_GRAPH
from frx_graph.passes.inner_choice import NAME as INNER_CHOICE
from frx_graph.records import Candidate

FORWARD = Candidate("propagate_layout", "0/0", ("conv",), predicted_seconds=-0.5, run_seconds=1.0)
BACKWARD = Candidate("backward_layout", "0/0", ("conv",), predicted_seconds=1.5, run_seconds=2.0)
ATTENTION = Candidate("attention_from_views", "0/0", ("mm",), predicted_seconds=0.25)


def choice(saved: float | None) -> Candidate:
    return Candidate(INNER_CHOICE, EVERY_GRAPH, (), ("layout_optimization_off",), saved, 1.0)


def graph(phase: Phase, *applied: Candidate, run: float | None = None, untried: tuple[Candidate, ...] = ()):
    return RewrittenGraph("0/0", phase, applied, (), untried=untried, run_seconds=run)


def test_every_candidate_has_the_price_of_the_whole_step():
    found = price_steps(
        [
            graph(Phase.FORWARD, FORWARD, run=1.0),
            graph(Phase.BACKWARD, BACKWARD, run=2.0),
        ]
    )
    assert [one.run_seconds for done in found for one in done.applied] == [3.0, 3.0]
    assert [one.predicted_seconds for done in found for one in done.applied] == [-0.5, 1.5]


def test_what_attention_saves_belongs_to_the_step_without_it():
    found = price_steps([graph(Phase.FORWARD, ATTENTION), graph(Phase.FORWARD, run=1.0)])
    assert found[0].applied[0].run_seconds == pytest.approx(1.25)


def test_a_choice_is_listed_once_with_the_gains_of_all_graphs():
    found = price_steps(
        [
            graph(Phase.FORWARD, run=1.0, untried=(choice(0.25),)),
            graph(Phase.BACKWARD, run=2.0, untried=(choice(-0.5),)),
        ]
    )
    assert [len(done.untried) for done in found] == [1, 0]
    (merged,) = found[0].untried
    assert (merged.predicted_seconds, merged.run_seconds) == (-0.25, 3.0)


def test_a_gain_that_is_unknown_in_one_graph_is_unknown():
    found = price_steps([graph(Phase.FORWARD, untried=(choice(0.25),)), graph(Phase.BACKWARD, untried=(choice(None),))])
    (merged,) = found[0].untried
    assert (merged.predicted_seconds, merged.run_seconds) == (None, None)


def test_recorded_prices_are_kept():
    (found,) = price_steps([graph(Phase.FORWARD, FORWARD)])
    assert found.applied[0].run_seconds == 1.0


def test_a_step_with_disturbed_times_has_no_price():
    disturbed = replace(graph(Phase.BACKWARD, replace(BACKWARD, run_seconds=None)), disturbed=True)
    found = price_steps([graph(Phase.FORWARD, replace(FORWARD, run_seconds=None), run=1.0), disturbed])
    assert [one.run_seconds for done in found for one in done.applied] == [None, None]
    # They still order what is tried.
    assert [one.predicted_seconds for done in found for one in done.applied] == [-0.5, 1.5]

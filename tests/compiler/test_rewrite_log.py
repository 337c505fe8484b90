"""What was done to a graph is known wherever the graph comes from."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from torch._dynamo.utils import counters

from frx_graph.capture.captured_graph import Phase
from frx_graph.compiler.rewrite_log import RewriteLog
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph
from frx_graph.records import Candidate, Refusal

DONE = RewrittenGraph(
    "0/0",
    Phase.BACKWARD,
    (Candidate("backward_layout", "0/0", ("a", "b"), ("0,2,3,1", "any"), 1e-3),),
    (Refusal("hoist_copy", 'it says "no"\nand ü', ("c",)),),
    ("clone_1",),
    "signature",
    "plan",
)


@pytest.fixture(autouse=True)
def own_counters() -> Iterator[None]:
    before = counters["inductor"].copy()
    counters["inductor"].clear()
    yield
    counters["inductor"].clear()
    counters["inductor"].update(before)


def compiled(log: RewriteLog, done: RewrittenGraph) -> dict[str, int]:
    """Compile as Inductor does: what its counters rose by is kept with the graph."""
    before = counters["inductor"].copy()
    log.add_cached(done)
    return counters["inductor"] - before


def test_rewrites_of_this_process_are_reported_once() -> None:
    log = RewriteLog()
    compiled(log, DONE)
    log.collect("0/0")
    assert log.read_all() == (DONE,)
    assert log.read_all() == (DONE,)


def test_cached_rewrites_are_reported_as_first_recorded() -> None:
    kept = compiled(RewriteLog(), DONE)
    log = RewriteLog()
    counters["inductor"] += kept
    assert log.read_all() == (DONE,)


def test_cached_rewrites_use_the_local_graph_id_and_repeat_per_hit() -> None:
    kept = compiled(RewriteLog(), DONE)
    log = RewriteLog()
    for graph_id in ("3/0", "4/0"):
        counters["inductor"] += kept
        log.collect(graph_id)
    assert [done.graph_id for done in log.read_all()] == ["3/0", "4/0"]
    assert [done.applied[0].graph_id for done in log.read_all()] == ["3/0", "4/0"]
    assert replace(log.read_all()[0], graph_id="0/0", applied=DONE.applied) == DONE


def test_reset_counters_do_not_duplicate_reports() -> None:
    log = RewriteLog()
    kept = compiled(log, DONE)
    counters.clear()
    log.collect("0/0")
    assert log.read_all() == (DONE,)
    counters["inductor"] += kept
    assert log.read_all() == (DONE, DONE)


def test_unrelated_counters_are_ignored() -> None:
    log = RewriteLog()
    counters["inductor"]["fxgraph_cache_hit"] += 1
    counters["inductor"]["frx_rewritten not ours"] += 1
    assert log.read_all() == ()

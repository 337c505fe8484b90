"""What `rewritten()` prints."""

from __future__ import annotations

from frx_graph.capture.captured_graph import Phase
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph
from frx_graph.compiler.rewritten_graphs import RewrittenGraphs
from frx_graph.records import Candidate, Refusal

APPLIED = Candidate("propagate_layout", "g", tuple(f"conv{n}" for n in range(6)), ("0,2,3,1",) * 6, None)
CHOICE = Candidate("inner_choice", "g", (), (), None)


def test_it_is_a_tuple_that_prints_a_line_for_each_outcome() -> None:
    one = RewrittenGraph("g", Phase.FORWARD, (APPLIED,), (Refusal("fold", "no\x1b[31m\nuse"),), plan="b" * 16)
    two = RewrittenGraph("h", Phase.BACKWARD, (), (), untried=(CHOICE,))
    found = RewrittenGraphs((one, two, RewrittenGraph("i", Phase.FORWARD, (), ())))
    assert found == (one, two, found[2])
    assert str(found).splitlines() == [
        f"graph g, {Phase.FORWARD.value}, plan bbbbbbbbbbbbbbbb",
        "    applied propagate_layout to conv0, conv1, conv2, conv3 and 2 more",
        "    refused fold: no[31m use",
        f"graph h, {Phase.BACKWARD.value}",
        "    left to a trial: inner_choice to the whole graph",
        f"graph i, {Phase.FORWARD.value}",
        "    nothing to change",
    ]
    assert repr(RewrittenGraphs()) == "no graph was rewritten"

from __future__ import annotations

from frx_graph.capture.call_site import CallSite
from frx_graph.records import Refusal
from frx_graph.reports.advice.refusal_groups import group_refusals


def test_same_reason_is_one_entry(root):
    site = CallSite("/project/net.py", 3, "f")
    groups = group_refusals(
        [Refusal("a", "why"), Refusal("b", "other"), Refusal("a", "why"), Refusal("c", "why", site=site)], root
    )
    assert [(g.reason, g.subjects) for g in groups] == [("why", ("a", "c (net.py:3)")), ("other", ("b",))]
    assert groups[0].listed(1) == "a and 1 more"
    assert groups[0].listed(2) == "a, c (net.py:3)"


def test_names_are_made_printable(root):
    (group,) = group_refusals([Refusal("x\x1b\ny", "r\x00\r\n::")], root)
    assert (group.reason, group.subjects) == ("r ::", ("x y",))

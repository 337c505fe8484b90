from __future__ import annotations

import dataclasses

import pytest

from frx_graph.advice import Totals
from frx_graph.capture.call_site import UNKNOWN_SITE, CallSite
from frx_graph.records import Refusal, Saving
from frx_graph.reports.advice import wording
from frx_graph.reports.advice.wording import Outcome, classify_outcome, describe_copies, format_headline, group_refusals


def test_traffic_and_time_each_state_their_basis(advice):
    predicted, measured, _, unknown = (wording.describe_impact(finding) for finding in advice.findings)
    assert predicted.lines == ("12.8 MB", "6.1–8.0 %", "of traffic", "predicted")
    assert predicted.sentence == "saves 12.8 MB or 6.1–8.0 % of traffic in a step (predicted)"
    assert measured.lines == ("4.82 MB", "2.0–3.0 %", "of traffic", "observed", "2.6 % of time", "measured")
    assert measured.sentence == (
        "saves 4.82 MB or 2.0–3.0 % of traffic in a step (observed), saves 2.6 % of the time (measured)"
    )
    assert unknown.lines == ("unknown",)
    assert unknown.sentence == "saving unknown"


def test_what_no_fix_can_save(advice):
    finding = dataclasses.replace(advice.findings[0], bytes_per_step=0, saving=Saving(0.0, 0.0))
    assert wording.describe_impact(finding).lines == ("nothing", "predicted")
    assert wording.describe_impact(finding).sentence == "nothing to save in the current program (predicted)"


def test_time_alone(advice):
    finding = dataclasses.replace(advice.findings[3], saving=Saving(measured_pct=5.0))
    assert wording.describe_impact(finding).lines == ("5.0 % of time", "measured")
    assert wording.describe_impact(finding).sentence == "saves 5.0 % of the time (measured)"


@pytest.mark.parametrize(
    ("site", "location", "place"),
    [
        (CallSite("/project/net.py", 3, "forward"), "net.py:3", "net.py:3 in forward"),
        (CallSite("/project/net.py", 0, "<unknown>"), "net.py", "net.py"),
        (UNKNOWN_SITE, "unknown call site", "unknown call site"),
        (CallSite("<unknown>", 0, "Conv2d.forward", "model.0"), "module model.0", "module model.0 in Conv2d.forward"),
    ],
)
def test_places(site, location, place, root):
    assert wording.format_location(site, root) == location
    assert wording.format_place(site, root) == place


def test_evidence(advice):
    strongest = wording.sort_evidence(advice.findings[0])
    assert [fact.source for fact in strongest] == ["oneDNN log", "contract cpu-2.15", "roofline"]
    assert wording.format_evidence(strongest[0]) == "2 reorder lines, 0.31 ms together (oneDNN log, observed)"
    assert wording.format_evidence(strongest[2]).endswith("(roofline)")


def test_machine(advice):
    assert wording.describe_machine(advice.environment) == "eager on cpu (AMD EPYC 9B14, 2 threads)"
    traced = dataclasses.replace(advice.environment, threads=None, device_name="")
    assert wording.describe_machine(traced) == "eager on cpu"
    loaded = dataclasses.replace(traced, calibrated_under_load=True)
    assert wording.describe_machine(loaded) == "eager on cpu (peaks measured under load)"


def test_four_outcomes(advice, empty, failed):
    assert classify_outcome(advice) is Outcome.FINDINGS
    assert classify_outcome(empty) is Outcome.CLEAN
    assert classify_outcome(failed) is Outcome.NOTHING_ANALYSED
    assert classify_outcome(dataclasses.replace(empty, refusals=advice.refusals)) is Outcome.PARTIAL


def test_nothing_scanned_is_nothing_analysed(empty):
    assert classify_outcome(dataclasses.replace(empty, totals=Totals(0, 0, 0, None, 0))) is Outcome.NOTHING_ANALYSED


def test_headlines_cannot_be_confused(advice, empty, failed):
    assert format_headline(advice) == (
        "4 findings in 36 operators: 4 at 4 places. 2 quick wins (one-line fix, low or medium risk)."
    )
    first, second, *others = advice.findings
    saving = dataclasses.replace(second.saving, measured_pct=None)
    idle = dataclasses.replace(second, bytes_per_step=0, saving=saving, evidence=())
    folded = dataclasses.replace(advice, findings=(first, idle, *others))
    assert "4 findings in 36 operators: 3 at 3 places, 1 with nothing to do." in format_headline(folded)
    assert format_headline(empty) == "No findings in 36 operators."
    assert format_headline(dataclasses.replace(empty, refusals=advice.refusals[:1])) == (
        "No findings to show in 36 operators; 1 thing left alone, see below."
    )
    one = dataclasses.replace(empty, refusals=advice.refusals[:1], totals=Totals(1, 0, 0, None, 0))
    assert format_headline(one) == "No findings to show in 1 operator; 1 thing left alone, see below."
    assert format_headline(failed) == "Nothing was analysed: not one operator was captured. 1 reason below."
    assert "indings" not in format_headline(failed)


def test_the_backward_has_no_function(advice, root):
    first = dataclasses.replace(advice.findings[0], copies=())
    assert wording.format_finding_place(first, root) == wording.format_place(first.site, root)
    backward = dataclasses.replace(first, title="add, sum: memory-bound, not fused (backward)")
    assert wording.format_finding_place(backward, root) == "backward of models/resnet.py:142"


def test_a_fix_among_things_to_do_keeps_every_instruction(advice):
    fix = "call `f(a=1, b=2)`, and `.contiguous()` for `x`;\nit scales by itself, so drop the scaling of q"
    joined = wording.join_fix(dataclasses.replace(advice.findings[0], fix=fix))
    assert joined == fix.replace("\n", " ")


def test_copies_sentence(advice, failed):
    assert describe_copies(advice) == "17 layout copies a step, 17.7 MB, 14.8 % of the memory traffic"
    assert "an unknown share of the memory traffic" in describe_copies(failed)


def test_same_reason_is_one_entry(root):
    site = CallSite("/project/net.py", 3, "f")
    groups = group_refusals(
        [Refusal("a", "why"), Refusal("b", "other"), Refusal("a", "why"), Refusal("c", "why", site=site)], root
    )
    assert [(g.reason, g.subjects) for g in groups] == [("why", ("a", "c (net.py:3)")), ("other", ("b",))]
    assert groups[0].format_subjects(1) == "a and 1 more"
    assert groups[0].format_subjects(2) == "a, c (net.py:3)"


def test_names_are_made_printable(root):
    (group,) = group_refusals([Refusal("x\x1b\ny", "r\x00\r\n::")], root)
    assert (group.reason, group.subjects) == ("r ::", ("x y",))

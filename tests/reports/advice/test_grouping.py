"""Findings of one place are one entry, and those that save nothing are folded."""

from __future__ import annotations

import dataclasses

from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.records import Basis
from frx_graph.reports.advice.grouping import group_findings
from frx_graph.reports.advice.text import render_text


def test_one_place_is_one_entry(advice, root):
    first, second, *others = advice.findings
    here = dataclasses.replace(second, site=first.site)
    found = group_findings([first, here, *others])
    assert [group.first for group in found.groups] == [first, *others]
    assert found.groups[0].others == (here,)
    same = dataclasses.replace(advice, findings=(first, here))
    text = render_text(same, top=5, width=80, color=False, root=root)
    assert f"also {second.rule}" in text
    assert f"Also {second.rule}" in text
    # One place needs no list of next steps.
    assert "What to do now" not in text


def test_unknown_places_are_not_one_place(advice):
    lost = [dataclasses.replace(one, site=UNKNOWN_SITE) for one in advice.findings]
    assert len(group_findings(lost).groups) == len(lost)


def test_what_saves_nothing_is_folded(advice, root):
    first, second, *_ = advice.findings
    saving = dataclasses.replace(second.saving, measured_pct=None)
    idle = dataclasses.replace(second, bytes_per_step=0, saving=saving, evidence=())
    found = group_findings([idle, first])
    assert (found.worthless, [group.first for group in found.groups]) == ((idle,), [first])
    shown = dataclasses.replace(advice, findings=(idle, first))
    text = render_text(shown, top=5, width=80, color=False, root=root)
    assert "1 finding with nothing to do by themselves" in text


def test_next_steps_end_the_report(advice, root):
    text = render_text(advice, top=5, width=80, color=False, root=root)
    steps = text.rpartition("What to do now")[2].strip().splitlines()
    different = len({one.fix for one in advice.findings})
    assert [line[:2] for line in steps if line[0] != " "] == [f"{n}." for n in range(1, different + 1)]
    assert "…" not in "".join(steps)
    assert steps[0].startswith("1. models/resnet.py:142 and 1 more place: Convert the model")
    assert f"\n\nWhat to do now\n{steps[0]}" in text
    assert "\n\n\n" not in text


def test_next_steps_name_each_fix_once(advice, root):
    first, second, *_ = advice.findings
    both = (first, dataclasses.replace(second, fix=first.fix))
    text = render_text(dataclasses.replace(advice, findings=both), top=5, width=80, color=False, root=root)
    steps = text.rpartition("What to do now")[2]
    assert "1. models/resnet.py:142 and 1 more place: Convert" in steps
    assert "2. " not in steps


def test_next_steps_leave_out_what_needs_no_change(advice, root):
    first, second, *others = advice.findings
    saving = dataclasses.replace(second.saving, measured_pct=None)
    seen = (dataclasses.replace(second.evidence[0], basis=Basis.OBSERVED),)
    idle = dataclasses.replace(second, bytes_per_step=0, saving=saving, evidence=seen, fix="Nothing at all.")
    shown = dataclasses.replace(advice, findings=(first, idle, *others))
    steps = render_text(shown, top=5, width=80, color=False, root=root).rpartition("What to do now")[2]
    assert "Nothing at all" not in steps
    assert max(map(len, steps)) <= 80

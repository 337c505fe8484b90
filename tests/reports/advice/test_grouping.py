"""Findings of one place are one entry, and those that save nothing are folded."""

from __future__ import annotations

import dataclasses

from frx_graph.capture.call_site import UNKNOWN_SITE
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
    assert "1 finding with nothing to save in the current program" in text


def test_next_steps_end_the_report(advice, root):
    text = render_text(advice, top=5, width=80, color=False, root=root)
    steps = text.rpartition("What to do now")[2].strip().splitlines()
    assert [line[:2] for line in steps if line[0] != " "] == [f"{n}." for n in range(1, len(advice.findings) + 1)]
    assert "…" not in "".join(steps)
    assert steps[0] == "1. models/resnet.py:142: Convert the model to channels_last: model ="
    assert max(map(len, steps)) <= 80

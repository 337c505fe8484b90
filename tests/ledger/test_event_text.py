from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from frx_graph.ledger.active_plans import Step, fold_steps
from frx_graph.ledger.canonical_json import dump_canonical
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.event_document import NO_EVENT, record_event
from frx_graph.ledger.trial_summary import TrialSummary, summarize_evidence
from frx_graph.records import Candidate
from frx_graph.reports.trials.event_text import format_age, group_trials, render_event, render_list, shorten_reason

NOW = datetime(2026, 3, 1, 15, 30, tzinfo=UTC)
HOSTILE = "\x1b[2J\x1b]0;title\x07 \u202egnp.exe and\tmore " + "x" * 300
HOSTILE_SETUP = {
    "setup": {"operators": {"device": "cuda", "device_name": HOSTILE, "torch": HOSTILE, "threads": 10**30}}
}


@pytest.fixture
def events(decide, promoted):
    decisions = [
        *promoted(),
        decide(Kind.APPLIED, reason="a process began with it"),
        *promoted("2", environment="c" * 16),
        decide(
            Kind.ROLLED_BACK,
            decided_by="ada",
            policy=None,
            reason="a step takes 12.4 ms, 31 % more than the 9.46 ms that the trial promised, in 50 steps in a row",
        ),
    ]
    made, previous = [], NO_EVENT
    for position, decision in enumerate(decisions, start=1):
        made.append(record_event(decision, position, previous))
        previous = made[-1].hash
    return made


def standings(events):
    environments = dict.fromkeys(event.decision.environment for event in events)
    return {
        name: fold_steps(Step.from_event(event) for event in events if event.decision.environment == name)
        for name in environments
    }


def summarize(events, tried):
    return {event.position: summarize_evidence(tried) for event in events if event.position >= tried.position}


def listed(events, **given):
    return render_list(
        events,
        **{
            "summaries": {},
            "standings": {},
            "total": len(events),
            "ledger": "/data/ledger.sqlite3",
            "now": NOW,
            "width": 80,
            "color": False,
            **given,
        },
    )


def shown(event, evidence, width=80):
    return render_event(event, summarize_evidence(evidence), None, now=NOW, width=width, color=False)


def test_list_golden(events, golden):
    golden(
        "list.txt",
        listed(events[-4:], summaries=summarize(events, events[5]), standings=standings(events), total=len(events)),
    )


def test_event_golden(events, golden):
    golden("event.txt", shown(events[2], events[1]))


def test_trial_golden(events, golden):
    golden("trial.txt", shown(events[1], events[1]))


def test_events_of_one_trial_are_one_entry(events):
    heads = [line for line in listed(events, summaries=summarize(events, events[5])).splitlines() if line[0] == "#"]
    assert heads == ["#1 to #3 promoted", "#4 applied", "#5 to #7 promoted", "#8 rolled back"]
    text = listed(events, separate=True)
    assert [line.split()[0] for line in text.splitlines() if line[0] == "#"] == [f"#{n}" for n in range(1, 9)]


def test_events_of_different_plans_or_with_others_in_between_stay_apart(events):
    names = [[event.position for event in group] for group in group_trials([events[0], *events[5:7]])]
    assert names == [[1], [6, 7]]
    # A page that begins in the middle of a trial, and events that a filter has left.
    assert [len(group) for group in group_trials(events[1:3])] == [2]
    assert [len(group) for group in group_trials([events[0], events[2]])] == [1, 1]


@pytest.mark.parametrize(
    ("fields", "known"),
    [
        # Each decision of two says which allocation it is about.
        ({"allocation": "pooled"}, ("pooled", 1.3, "promote", 36)),
        ({"allocation": "default"}, ("default", 1.1, "reject", 1)),
        # Earlier versions do not say.
        ({}, (None, 1.3, "promote", 36)),
        ({"check": None}, ("pooled", 1.3, "promote", 36)),
    ],
)
def test_summary_is_that_of_the_decisions_own_allocation(decide, fields, known):
    trial = {
        "schema": "frx_trial_v1",
        "verdict": "promote",
        "stats": {"ratio_median": 1.3, "ci_low": 1.2, "ci_high": 1.4, "quads": 36, "processes": 6},
        "environment": {"setup": {"allocation": "pooled"}},
        "check": {
            "allocation": "default",
            "ratio_median": 1.1,
            "pair_medians": [1.1],
            "samples": [{"void": False}, {"void": True}],
            "verdict": "reject",
        },
    }
    found = summarize_evidence(record_event(decide(Kind.TRIED, trial=dump_canonical({**trial, **fields})), 1, NO_EVENT))
    assert (found.allocation, found.ratio, found.verdict, found.quads) == known


def test_filtered_events_are_counted_against_all(events):
    assert listed(events, everything=18).splitlines()[-1] == "8 of 18 events in /data/ledger.sqlite3"
    assert listed(events, everything=8).splitlines()[-1] == "8 events in /data/ledger.sqlite3"


@pytest.mark.parametrize(
    ("reason", "brief"),
    [
        (
            "most likely not faster by the 3 % asked for: between 7.7 % slower and 3.2 % faster",
            "most likely not faster by the 3 % asked for",
        ),
        ("2.0 % slower (-7.7 to +3.2 %): under the 3 % asked for; more", "under the 3 % asked for"),
        ("between 2.0 % and 7.7 % slower", "between 2.0 % and 7.7 % slower"),
    ],
)
def test_reason_for_a_table_has_no_gain(decide, reason, brief):
    assert shorten_reason(decide(Kind.REJECTED, reason=reason)) == brief


def test_nothing_at_all():
    assert listed([]) == "0 events in /data/ledger.sqlite3\n"


@pytest.mark.parametrize("width", [80, 120])
def test_lines_fit_and_have_no_colour_unasked(events, width):
    texts = [listed(events, standings=standings(events), width=width)]
    texts += [shown(event, events[1], width) for event in events]
    for text in texts:
        assert "\x1b" not in text
        assert [line for line in text.splitlines() if len(line) > width or line != line.rstrip()] == []
        assert text.endswith("\n")


def test_colour_changes_no_character(events):
    coloured = listed(events, standings=standings(events), color=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == listed(events, standings=standings(events))


def test_hostile_names_stay_on_their_line(decide):
    clean = decide(Kind.PROPOSED)
    candidate = Candidate(HOSTILE, HOSTILE, (HOSTILE,) * 9, (HOSTILE,), None)
    hostile = decide(
        Kind.TRIED,
        decided_by=HOSTILE,
        host=HOSTILE,
        reason=HOSTILE,
        candidates=(candidate,) * 30,
        trial=dump_canonical(
            {
                "schema": "frx_trial_v1",
                "target": HOSTILE,
                "verdict": HOSTILE,
                "environment": HOSTILE_SETUP,
                "gates": [{"name": HOSTILE, "passed": False}],
            }
        ),
        recorded_at=clean.recorded_at,
    )
    event = record_event(hostile, 1, NO_EVENT)
    texts = [listed([event], summaries={1: summarize_evidence(event)}), shown(event, event)]
    for text in texts:
        assert text.isprintable() or set(filter(lambda c: not c.isprintable(), text)) == {"\n"}
        assert "\u202e" not in text
        assert max(map(len, text.splitlines())) <= 80
    words = " ".join(texts[1].split())
    assert "and 10 more" in words
    assert "and 3 more" in words


@pytest.mark.parametrize(
    ("fields", "known"),
    [
        ({}, {}),
        ({"verdict": "reject"}, {"verdict": "reject"}),
        ({"verdict": 3, "stats": [], "gates": "x", "environment": {"setup": []}}, {}),
        ({"stats": {"ratio_median": 1, "ci_low": 0.5, "ci_high": 2}}, {"ratio": 1.0, "low": 0.5, "high": 2.0}),
        ({"stats": {"ratio_median": True, "quads": 7, "processes": 3.5}}, {"quads": 7}),
        (
            {"gates": [{"name": "memory", "passed": False}, {"name": "strides", "passed": True}, 1]},
            {"failed": ("memory",)},
        ),
        (
            {"environment": {"setup": {"processor": "A CPU", "operators": {"device": "cpu", "threads": 2}}}},
            {"device": "A CPU", "threads": 2},
        ),
        (
            {"environment": {"setup": {"processor": "A CPU", "operators": {"device": "cuda", "device_name": "A GPU"}}}},
            {"device": "A GPU"},
        ),
    ],
)
def test_trial_summary(decide, fields, known):
    trial = dump_canonical({"schema": "frx_trial_v1", **fields})
    found = summarize_evidence(record_event(decide(Kind.TRIED, trial=trial), 1, NO_EVENT))
    unknown = {name: () if name == "failed" else None for name in TrialSummary.model_fields if name != "event"}
    assert found == TrialSummary(**{**unknown, **known, "event": 1})


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (timedelta(seconds=-5), "just now"),
        (timedelta(seconds=59), "just now"),
        (timedelta(minutes=1), "1 minute ago"),
        (timedelta(minutes=119), "119 minutes ago"),
        (timedelta(hours=47), "47 hours ago"),
        (timedelta(days=2), "2 days ago"),
    ],
)
def test_age(age, text):
    assert format_age(age) == text

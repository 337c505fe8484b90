from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta, timezone

import pytest

from frx_graph.ledger.decision import Author, Kind, make_expiry, make_process_author
from frx_graph.records import Candidate


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"signature": "A" * 16}, "signature is not sixteen"),
        ({"signature": "a" * 16 + "\n"}, "signature is not sixteen"),
        ({"environment": ""}, "environment is not sixteen"),
        ({"policy": "x"}, "policy is not sixteen"),
        ({"reason": "one\ntwo"}, "reason is not one line"),
        ({"reason": " "}, "reason is not one line"),
        ({"decided_by": ""}, "decided_by is not one line"),
        ({"host": "a\0b"}, "host is not one line"),
        ({"process_id": -1}, "no process"),
        ({"recorded_at": datetime(2026, 1, 1)}, "no time zone"),
        ({"trial": "{"}, "not JSON"),
        ({"trial": "[]"}, "not an frx_trial_v1"),
        ({"trial": '{"schema": "frx_trial_v2"}'}, "not an frx_trial_v1 document.*frx_trial_v2"),
        ({"trial": '{"schema": "frx_trial_v1", "x": NaN}'}, "not JSON"),
        ({"trial": '{"schema": "frx_trial_v1", "x": 1e999}'}, "not JSON"),
        ({"trial": "[" * 100_000}, "not JSON"),
        ({"candidates": (Candidate("r", "0", ("n",), (), float("nan")),)}, "finite"),
    ],
)
def test_invalid_decision_is_refused(decide, fields, message):
    with pytest.raises(ValueError, match=message):
        decide(Kind.PROPOSED, **fields)


def test_times_are_kept_in_utc(decide):
    there = timezone(timedelta(hours=2))
    made = decide(Kind.PROPOSED, recorded_at=datetime(2026, 1, 1, 1, tzinfo=there))
    assert made.recorded_at == datetime(2025, 12, 31, 23, tzinfo=UTC)
    assert made.recorded_at.tzinfo is UTC


def test_equivalent_trial_documents_are_equal(decide):
    first = decide(Kind.TRIED, trial='{"schema":"frx_trial_v1","x":[1,2.50]}')
    second = dataclasses.replace(first, trial='{ "x": [1, 2.5], "schema": "frx_trial_v1" }')
    assert first == second
    assert hash(first) == hash(second)
    assert first != dataclasses.replace(first, trial='{"schema":"frx_trial_v1","x":[2.5,1]}')


def test_follow_up_carries_no_evidence(decide):
    tried = decide(Kind.TRIED)
    at = tried.recorded_at + timedelta(days=1)
    after = tried.make_follow_up(Kind.ROLLED_BACK, reason="slower", by=Author("ada", "there", 3), at=at)
    assert after == dataclasses.replace(
        tried,
        kind=Kind.ROLLED_BACK,
        reason="slower",
        decided_by="ada",
        host="there",
        process_id=3,
        recorded_at=at,
        policy=None,
        trial=None,
    )


def test_author_is_set_even_if_the_user_has_no_name(monkeypatch):
    def nobody() -> str:
        raise KeyError("uid not found")

    assert make_process_author("frx trial").decided_by == "frx trial"
    assert make_process_author().decided_by
    monkeypatch.setattr("getpass.getuser", nobody)
    assert make_process_author().decided_by.startswith("user ")


@pytest.mark.parametrize(("age", "expired"), [(-1.0, False), (7.0, False), (7.01, True)])
def test_expiry_is_a_matter_of_age_alone(decide, age, expired):
    promotion = decide(Kind.PROMOTED)
    now = promotion.recorded_at + timedelta(days=age)
    found = make_expiry(promotion, timedelta(days=7), now=now, by=Author("autopilot", "here", 1))
    assert (found is not None) is expired
    if found is not None:
        assert (found.kind, found.plan, found.recorded_at) == (Kind.EXPIRED, promotion.plan, now)
        assert found.policy == promotion.policy
        assert "7.0 days" in found.reason

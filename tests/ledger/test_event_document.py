from __future__ import annotations

import hashlib
import json
from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.errors import LedgerError
from frx_graph.ledger.canonical_json import dump_canonical
from frx_graph.ledger.decision import Decision, Kind
from frx_graph.ledger.event_document import NO_EVENT, export_event, format_time, read_event, record_event
from frx_graph.records import Candidate

names = st.text("0123456789abcdef", min_size=16, max_size=16)
texts = st.text().filter(lambda text: bool(text.strip()) and "\0" not in text and text.splitlines() == [text])
numbers = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
trials = st.dictionaries(st.text(), values, max_size=3).map(lambda d: json.dumps({**d, "schema": "frx_trial_v1"}))
candidates = st.builds(
    Candidate,
    rewrite=st.text(),
    graph_id=st.text(),
    nodes=st.lists(st.text(), max_size=3).map(tuple),
    choices=st.lists(st.text(), max_size=3).map(tuple),
    predicted_seconds=st.none() | numbers,
    run_seconds=st.none() | numbers,
)
decisions = st.builds(
    Decision,
    kind=st.sampled_from(Kind),
    signature=names,
    environment=names,
    plan=names,
    reason=texts,
    decided_by=texts,
    host=texts,
    process_id=st.integers(0, 2**31),
    recorded_at=st.datetimes(timezones=st.just(UTC)),
    policy=st.none() | names,
    candidates=st.lists(candidates, max_size=2).map(tuple),
    trial=st.none() | trials,
)


@given(decisions, st.integers(1, 10**9))
def test_written_event_is_read_back(decision, position):
    event = record_event(decision, position, NO_EVENT)
    assert event.document.isascii()
    assert read_event(event.document, event.hash) == event
    # Whoever has nothing but the exported line can work the hash out.
    line = json.loads(dump_canonical(export_event(event)))
    stated = line.pop("hash")
    text = json.dumps(line, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == stated


@given(st.datetimes(timezones=st.just(UTC)), st.datetimes(timezones=st.just(UTC)))
def test_times_as_text_have_the_order_of_the_times(first, second):
    assert (format_time(first) < format_time(second)) == (first < second)


def test_the_hash_changes_with_everything_in_an_event(decide):
    event = record_event(decide(Kind.TRIED), 2, "1" * 64)
    changed = [record_event(event.decision, 3, "1" * 64), record_event(event.decision, 2, "2" * 64)]
    for field, value in [
        ("kind", Kind.REJECTED),
        ("signature", "0" * 16),
        ("environment", "0" * 16),
        ("plan", "0"),
        ("reason", "another"),
        ("decided_by", "ada"),
        ("host", "there"),
        ("process_id", 8),
        ("policy", None),
        ("candidates", ()),
        ("trial", None),
    ]:
        fields = {name: getattr(event.decision, name) for name in ("reason", "recorded_at", "trial")}
        changed.append(record_event(decide(**{"kind": Kind.TRIED, **fields, field: value}), 2, "1" * 64))
    assert len({each.hash for each in [event, *changed]}) == len(changed) + 1


def test_fields_of_a_later_version_are_passed_over_and_kept(decide):
    event = record_event(decide(Kind.PROPOSED), 1, NO_EVENT)
    document = dump_canonical({**json.loads(event.document), "mood": "good"})
    read = read_event(document, event.hash)
    assert read.decision == event.decision
    assert export_event(read)["mood"] == "good"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "frx_ledger_event_v2"}, "frx_ledger_event_v2.*newer frx-graph"),
        ({"schema": "other"}, "schema: Input should be 'frx_ledger_event_v1'"),
        ({"kind": "guessed"}, "kind: Input should be 'proposed'"),
        ({"position": 0}, "position"),
        ({"signature": "short"}, "signature"),
        ({"recorded_at": "yesterday"}, "is malformed"),
        ({"recorded_at": "2026-01-01T00:00:00"}, "time zone"),
        ({"reason": "two\nlines"}, "one line"),
        ({"trial": {"schema": "x"}}, "frx_trial_v1"),
        ({"candidates": [{}]}, r"candidates\.0\.rewrite"),
    ],
)
def test_invalid_event_is_refused(decide, change, message):
    event = record_event(decide(Kind.PROPOSED), 1, NO_EVENT)
    with pytest.raises(LedgerError, match=message):
        read_event(dump_canonical({**json.loads(event.document), **change}), event.hash)


@pytest.mark.parametrize("document", ["", "null", "[]", "{", '{"schema": NaN}', "[" * 100_000])
def test_malformed_document_is_refused(document):
    with pytest.raises(LedgerError, match="is malformed"):
        read_event(document, NO_EVENT)

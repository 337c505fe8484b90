"""`verify` finds every kind of change, and names the first event that is wrong."""

from __future__ import annotations

import json
import re
import sqlite3

import pytest

from frx_graph.errors import LedgerError
from frx_graph.ledger.canonical_json import dump_canonical, hash_content
from frx_graph.ledger.database.opening import open_ledger, open_to_read
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.event_document import NO_EVENT, make_event_row, record_event
from frx_graph.ledger.verification import Problem, Verification, verify, verify_rows


@pytest.fixture
def rows(decide, promoted):
    """What a ledger of five events holds: proposed, tried, promoted, applied, rolled back."""
    made, previous = [], NO_EVENT
    for position, decision in enumerate([*promoted(), decide(Kind.APPLIED), decide(Kind.ROLLED_BACK)], start=1):
        event = record_event(decision, position, previous)
        previous = event.hash
        made.append(make_event_row(event))
    return made


def chained(documents):
    """Rows of documents that were changed by somebody who knows how hashes are made."""
    previous, made = NO_EVENT, []
    for position, document in enumerate(documents, start=1):
        text = dump_canonical({**document, "position": position, "previous": previous})
        columns = {name: document[name] for name in ("kind", "signature", "environment", "plan", "decided_by")}
        previous_hash, previous = previous, hash_content(text)
        made.append(
            {
                **columns,
                "position": position,
                "hash": previous,
                "previous": previous_hash,
                "recorded_at": document["recorded_at"],
                "document": text,
            }
        )
    return made


def test_appended_rows_verify(rows):
    assert verify_rows(rows) == Verification(5, None)
    assert verify_rows([]) == Verification(0, None)
    assert verify_rows(chained([json.loads(row["document"]) for row in rows])) == Verification(5, None)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("document", "{}", "its hash does not match its content"),
        ("document", None, "its hash does not match its content"),
        ("hash", "0" * 64, "its hash does not match its content"),
        ("previous", "1" * 64, "does not follow the previous event"),
        ("position", 9, "missing: the next one is event 9"),
        ("kind", "rejected", "another kind"),
        ("signature", "0" * 16, "another signature"),
        ("environment", "0" * 16, "another environment"),
        ("plan", "0" * 16, "another plan"),
        ("decided_by", "ada", "another decided by"),
        ("recorded_at", "2020-01-01T00:00:00.000000Z", "another recorded at"),
    ],
)
def test_a_changed_column(rows, column, value, message):
    assert rows[1][column] != value
    rows[1][column] = value
    found = verify_rows(rows)
    assert found.sound == 1
    assert found.problem.position == 2
    assert message in found.problem.what


def test_an_event_that_was_taken_out(rows):
    assert verify_rows(rows[1:]).problem == Problem(1, "it is missing: the next one is event 2")
    assert verify_rows(rows[:2] + rows[3:]).problem == Problem(3, "it is missing: the next one is event 4")


def test_two_events_that_changed_places(rows):
    assert verify_rows([rows[1], rows[0], *rows[2:]]).problem.position == 1


def test_a_changed_event_with_a_new_hash_breaks_the_chain_behind_it(rows):
    document = {**json.loads(rows[1]["document"]), "reason": "faster by far"}
    rows[1]["document"] = dump_canonical(document)
    rows[1]["hash"] = hash_content(rows[1]["document"])
    assert verify_rows(rows) == Verification(
        2, Problem(3, "it does not follow the previous event: that was changed, or an event was removed")
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "frx_ledger_event_v2"}, "frx_ledger_event_v2"),
        ({"recorded_at": "noon"}, "is malformed"),
        ({"reason": ""}, "one line"),
    ],
)
def test_an_event_in_another_form(rows, change, message):
    documents = [json.loads(row["document"]) for row in rows]
    documents[2] |= change
    found = verify_rows(chained(documents))
    assert found.problem.position == 3
    assert message in found.problem.what


@pytest.mark.parametrize(
    ("left_out", "position", "message"),
    [
        (0, 1, "cannot be tried .* was never proposed"),
        (1, 2, "cannot be promoted .* is proposed since event 1"),
        (2, 3, "cannot be applied .* is tried since event 2"),
    ],
)
def test_a_decision_that_must_not_follow(rows, left_out, position, message):
    documents = [json.loads(row["document"]) for row in rows]
    del documents[left_out]
    found = verify_rows(chained(documents))
    assert found.sound == position - 1
    assert found.problem.position == position
    assert re.search(message, found.problem.what)


def test_applied_in_one_environment_after_a_promotion_in_another(rows):
    documents = [json.loads(row["document"]) for row in rows]
    documents[3]["environment"] = "c" * 16
    assert verify_rows(chained(documents)).problem.position == 4


def test_a_ledger_that_was_changed_by_hand(location, promoted, changed_by_hand):
    open_ledger(location).append(promoted())
    changed_by_hand("UPDATE frx_ledger_events SET document = replace(document, 'reason 2', 'reason 9')")
    assert verify(open_to_read(location)) == Verification(
        1, Problem(2, "it was changed: its hash does not match its content")
    )


@pytest.mark.in_a_file
def test_non_utf8_bytes_are_found_at_their_position(location, promoted):
    open_ledger(location).append(promoted())
    content = location.file.read_bytes()
    assert content.count(b"reason 2") == 1
    location.file.write_bytes(content.replace(b"reason 2", b"reaso\xff 2"))
    assert verify(open_to_read(location)).problem.position == 2


@pytest.mark.in_a_file
def test_sqlites_own_check(location, decide):
    open_ledger(location).append([decide(Kind.PROPOSED, reason="r" * 3000) for _ in range(20)])
    with sqlite3.connect(location.file) as connection:
        page = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.close()
    content = location.file.read_bytes()
    location.file.write_bytes(content[:-page] + bytes(page))
    found = verify(open_to_read(location))
    assert found.problem.position is None
    assert "the database's own check failed" in found.problem.what


@pytest.mark.in_a_file
def test_inconsistent_index_is_found(location, promoted):
    """All rows are right, and a query by their signature would not find them."""
    open_ledger(location).append(promoted())
    with sqlite3.connect(location.file) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'frx_ledger_standing'").fetchone()
        page = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.close()
    content = bytearray(location.file.read_bytes())
    index = content[(root - 1) * page : root * page]
    assert index.count(b"a" * 16) == 3
    content[(root - 1) * page : root * page] = index.replace(b"a" * 16, b"e" * 16)
    location.file.write_bytes(content)
    assert "own check" in verify(open_to_read(location)).problem.what


@pytest.mark.in_a_file
def test_a_ledger_that_went_away(location, promoted):
    ledger = open_ledger(location)
    location.file.unlink()
    with pytest.raises(LedgerError, match="cannot be opened"):
        verify(ledger)
    with pytest.raises(LedgerError, match="cannot be opened"):
        ledger.append(promoted())
    assert not location.file.exists()

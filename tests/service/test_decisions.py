"""The ledger over HTTP, and as pages."""

from __future__ import annotations

import pytest

from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.location import Location
from frx_graph.service.decisions import DecisionBook
from frx_graph.service.http.problem import ProblemError


@pytest.fixture
def book(tmp_path, decide) -> DecisionBook:
    location = Location(tmp_path / "ledger.sqlite3")
    source = open_ledger(location)
    hostile = "<script>alert(1)</script>"
    for number in range(7):
        kind = (Kind.PROPOSED, Kind.TRIED, Kind.PROMOTED)[number % 3]
        source.append([decide(kind, str(number // 3 + 1), reason=f"{hostile} {number}", decided_by=hostile)])
    return DecisionBook(location)


def test_the_last_are_shown_and_older_ones_follow(book):
    found = book.read_last(limit=3)
    assert [event.position for event in found.events] == [5, 6, 7]
    assert (found.total, found.older) == (7, 5)
    found = book.read_last(limit=3, before=found.older)
    assert [event.position for event in found.events] == [2, 3, 4]
    found = book.read_last(limit=3, before=found.older)
    assert ([event.position for event in found.events], found.older, found.total) == ([1], None, 7)


def test_only_those_of_a_kind_or_graph(book):
    assert [event.position for event in book.read_last(kind=Kind.TRIED, limit=9).events] == [2, 5]
    assert book.read_last(signature="a" * 16, limit=9).total == 7
    assert book.read_last(signature="b" * 16, limit=9).total == 0


def test_an_event_and_the_trial_that_it_rests_on(book):
    event, evidence = book.read_event(3)
    assert event.decision.kind is Kind.PROMOTED
    assert evidence is not None
    assert evidence.position == 2
    with pytest.raises(ProblemError, match="no event 8"):
        book.read_event(8)


def test_a_ledger_that_is_not_there_has_no_decisions(tmp_path):
    book = DecisionBook(Location(tmp_path / "missing.sqlite3"))
    assert book.read_last(limit=9).total == 0
    with pytest.raises(ProblemError, match="no event 1"):
        book.read_event(1)
    assert not (tmp_path / "missing.sqlite3").exists()


def test_non_ledger_file_is_reported(tmp_path):
    file = tmp_path / "notes.sqlite3"
    file.write_bytes(b"not a database" * 100)
    with pytest.raises(ProblemError) as raised:
        DecisionBook(Location(file)).read_last(limit=9)
    assert raised.value.status_code == 503


def test_the_endpoints_and_the_pages(client, ledger_file, decide):
    hostile = "<script>alert(1)</script>"
    source = open_ledger(Location(ledger_file))
    events = [decide(Kind.PROPOSED, reason=hostile), decide(Kind.TRIED), decide(Kind.PROMOTED, reason=hostile)]
    first = source.append(events)[0].position
    found = client.get("/ledger/events", params={"signature": "a" * 16, "limit": 2}).json()
    assert [event["position"] for event in found["events"]] == [first + 1, first + 2]
    assert found["plans"][0]["stands"] is True
    assert client.get("/ledger/events", params={"kind": "promoted"}).json()["total"] >= 1
    assert client.get(f"/ledger/events/{first}").json()["events"][0]["reason"] == hostile
    for params in ({"limit": 0}, {"limit": 501}, {"kind": "no"}, {"signature": "A" * 16}, {"before": 2**31}):
        assert client.get("/ledger/events", params=params).status_code == 422
    listed = client.get("/decisions", headers={"Accept": "text/html"}).text
    assert hostile not in listed
    assert "&lt;script&gt;alert(1)" in listed
    # The events of one trial are one row.
    assert f'href="/decisions/{first + 2}">{first + 2}</a><br><span class="quiet">from <a href' in listed
    assert f'href="/decisions/{first + 1}"' not in listed
    shown = client.get(f"/decisions/{first + 2}").text
    assert f">decision {first + 1}</a>" in shown
    assert client.get("/decisions", params={"kind": "rolled back", "signature": ""}).status_code == 200
    assert client.get("/decisions", params={"kind": "no"}).status_code == 422
    answer = client.get("/decisions/9999", headers={"Accept": "text/html"})
    assert answer.status_code == 404
    assert "there is no event 9999" in answer.text

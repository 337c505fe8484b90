"""The short way to a SQLite ledger does what the ledger's own does, or leaves it to that."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frx_graph.errors import LedgerError, LedgerMissingError
from frx_graph.ledger import plain_file as module
from frx_graph.ledger.database.opening import open_ledger, open_to_read
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.fast_path import append_decisions, find_promotion_elsewhere, read_promotions
from frx_graph.ledger.location import Location, parse_location
from frx_graph.ledger.plain_file import NotPlainError, open_plain_file
from frx_graph.ledger.verification import verify
from frx_graph.support.supervisor.process import extend_pythonpath

pytestmark = pytest.mark.in_a_file

GRAPH, HERE, THERE = "a" * 16, "b" * 16, "c" * 16


def changed(location: Location, sql: str) -> None:
    assert location.file is not None
    with sqlite3.connect(location.file) as connection:
        connection.execute(sql)
    connection.close()


choices = st.lists(
    st.tuples(st.sampled_from(Kind), st.sampled_from("12"), st.sampled_from([HERE, THERE]), st.booleans()), max_size=12
)


@pytest.mark.integration
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choices)
def test_both_ways_append_and_find_the_same(tmp_path_factory, decide, chosen) -> None:
    folder = tmp_path_factory.mktemp("ledgers")
    plain, own = (parse_location(str(folder / name)) for name in ("plain", "own"))
    ways: dict[Location, list[Callable[..., object]]] = {
        plain: [append_decisions, open_ledger(plain).append],
        own: [open_ledger(own).append] * 2,
    }
    for kind, plan, environment, shortly in chosen:
        decision = decide(kind, plan, environment=environment)
        outcomes = []
        for location, (first, second) in ways.items():
            way = (
                (lambda ds, at=location: append_decisions(at, ds)) if shortly and first is append_decisions else second
            )
            try:
                outcomes.append(way([decision]))
            except LedgerError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
    for environment in (HERE, THERE):
        expected = open_to_read(own).read_promotions(GRAPH, environment)
        assert plain.file is not None
        with open_plain_file(plain.file) as ledger:
            assert ledger.read_promotions(GRAPH, environment) == expected
            assert ledger.read_decided(GRAPH, environment) == open_to_read(own).read_decided(GRAPH, environment)
            assert ledger.read_steps_by_environment(GRAPH) == open_to_read(own).read_steps_by_environment(GRAPH)
    assert verify(open_to_read(plain)).problem is None


def test_all_of_an_append_or_none(location, decide, promoted) -> None:
    open_ledger(location)
    assert location.file is not None
    with pytest.raises(LedgerError, match="is rolled back since event 4"), open_plain_file(location.file) as ledger:
        ledger.append([*promoted(), decide(Kind.ROLLED_BACK), decide(Kind.APPLIED)])
    assert open_to_read(location).count_events() == 0


def test_plan_rolled_back_meanwhile_cannot_be_applied(location, decide, promoted) -> None:
    append_decisions(location, promoted())
    assert len(read_promotions(location, GRAPH, HERE)) == 1
    open_ledger(location).append([decide(Kind.ROLLED_BACK)])
    with pytest.raises(LedgerError, match="is rolled back since event 4"):
        append_decisions(location, [decide(Kind.APPLIED)])
    assert read_promotions(location, GRAPH, HERE) == ()


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO frx_ledger_version VALUES (99)",
        "DROP TABLE frx_ledger_version",
        "DROP TABLE frx_ledger_events",
        "PRAGMA journal_mode=DELETE",
    ],
)
def test_what_is_out_of_the_ordinary_is_left_to_the_ledgers_own_way(location, promoted, sql: str) -> None:
    open_ledger(location).append(promoted()[:1])
    changed(location, sql)
    assert location.file is not None
    with pytest.raises(NotPlainError), open_plain_file(location.file) as ledger:
        ledger.read_promotions(GRAPH, HERE)


def test_a_locked_one_too(location, decide, monkeypatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.01)
    open_ledger(location)
    assert location.file is not None
    other = sqlite3.connect(location.file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(NotPlainError, match="locked"), open_plain_file(location.file) as ledger:
        ledger.append([decide(Kind.PROPOSED)])
    other.execute("ROLLBACK")
    other.close()
    assert open_to_read(location).count_events() == 0


def test_damaged_file_gives_the_ledgers_error(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    file.write_bytes(b"no database at all" * 100)
    with pytest.raises(LedgerError, match="is not a SQLite database"):
        read_promotions(parse_location(str(file)), GRAPH, HERE)


def test_plan_active_elsewhere_is_reported_if_nothing_was_decided_here(location, decide, promoted) -> None:
    append_decisions(location, promoted(environment=THERE))
    assert find_promotion_elsewhere(location, GRAPH, HERE) is not None
    assert find_promotion_elsewhere(location, GRAPH, THERE) is None
    assert find_promotion_elsewhere(location, "e" * 16, HERE) is None
    append_decisions(location, [decide(Kind.PROPOSED, environment=HERE)])
    assert find_promotion_elsewhere(location, GRAPH, HERE) is None
    append_decisions(location, [decide(Kind.ROLLED_BACK, environment=THERE)])
    assert find_promotion_elsewhere(location, GRAPH, "e" * 16) is None


def test_a_missing_one_is_made_by_an_append_and_by_nothing_else(location, decide) -> None:
    with pytest.raises(LedgerMissingError):
        read_promotions(location, GRAPH, HERE)
    assert location.file is not None
    assert not location.file.exists()
    append_decisions(location, [decide(Kind.PROPOSED)])
    assert open_to_read(location).count_events() == 1


@pytest.mark.integration
def test_the_short_way_imports_no_database(location, promoted) -> None:
    append_decisions(location, promoted())
    script = (
        "import sys\n"
        "from frx_graph.promotion.lookup import PromotedPlans\n"
        "from frx_graph.ledger.location import parse_location\n"
        "from frx_graph.ledger.fast_path import append_decisions, read_promotions\n"
        "from frx_graph.ledger.decision import Kind\n"
        "place = parse_location(sys.argv[1])\n"
        f"(found,) = read_promotions(place, {GRAPH!r}, {HERE!r})\n"
        "import dataclasses\n"
        "append_decisions(place, [dataclasses.replace(found.decision, kind=Kind.APPLIED)])\n"
        "heavy = {'sqlalchemy', 'alembic', 'psycopg', 'scipy.stats', 'frx_graph.autopilot.search'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    command = [sys.executable, "-c", script, str(location.file)]
    subprocess.run(command, env={**extend_pythonpath()}, check=True, timeout=120)
    assert open_to_read(location).read_events()[-1].decision.kind is Kind.APPLIED

"""What a ledger needs of PostgreSQL, and what it says where it does not get it."""

from __future__ import annotations

import sys

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from frx_graph.errors import LedgerError, LedgerMissingError, LedgerUnreachableError
from frx_graph.ledger.database import engine, transaction
from frx_graph.ledger.database.database_errors import explain_database_error, is_lost_connection
from frx_graph.ledger.database.engine import WRITING, Access
from frx_graph.ledger.database.opening import check_writable, open_ledger, open_to_read
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.location import parse_location
from frx_graph.ledger.verification import Verification, verify


@pytest.fixture
def schema(postgres):
    return postgres.new_schema()


@pytest.fixture
def location(postgres, schema):
    return parse_location(postgres.url(schema=schema))


@pytest.fixture
def without_waiting(monkeypatch):
    """Nothing may be asked again."""

    def wait(_low, _high):
        pytest.fail("it was to be asked again")

    monkeypatch.setattr(transaction.random, "uniform", wait)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_any_name_of_postgresql_is_psycopgs(scheme):
    location = parse_location(f"{scheme}://ada:geheim@host/decisions")
    assert str(location) == "postgresql+psycopg://ada:***@host/decisions"


@pytest.mark.parametrize("scheme", ["postgresql+psycopg2", "postgresql+asyncpg"])
def test_other_drivers_are_refused(scheme):
    with pytest.raises(LedgerError, match=r"cannot use postgresql\+.*write postgresql://"):
        parse_location(f"{scheme}://ada:geheim@host/decisions")


def test_without_the_driver_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(LedgerError, match=r"needs the package psycopg \(pip install 'frx-graph\[postgres\]'\)"):
        engine.make_ledger_engine(parse_location("postgresql://host/decisions"), Access.READ)


@pytest.mark.parametrize("user_and_database", [("nobody_here", "postgres"), ("postgres", "nothing_here")])
def test_server_refusal_is_reported_at_once(postgres, user_and_database, without_waiting):
    user, database = user_and_database
    url = postgres.url(user=user).replace("/postgres?", f"/{database}?")
    for opened in (open_ledger, open_to_read):
        with pytest.raises(LedgerError, match=r"cannot be used: .* does not exist"):
            opened(parse_location(url))


def test_a_server_that_is_not_there(tmp_path):
    location = parse_location(f"postgresql://ada:geheim@/decisions?host={tmp_path}")
    for opening in (lambda: open_ledger(location, patience_seconds=0.1), lambda: open_to_read(location)):
        with pytest.raises(LedgerUnreachableError, match="cannot be reached") as error:
            opening()
        assert "geheim" not in str(error.value)


@pytest.mark.parametrize(
    ("said", "comes"),
    [
        ("FATAL:  the database system is starting up", True),
        ("FATAL:  das Datenbanksystem startet", True),
        ("FATAL:  tut mir leid, schon zu viele Verbindungen", True),
        ("ВАЖНО:  система баз данных запускается", True),
        ("Connection refused\n\tIs the server running on that host?", True),
        ('FATAL:  password authentication failed for user "ada"', False),
        ('FATAL:  role "ada" does not exist', False),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.7"', False),
        ("fe_sendauth: no password supplied", False),
    ],
)
def test_which_servers_will_come_in_any_language(said, comes):
    """What is known to be a refusal is one; before there is a connection there is no code, only the server's words."""
    error = OperationalError("", {}, psycopg.OperationalError(f"connection failed: server at 10.0.0.1 failed: {said}"))
    assert is_lost_connection(error) is comes
    told = explain_database_error(error, parse_location("postgresql://ada@host/decisions"))
    assert isinstance(told, LedgerUnreachableError) is comes


def test_a_server_that_is_not_there_yet(tmp_path, location, postgres, monkeypatch):
    """Whoever is to append asks again."""
    late = parse_location(location.url.render_as_string(False).replace(str(postgres.socket.parent), str(tmp_path)))

    def come(_low, _high):
        (tmp_path / postgres.socket.name).symlink_to(postgres.socket)
        return 0.0

    monkeypatch.setattr(transaction.random, "uniform", come)
    assert open_ledger(late).count_events() == 0


def test_a_locked_table_is_not_waited_for_without_end(location, postgres, schema, promoted, monkeypatch):
    monkeypatch.setattr(engine, "_READ", "SET LOCAL lock_timeout = '50ms'")
    open_ledger(location).append(promoted())
    with psycopg.connect(host=str(postgres.socket.parent), user="postgres") as other:
        other.execute(f"LOCK TABLE {schema}.frx_ledger_events IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(LedgerError, match="is locked by another process"):
            open_to_read(location).count_events()
    assert open_to_read(location).count_events() == 3


def test_another_programs_tables_stay_beside_a_ledgers(location, changed_by_hand, promoted):
    changed_by_hand("CREATE TABLE recipes (name TEXT)")
    changed_by_hand("CREATE TABLE alembic_version (version_num TEXT)")
    with pytest.raises(LedgerMissingError):
        open_to_read(location)
    open_ledger(location).append(promoted())
    assert verify(open_to_read(location)) == Verification(3, None)


def test_commits_wait_for_the_disk_whatever_the_databases_default(postgres, schema):
    postgres.execute("DROP ROLE IF EXISTS hasty; CREATE ROLE hasty LOGIN SUPERUSER")
    postgres.execute("ALTER ROLE hasty SET synchronous_commit = off; ALTER ROLE hasty SET lock_timeout = 0")
    ledger = open_ledger(parse_location(postgres.url(schema=schema, user="hasty")))
    with ledger._engine.begin() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "off"
    with ledger._engine.connect().execution_options(**{WRITING: True}) as connection, connection.begin():
        shown = {name: connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in SETTINGS}
    assert shown == SETTINGS


SETTINGS = {"synchronous_commit": "on", "lock_timeout": "2s", "idle_in_transaction_session_timeout": "10s"}


def test_a_lock_that_is_never_given_up(location, postgres, decide, monkeypatch):
    monkeypatch.setattr(engine, "_WRITE", engine._WRITE.replace("'2s'", "'10ms'"))
    impatient = open_ledger(location, patience_seconds=0)
    lock = engine._WRITE.splitlines()[-1]
    with psycopg.connect(host=str(postgres.socket.parent), user="postgres") as other:
        other.execute(lock)
        with pytest.raises(LedgerError, match="is locked by another process"):
            impatient.append([decide(Kind.PROPOSED)])
        assert open_to_read(location).count_events() == 0  # readers do not wait
    impatient.append([decide(Kind.PROPOSED)])
    assert impatient.count_events() == 1


def test_a_role_that_may_only_add(location, postgres, schema, decide, promoted, without_waiting):
    open_ledger(location).append(promoted())
    postgres.execute(
        f"DROP ROLE IF EXISTS adding; CREATE ROLE adding LOGIN; GRANT USAGE ON SCHEMA {schema} TO adding;"
        f"GRANT SELECT, INSERT ON {schema}.frx_ledger_events TO adding;"
        f"GRANT SELECT, UPDATE ON {schema}.frx_ledger_version TO adding"
    )
    its = parse_location(postgres.url(schema=schema, user="adding"))
    check_writable(its)
    open_ledger(its).append([decide(Kind.APPLIED)])
    assert verify(open_to_read(its)) == Verification(4, None)
    with psycopg.connect(host=str(postgres.socket.parent), dbname="postgres", user="adding") as hers:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            hers.execute(f"DELETE FROM {schema}.frx_ledger_events")
        hers.rollback()
    postgres.execute(f"REVOKE INSERT ON {schema}.frx_ledger_events FROM adding")
    with pytest.raises(LedgerError, match="permission denied for table frx_ledger_events"):
        open_ledger(its).append([decide(Kind.APPLIED)])

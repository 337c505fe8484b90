"""`frx ledger` as it is typed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from frx_graph.cli.main import run
from frx_graph.ledger.database.opening import open_ledger, open_to_read
from frx_graph.ledger.decision import Decision, Kind
from frx_graph.ledger.location import parse_location
from frx_graph.ledger.schema import LedgerDocument
from frx_graph.ledger.store import Ledger

GRAPH, HERE, THERE = "a" * 16, "b" * 16, "c" * 16
Frx = Callable[..., tuple[int, str, str]]


def decision(kind: Kind, plan: str = "1", environment: str = HERE) -> Decision:
    return Decision(
        kind=kind,
        signature=GRAPH,
        environment=environment,
        plan=plan * 16,
        reason="because",
        decided_by="autopilot",
        host="here",
        process_id=7,
        recorded_at=datetime(2026, 3, 1, 12, tzinfo=UTC),
        trial='{"schema": "frx_trial_v1", "verdict": "promote"}' if kind is Kind.TRIED else None,
    )


def promoted(*where: str) -> list[Decision]:
    return [decision(kind, *where) for kind in (Kind.PROPOSED, Kind.TRIED, Kind.PROMOTED)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, and a data folder, without a ledger or a pyproject.toml of anybody's."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("FRX_LEDGER", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


@pytest.fixture
def ledger(home: Path) -> Ledger:
    """The default ledger with two promoted plans, each in its environment."""
    made = open_ledger(parse_location(str(home / "data" / "frx-graph" / "ledger.sqlite3")))
    made.append([*promoted(), *promoted("2", THERE)])
    return made


@pytest.fixture
def frx(home: Path, capsys: pytest.CaptureFixture[str]) -> Frx:
    """`frx ledger` with these arguments: exit code, standard output, standard error."""

    def typed(*arguments: str) -> tuple[int, str, str]:
        code = run(["ledger", *arguments])
        return (code, *capsys.readouterr())

    return typed


def test_without_a_command_the_help_is_printed(frx: Frx) -> None:
    code, out, err = frx()
    assert (code, out) == (2, "")
    assert err.startswith("Usage: ")
    for command in ("list", "show", "rollback", "export", "verify", "upgrade"):
        assert f"\n  {command} " in err
    assert not any(line.endswith("...") for line in err.splitlines()[1:]), "a summary is cut off"


def test_before_the_first_decision_there_is_nothing_and_nothing_is_made(frx: Frx, home: Path) -> None:
    nothing = f"{home / 'data' / 'frx-graph' / 'ledger.sqlite3'}: no decisions yet\n"
    assert frx("list") == (0, nothing, "")
    assert frx("list", "--signature", GRAPH) == (0, nothing, "")
    assert frx("verify") == (0, nothing, "")
    assert json.loads(frx("list", "--format", "json")[1])["events"] == []
    assert json.loads(frx("list", "--signature", GRAPH, "--format", "json")[1])["plans"] == []
    assert frx("export")[:2] == (0, "")
    error = f"frx: {nothing.strip()} (the first trial creates the ledger)\n"
    assert frx("show", "1") == (2, "", error)
    assert frx("rollback", GRAPH) == (2, "", error)
    assert not (home / "data").exists()


@pytest.mark.parametrize("command", [["list"], ["export"], ["verify"], ["show", "1"], ["rollback", GRAPH]])
def test_a_named_ledger_has_to_be_there(frx: Frx, home: Path, command: list[str]) -> None:
    code, out, err = frx(*command, "--ledger", "gone.sqlite3")
    assert (code, out) == (2, "")
    assert err == f"frx: there is no ledger at {home / 'gone.sqlite3'} (the first trial creates it)\n"
    assert not (home / "gone.sqlite3").exists()


@pytest.mark.parametrize("command", [["list"], ["export"], ["verify"]])
def test_one_that_the_variable_or_the_project_names_has_to_be_there_too(
    frx: Frx, home: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "pyproject.toml").write_text("[tool.frx]\nledger = 'gone.sqlite3'\n")
    said = f"frx: there is no ledger at {home / 'gone.sqlite3'} (the first trial creates it)\n"
    assert frx(*command) == (2, "", said)
    monkeypatch.setenv("FRX_LEDGER", str(home / "away.sqlite3"))
    assert frx(*command) == (2, "", said.replace("gone", "away"))


def test_the_ledger_is_named_by_option_variable_or_project(
    frx: Frx, ledger: Ledger, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("project", "variable", "option"), start=1):
        named = open_ledger(parse_location(str(home / name)))
        named.append([decision(Kind.PROPOSED) for _ in range(number)])

    def count(*arguments: str) -> int:
        return len(frx("export", *arguments)[1].splitlines())

    assert count() == 6
    (home / "pyproject.toml").write_text("[tool.frx]\nledger = 'project'\n")
    (home / "below").mkdir()
    monkeypatch.chdir(home / "below")
    assert count() == 1
    monkeypatch.setenv("FRX_LEDGER", str(home / "variable"))
    assert count() == 2
    assert count("--ledger", "../option") == 3


def test_list(frx: Frx, ledger: Ledger) -> None:
    code, out, _ = frx("list", "--all")
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("#")] == [
        [f"#{position}", kind] for position, kind in enumerate(["proposed", "tried", "promoted"] * 2, start=1)
    ]
    assert lines[-1].startswith("6 events in ")
    # By default the events of one trial are one entry.
    assert [line for line in frx("list")[1].splitlines() if line.startswith("#")] == [
        "#1 to #3 promoted",
        "#4 to #6 promoted",
    ]
    assert frx("list", "--kind", "promoted")[1].splitlines()[-1].startswith("2 of 6 events in ")
    assert frx("list", "--environment", HERE, "--limit", "1")[1].splitlines()[-1].startswith("3 of 6 events in ")
    assert frx("list", "--limit", "2")[1].splitlines()[-2] == "4 older events: --limit 6 shows all."
    assert [line for line in frx("list", "--kind", "promoted")[1].splitlines() if line.startswith("#")] == [
        line for line in lines if line.split()[1:2] == ["promoted"]
    ]
    assert "Environment" not in out
    assert f"Environment {HERE}: plan {'1' * 16} is active" in frx("list", "--signature", GRAPH)[1]
    assert f"Environment {THERE}" not in frx("list", "--signature", GRAPH, "--environment", HERE)[1]


def test_list_as_json(frx: Frx, ledger: Ledger) -> None:
    out = frx("list", "--signature", GRAPH, "--environment", THERE, "--limit", "1", "--format", "json")[1]
    document = LedgerDocument.model_validate_json(out)
    assert (document.total, [event.position for event in document.events]) == (3, [6])
    assert document.plans is not None
    assert [(plan.environment, plan.plan, plan.stands, plan.promoted) for plan in document.plans] == [
        (THERE, "2" * 16, True, 6)
    ]
    assert LedgerDocument.model_validate_json(frx("list", "--format", "json")[1]).plans is None


@pytest.mark.parametrize("name", ["3", "#3", "hash", "prefix"])
def test_show_by_any_name(frx: Frx, ledger: Ledger, name: str) -> None:
    event = ledger.read_events()[2]
    given = {"hash": event.hash, "prefix": event.hash[:8]}.get(name, name)
    code, out, _ = frx("show", given)
    assert code == 0
    assert out.startswith("#3 promoted\n")
    assert f"Hash        {event.hash}" in out
    assert "event 2, promote" in out
    document = LedgerDocument.model_validate_json(frx("show", given, "--format", "json")[1])
    # The event that holds the trial follows.
    assert [each.position for each in document.events] == [3, 2]
    assert (document.events[0].trial, document.events[1].trial is None) == (None, False)


def test_rollback_of_a_graph_everywhere(frx: Frx, ledger: Ledger) -> None:
    code, out, _ = frx("rollback", GRAPH, "--reason", "wrong\n colours")
    assert code == 0
    assert out.splitlines() == [f"#{n} rolled back plan {p * 16} of {GRAPH}" for n, p in ((7, "1"), (8, "2"))]
    for event in ledger.read_events()[-2:]:
        assert event.decision.kind is Kind.ROLLED_BACK
        assert event.decision.reason == "wrong colours"
        assert event.decision.policy is None
        assert event.decision.decided_by != "autopilot"
    code, out, err = frx("rollback", GRAPH)
    assert (code, out) == (2, "")
    assert f"no plan is active for {GRAPH}" in err
    assert "no active plan, the baseline runs" in frx("list", "--signature", GRAPH)[1]
    assert frx("verify")[0] == 0


def test_rollback_in_one_environment_or_of_one_event(frx: Frx, ledger: Ledger) -> None:
    assert frx("rollback", GRAPH, "--environment", "d" * 16)[0] == 2
    assert frx("rollback", GRAPH, "--environment", HERE)[0] == 0
    assert ledger.read_promotions(GRAPH, HERE) == ()
    assert len(ledger.read_promotions(GRAPH, THERE)) == 1
    code, _, err = frx("rollback", "3")
    assert code == 2
    assert f"plan {'1' * 16} is not active" in err
    assert frx("rollback", "4", "--environment", HERE)[0] == 2
    assert frx("rollback", "4")[0] == 0
    assert ledger.read_promotions(GRAPH, THERE) == ()
    assert ledger.count_events() == 8


def test_export_to_the_terminal_and_to_a_file(frx: Frx, ledger: Ledger, home: Path) -> None:
    code, out, _ = frx("export")
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["position"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["hash"] for line in lines] == [event.hash for event in ledger.read_events()]
    for line in lines:
        stated = line.pop("hash")
        text = json.dumps(line, sort_keys=True, separators=(",", ":"))
        assert hashlib.sha256(text.encode()).hexdigest() == stated
    assert frx("export", "--output", "e.jsonl") == (0, "", "frx: wrote e.jsonl\n")
    assert (home / "e.jsonl").read_text() == out
    code, _, err = frx("export", "--output", "missing/e.jsonl")
    assert code == 2
    assert "cannot write missing/e.jsonl" in err


def test_verify(frx: Frx, ledger: Ledger) -> None:
    file = ledger.location.file
    assert file is not None
    assert frx("verify") == (0, f"{file}: 6 events, all sound\n", "")
    content = file.read_bytes()
    assert content.count(b'"plan":"2222222222222222","policy":null,"position":5') == 1
    file.write_bytes(content.replace(b'2","policy":null,"position":5', b'3","policy":null,"position":5'))
    code, out, err = frx("verify")
    assert (code, err) == (1, "")
    assert out == f"{file}: event 5: it was changed: its hash does not match its content (4 events before it sound)\n"


def test_non_ledger_file_is_refused(frx: Frx, home: Path) -> None:
    (home / "thesis").write_text("words " * 1000)
    for command in (["list"], ["verify"], ["export"], ["show", "1"], ["rollback", GRAPH]):
        code, out, err = frx(*command, "--ledger", "thesis")
        assert (code, out) == (2, "")
        assert err.startswith(f"frx: the ledger {home / 'thesis'} is not a SQLite database (")
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--signature", "abc"], "--signature 'abc' is not sixteen hexadecimal digits"),
        (["list", "--environment", "\x1b[2J"], "--environment '[2J' is not sixteen"),
        (["list", "--kind", "rolledback"], "did you mean rolled-back?"),
        (["list", "--kind", "zzz"], "proposed, tried"),
        (["list", "--limit", "0"], "--limit"),
        (["show", "7"], "there is no event 7"),
        (["show", "f" * 9], "there is no event fffffffff"),
        (["show", "abc"], "is not the name of an event"),
        (["show", "12345678901234567"], "there is no event"),
        (["rollback", "f" * 16], "there is no event"),
        (["rollback", "1", "--reason", " "], "--reason is empty"),
        (["list", "--ledger", "nosuch://ada:geheim@host/x"], "nosuch://ada:***@host/x"),
    ],
)
def test_mistakes_are_one_clear_line(frx: Frx, ledger: Ledger, arguments: list[str], message: str) -> None:
    code, out, err = frx(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "geheim" not in err
    assert "\x1b" not in err
    assert err.count("\n") == 1
    assert ledger.count_events() == 6


@pytest.mark.parametrize("kind", ["rolled-back", "rolled back", "Rolled_Back"])
def test_a_kind_of_two_words(frx: Frx, ledger: Ledger, kind: str) -> None:
    frx("rollback", "1")
    assert frx("list", "--kind", kind)[1].startswith("#7 rolled back\n")
    assert open_to_read(ledger.location).count_events() == 7


def test_upgrade_reports_what_it_did(frx: Frx, home: Path) -> None:
    file = home / "data" / "frx-graph" / "ledger.sqlite3"
    assert frx("upgrade") == (0, f"{file}: no decisions yet\n", "")
    assert not file.parent.exists()
    assert frx("upgrade", "--ledger", str(file))[0] == 2
    open_ledger(parse_location(str(file))).append(promoted())
    assert frx("upgrade") == (0, f"{file}: has the tables of this version already\n", "")
    empty = home / "empty"
    empty.touch()
    assert frx("upgrade", "--ledger", str(empty)) == (0, f"{empty}: tables of version 1; it had none\n", "")
    assert open_to_read(parse_location(str(empty))).count_events() == 0

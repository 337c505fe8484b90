"""What becomes of an advice on the command line, without a command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from frx_graph.advice import Advice, Environment, Timings, Totals
from frx_graph.capture.call_site import CallSite
from frx_graph.cli.printing.report_output import ReportOptions, emit_report
from frx_graph.errors import OptionError
from frx_graph.records import Effort, Finding, Refusal, Risk, Saving, Severity
from frx_graph.reports.advice.terminal import Format

FINDING = Finding(
    rule="FRX002",
    title="Explicit copy",
    severity=Severity.HIGH,
    site=CallSite("/net.py", 3, "forward", "model"),
    nodes=("clone",),
    count_per_step=1,
    bytes_per_step=100,
    saving=Saving(),
    effort=Effort.ONE_LINE,
    risk=Risk.LOW,
    fix="drop it",
    confidence=0.95,
)
ADVICE = Advice(
    target="net",
    environment=Environment("1", "2", "3", "linux", "cpu", "a processor", "eager", 2),
    graphs=(),
    findings=(FINDING,),
    refusals=(),
    copies=(),
    totals=Totals(5, 1, 100, 1.0, 1),
    timings=Timings(None, 1.0),
)
CLEAN = replace(ADVICE, findings=())
OPTIONS = ReportOptions(Format.TEXT, output=None, top=10)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("advice", "options", "code"),
    [
        (ADVICE, OPTIONS, 1),
        (ADVICE, replace(OPTIONS, exit_zero=True), 0),
        (ADVICE, replace(OPTIONS, ignore=["FRX002"]), 0),
        (CLEAN, OPTIONS, 0),
        (replace(CLEAN, refusals=(Refusal("a", "b"),)), OPTIONS, 0),
        (replace(CLEAN, totals=Totals(0, 0, 0, None, 0)), OPTIONS, 2),
        (replace(CLEAN, totals=Totals(0, 0, 0, None, 0)), replace(OPTIONS, exit_zero=True), 2),
    ],
    ids=["findings", "exit zero", "all ignored", "clean", "something left alone", "nothing seen", "and exit zero"],
)
def test_exit_codes(advice: Advice, options: ReportOptions, code: int) -> None:
    assert emit_report(advice, options) == code


def test_a_report_goes_to_standard_output_or_to_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    emit_report(ADVICE, OPTIONS)
    printed = capsys.readouterr()
    assert "FRX002" in printed.out
    assert printed.err == ""
    emit_report(ADVICE, replace(OPTIONS, output=Path("report.txt")))
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err == "frx: wrote report.txt\n"
    assert (folder / "report.txt").read_text() == printed.out
    assert [path.name for path in folder.iterdir()] == ["report.txt"]


def test_a_file_that_cannot_be_written_is_an_error_that_names_it(folder: Path) -> None:
    (folder / "taken").mkdir()
    with pytest.raises(OptionError, match="cannot write taken"):
        emit_report(ADVICE, replace(OPTIONS, output=Path("taken")))
    assert [path.name for path in folder.iterdir()] == ["taken"]


def test_a_baseline_is_written_before_it_is_applied(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = folder / "known.json"
    assert emit_report(ADVICE, replace(OPTIONS, write_baseline=known)) == 1
    assert emit_report(ADVICE, replace(OPTIONS, baseline=known)) == 0
    assert "known to the baseline" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (replace(OPTIONS, output=Path("no/such.txt")), "no such folder"),
        (replace(OPTIONS, write_baseline=Path("no/such.json")), "no such folder"),
        (replace(OPTIONS, baseline=Path("missing.json")), "cannot be read"),
        (replace(OPTIONS, select=["FRX999"]), "FRX999"),
        (replace(OPTIONS, ignore=["hidden_kopy"]), "hidden_kopy"),
    ],
)
def test_wrong_options_are_found_before_any_work(options: ReportOptions, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        options.check()


def test_right_options_pass(folder: Path) -> None:
    replace(OPTIONS, output=folder / "report.txt", select=["FRX002"], ignore=["FRX005"]).check()

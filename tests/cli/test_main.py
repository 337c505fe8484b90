"""What belongs to `frx` and to none of its commands."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import typer

from frx_graph.cli import commands
from frx_graph.cli.interrupt import EXIT_INTERRUPTED, SigintHandler, exit_on_interrupt, watch_interrupts
from frx_graph.cli.main import EXIT_BROKEN_PIPE, run
from frx_graph.errors import TargetError


def test_without_a_command_the_help_is_printed_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Usage: ")
    assert "\n\nCommands:\n  init " in err


def test_with_help_it_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out, err = capsys.readouterr()
    assert "\n\nCommands:\n  init " in out
    assert err == ""


def test_text_quoted_in_errors_cannot_inject_escape_sequences(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise TargetError("boom \x1b[31mred\u202e\nsecond", "a hint")

    monkeypatch.setattr(commands, "app", fail)
    assert run(["rules"]) == 2
    assert capsys.readouterr().err == "frx: boom [31mred second (a hint)\n"


@pytest.mark.parametrize("arguments", [["rules", "FRX002"], ["rules", "--format", "json"]])
def test_a_broken_pipe_ends_quietly(arguments: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "frx_graph", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == EXIT_BROKEN_PIPE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="not every system has a disk that is always full")
def test_full_disk_is_not_reported_as_an_internal_error() -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "frx_graph", "rules", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.returncode == 2
    assert ran.stderr == "frx: the output: No space left on device (free some space, or write to another disk)\n"


def test_an_exit_that_is_nobodys_broken_pipe_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(**_: object) -> None:
        raise SystemExit(7)

    monkeypatch.setattr(commands, "app", leave)
    with pytest.raises(SystemExit, match="7"):
        run(["rules"])


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["analyze", "a.csv", "b.csv"], "frx analyze"),
        (["ledger", "lost"], "frx ledger"),
        (["ledger", "show"], "frx ledger show"),
        (["--lost"], "frx"),
    ],
)
def test_the_help_that_an_error_names_is_that_of_the_command(
    arguments: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert capsys.readouterr().err.endswith(f"({command} --help lists what it takes)\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--format", "xml"],
            "'--format': 'xml' is not one of 'text', 'json', 'html', 'md', 'sarif', 'github'. (frx adv",
        ),
        (["--plan"], "No such option: --plan (frx advise --help lists"),
        (["--trian"], "No such option: --trian (did you mean --train?)"),
    ],
)
def test_unreadable_input_error_takes_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["advise", "examples/convnet.py:build", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


IMPORTED = """
import os, signal, sys
class Interrupted:
    "Ctrl-C at the moment at which this module is imported."
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupted())
from frx_graph.cli.main import main
sys.argv = ["frx", "advise", "examples/convnet.py:build"]
main()
"""


@pytest.mark.parametrize(
    "name", ["typer", "numpy", "torch._C", "torch._refs", "frx_graph.advisor.advisor", "sympy.core"]
)
def test_an_interrupt_while_modules_are_imported_is_one_line(name: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTED.format(name=name)],
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (EXIT_INTERRUPTED, "", "frx: interrupted\n")


@pytest.mark.parametrize("turned_into", [None, AttributeError("half of a module"), TargetError("the model raised")])
def test_an_interrupt_is_one_whatever_is_made_of_it(
    turned_into: Exception | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = typer.Typer()

    @app.command()
    def interrupted() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            if turned_into is None:
                raise
            raise turned_into from None

    monkeypatch.setattr(commands, "app", app)
    assert run([]) == EXIT_INTERRUPTED
    assert capsys.readouterr() == ("", "frx: interrupted\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_foreign_signal_handler_stays_in_place() -> None:
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(1))
    try:
        with watch_interrupts() as ours, exit_on_interrupt():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (came, ours.came) == ([1], False)


def test_after_the_imports_an_interrupt_is_an_exception_again() -> None:
    with watch_interrupts():
        with exit_on_interrupt():
            pass
        assert isinstance(signal.getsignal(signal.SIGINT), SigintHandler)


def test_outside_the_main_thread_nothing_is_handled() -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(run(["rules", "FRX001"])))
    thread.start()
    thread.join()
    assert codes == [0]

"""What belongs to `frx` and to none of its commands."""

from __future__ import annotations

import subprocess
import sys

import pytest

from frx_graph.cli import main
from frx_graph.cli.main import EXIT_BROKEN_PIPE, run


def test_without_a_command_the_help_is_printed_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Usage: ")
    assert "\n\nCommands:\n  advise " in err


def test_with_help_it_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out, err = capsys.readouterr()
    assert "\n\nCommands:\n  advise " in out
    assert err == ""


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


def test_an_exit_that_is_nobodys_broken_pipe_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(**_: object) -> None:
        raise SystemExit(7)

    monkeypatch.setattr(main, "app", leave)
    with pytest.raises(SystemExit, match="7"):
        run(["rules"])

"""The `frx` command. Exit code 0: nothing found; 1: findings; 2: an error, printed as one line; 130: interrupted; 141:
the reader of the output is gone. `run` makes the slow imports."""

from __future__ import annotations

import difflib
import errno
import os
import sys
import traceback
from collections.abc import Sequence

from frx_graph.cli.interrupt import EXIT_INTERRUPTED, exit_on_interrupt, watch_interrupts
from frx_graph.errors import FrxError, summarize_error
from frx_graph.support.optional_torch import INSTALL_TORCH
from frx_graph.support.plain_text import clean_line

EXIT_CLEAN, EXIT_FINDINGS, EXIT_ERROR = 0, 1, 2
EXIT_BROKEN_PIPE = 141
"""Exit code that shells report for a program ended by SIGPIPE: 128 + 13."""
_LONGEST = 4000
"""Characters of an error that are printed."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run `frx` with these arguments, and return its exit code; every error becomes one line on standard error."""
    with watch_interrupts() as interrupted:
        try:
            with exit_on_interrupt():
                from frx_graph.cli.commands import app
            code = app(args=list(sys.argv[1:] if arguments is None else arguments), standalone_mode=False)
        except KeyboardInterrupt:
            return _fail("interrupted", EXIT_INTERRUPTED)
        except BaseException as error:  # noqa: BLE001 - the boundary
            return _fail("interrupted", EXIT_INTERRUPTED) if interrupted.came else _report_error(error)
    if code == EXIT_INTERRUPTED:
        # Typer has turned it into an exit without a message.
        return _fail("interrupted", EXIT_INTERRUPTED)
    return code if isinstance(code, int) else EXIT_CLEAN


def _report_error(error: BaseException) -> int:
    """Print this error, and return its exit code. Raises an exit again, unless a broken pipe caused it."""
    import typer
    from typer.exceptions import TyperException

    if isinstance(error, FrxError):
        return _fail(str(error))
    if isinstance(error, TyperException):
        return _fail(_format_usage_error(error.format_message(), error))
    if isinstance(error, typer.Abort):
        return _fail("interrupted", EXIT_INTERRUPTED)
    if isinstance(error, SystemExit):
        if not isinstance(error.__context__, BrokenPipeError):
            raise error
        # Typer and rich turn it into an exit. The reader of the output is gone (`frx rules | head`):
        # print no message, and let Python's shutdown print none either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = "the output" if error.filename is None else error.filename
        return _fail(f"{where}: {error.strerror} (free some space, or write to another disk)")
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return _fail(f"this command needs PyTorch, which is not installed. {INSTALL_TORCH}")
    # A defect of frx itself is reported in one line.
    if os.environ.get("FRX_DEBUG"):
        traceback.print_exception(error)
    return _fail(f"internal error: {summarize_error(error)} (set FRX_DEBUG=1 for the traceback)")


def _format_usage_error(said: str, error: BaseException) -> str:
    """Return Typer's message without pydantic's prefix, with the nearest option as the hint."""
    name, possible = getattr(error, "option_name", None), getattr(error, "possibilities", None)
    hint = f"{_format_command(error)} --help lists what it takes"
    if isinstance(name, str) and possible:
        said = said.partition(" (")[0]
        near = difflib.get_close_matches(name, possible, n=1, cutoff=0.7)
        hint = f"did you mean {near[0]}?" if near else hint
    return f"{said.replace('Value error, ', '')} ({hint})"


def _format_command(error: BaseException) -> str:
    """Return the command that was typed, without `python -m`."""
    words, context = [], getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        words.append(str(context.info_name))
        context = context.parent
    return " ".join(("frx", *reversed(words)))


def _fail(message: str, code: int = EXIT_ERROR) -> int:
    # It may quote untrusted text, such as file names and exceptions.
    print(f"frx: {clean_line(' '.join(message.split()), _LONGEST)}", file=sys.stderr)
    return code


def _reopen_closed_streams() -> None:
    """Open closed standard streams as /dev/null. Otherwise the next opened file would get their descriptor, and output
    would go into it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # `os.open` returns this descriptor, the lowest free one. Child processes inherit it.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python has no stream for a closed descriptor. Without standard error, messages go to standard output.
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def main() -> None:
    """Entry point of the `frx` script."""
    _reopen_closed_streams()
    sys.exit(run())

"""Show the current stage on standard error."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from frx_graph.support.plain_text import clean_line

_LONGEST = 200
"""Characters of a stage in a plain line."""


@contextlib.contextmanager
def show_stages(*, shown: bool = True, plain_seconds: float | None = None) -> Iterator[Callable[[str], None]]:
    """Show a spinner on standard error that names the current stage. If that is not a terminal, print the stage every
    `plain_seconds` seconds, if given, so that a log shows progress. Silent if not `shown`."""
    if not shown or not sys.stderr.isatty():
        with _print_stages(sys.stderr, plain_seconds if shown else None) as note:
            yield note
        return
    # Imported late: programs that look up their plan import this module, and do not need rich.
    from rich.console import Console
    from rich.text import Text

    # Without markup: a model's own output goes through this console, too.
    with Console(stderr=True, highlight=False, markup=False).status("starting") as status:
        # As `Text`: in a plain string the spinner takes brackets, as in a path, for styles.
        yield lambda stage: status.update(Text(clean_line(stage)))


@contextlib.contextmanager
def _print_stages(stream: TextIO, seconds: float | None) -> Iterator[Callable[[str], None]]:
    """Print the last noted stage every so many seconds; never if that is None."""
    if seconds is None:
        yield lambda _stage: None
        return
    stage = ["starting"]
    ended = threading.Event()
    began = time.monotonic()

    def print_stage() -> None:
        while not ended.wait(seconds):
            # The stream may be closed by now, as in a pipe whose reader has gone.
            with contextlib.suppress(OSError, ValueError):
                line = f"frx: {clean_line(stage[0], _LONGEST)} ({time.monotonic() - began:.0f} s so far)"
                print(line, file=stream, flush=True)

    printer = threading.Thread(target=print_stage, name="frx-progress", daemon=True)
    printer.start()

    def note_stage(said: str) -> None:
        stage[0] = said

    try:
        yield note_stage
    finally:
        ended.set()
        printer.join()

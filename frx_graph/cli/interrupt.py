"""Ctrl-C, whatever it hits: one line, and the exit code that a shell reports for it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

EXIT_INTERRUPTED = 130
"""Exit code that shells report for a program ended by SIGINT: 128 + 2."""

_SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"
"""Undoes what a spinner has done to a terminal: to the start of the line, the rest of it deleted, the cursor shown."""


class SigintHandler:
    """Handle SIGINT as Python does, and remember it: exceptions that a model or a half-imported module raises after it
    are then known not to be their own errors."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        """The handler."""
        self.came = True
        raise KeyboardInterrupt


@contextlib.contextmanager
def watch_interrupts() -> Iterator[SigintHandler]:
    """Watch for SIGINT inside the block. Does nothing if another handler is set, or outside the main thread."""
    handler = SigintHandler()
    ours = _is_main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, handler)
    try:
        yield handler
    finally:
        if ours and signal.getsignal(signal.SIGINT) is handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Let an interrupt end the process while torch is imported, within `watch_interrupts`. An exception would be taken
    for a missing module, or printed by an extension that goes on without it (torch 2.15 without numpy)."""
    handler = signal.getsignal(signal.SIGINT) if _is_main_thread() else None
    if not isinstance(handler, SigintHandler):
        yield
        return
    signal.signal(signal.SIGINT, _exit_interrupted)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _exit_interrupted:
            signal.signal(signal.SIGINT, handler)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _exit_interrupted(_number: int, _frame: FrameType | None) -> None:
    os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + b"frx: interrupted\n")
    os._exit(EXIT_INTERRUPTED)

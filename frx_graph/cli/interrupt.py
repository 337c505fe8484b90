"""Ctrl-C, whatever it hits: one line, and the exit code that a shell reports for it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

EXIT_INTERRUPTED = 130
"""What a shell reports for a program that SIGINT ended: 128 + 2."""

_SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"
"""Undoes what a spinner has done to a terminal: to the start of the line, the rest of it deleted, the cursor shown."""


class Interrupts:
    """Handles SIGINT as Python does, and remembers that it came: what a model or a half imported module makes of
    `KeyboardInterrupt` is then known not to be an error of theirs."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        """The handler."""
        self.came = True
        raise KeyboardInterrupt


@contextlib.contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Interrupts from now on. Not noticed where somebody else handles them, or outside the main thread."""
    handler = Interrupts()
    ours = _in_main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, handler)
    try:
        yield handler
    finally:
        if ours and signal.getsignal(signal.SIGINT) is handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def ended_at_once() -> Iterator[None]:
    """Within `interrupts`, around the import of torch: an interrupt ends the process. An exception would be taken for a
    module that is missing, or printed by an extension that goes on without (torch 2.15 without numpy)."""
    handler = signal.getsignal(signal.SIGINT) if _in_main_thread() else None
    if not isinstance(handler, Interrupts):
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _end:
            signal.signal(signal.SIGINT, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _end(_number: int, _frame: FrameType | None) -> None:
    os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + b"frx: interrupted\n")
    os._exit(EXIT_INTERRUPTED)

"""Handle Ctrl-C at any point: print one line, and exit with the code that shells expect."""

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
"""Restores the terminal after a spinner: clears the line and shows the cursor."""


class SigintHandler:
    """Handle SIGINT as Python does, and remember it. Exceptions that a model or a half-imported module raises
    afterwards are then not reported as errors of that code."""

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
    """Let an interrupt end the process while torch is imported, within `watch_interrupts`. The importing code could
    take an exception for a missing module, or print it and go on (torch 2.15 without numpy)."""
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

"""SIGTERM, or a terminal that is closed, in the middle of something that leaves processes and folders behind where
nobody cleans up."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """Unwinds what a signal has interrupted; nobody but `cleaned_up_when_terminated` catches it."""


@contextlib.contextmanager
def cleaned_up_when_terminated() -> Iterator[None]:
    """Where nothing else handles SIGTERM or SIGHUP, it leaves the block by an exception, and then ends the process as
    it would have done at once. Not outside the main thread, where signals do not arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: int | None = None

    def unwind(number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = number
        raise Terminated

    # Who is started with nohup ignores SIGHUP, and goes on doing so.
    unhandled = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in unhandled:
        signal.signal(number, unwind)
    try:
        yield
    finally:
        for number in unhandled:
            if signal.getsignal(number) is unwind:
                signal.signal(number, signal.SIG_DFL)
        if came is not None:
            # Also where somebody on the way has taken the exception for an error of his.
            os.kill(os.getpid(), came)

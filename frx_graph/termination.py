"""SIGTERM in the middle of something that leaves processes and folders behind where nobody cleans up."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Terminated(BaseException):
    """Unwinds what SIGTERM has interrupted; nobody but `cleaned_up_when_terminated` catches it."""


@contextlib.contextmanager
def cleaned_up_when_terminated() -> Iterator[None]:
    """Where nothing else handles SIGTERM, it leaves the block by an exception, and then ends the process as it would
    have done at once. Not outside the main thread, where signals do not arrive."""
    unhandled = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not unhandled or threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def unwind(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True
        raise Terminated

    signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is unwind:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if came:
            # Also where somebody on the way has taken the exception for an error of his.
            os.kill(os.getpid(), signal.SIGTERM)

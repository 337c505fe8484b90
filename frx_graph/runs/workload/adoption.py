"""Processes that have lost their parent, found and ended by a process that they descend from (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator

import psutil

_PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h"""
_GONE_SECONDS = 5.0
_POLL_SECONDS = 0.01


@contextlib.contextmanager
def adopting() -> Iterator[Callable[[], None]]:
    """While the block runs, this process gets the orphans among its descendants as children. The function that is
    given ends all children that are new since, with what they have started."""
    before = {child.pid for child in _children()}
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield lambda: _end(before)
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _end(spared: set[int]) -> None:
    deadline = time.monotonic() + _GONE_SECONDS
    # What they have started becomes a child in turn.
    while time.monotonic() < deadline:
        orphans = [child for child in _children() if child.pid not in spared]
        if not orphans:
            return
        for orphan in orphans:
            with contextlib.suppress(psutil.Error, OSError):
                orphan.kill()
            with contextlib.suppress(OSError):
                os.waitpid(orphan.pid, os.WNOHANG)
        time.sleep(_POLL_SECONDS)


def _children() -> list[psutil.Process]:
    try:
        return psutil.Process().children()
    except (psutil.Error, OSError):
        return []


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)

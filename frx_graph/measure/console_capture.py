"""Capture or redirect what native code prints on a file descriptor."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator

STDOUT = 1
STDERR = 2


class CapturedText:
    """The printed text; complete once the capture has ended."""

    def __init__(self) -> None:
        self.text = ""


@contextlib.contextmanager
def capture_output(descriptor: int, foreign: Callable[[str], str]) -> Iterator[CapturedText]:
    """Collect everything that is written to file descriptor `descriptor`, from C and from Python alike.

    The capture works below Python's `sys.stdout` and `sys.stderr`, so pytest or a notebook may replace those. A closed
    descriptor is opened for the time of the block. The descriptor is restored, also after an error. `foreign` gets each
    line with its line end, and returns the part that another writer printed. That part is written to the original
    descriptor afterwards.
    """
    result = CapturedText()
    with tempfile.TemporaryFile() as file:
        try:
            with _point_descriptor(descriptor, file.fileno()):
                yield result
        finally:
            file.seek(0)
            result.text = file.read().decode(errors="replace")
            rest = "".join(foreign(line) for line in result.text.splitlines(keepends=True)).encode()
            with contextlib.suppress(OSError):
                while rest:
                    rest = rest[os.write(descriptor, rest) :]


@contextlib.contextmanager
def redirect_output(descriptor: int, to: int) -> Iterator[None]:
    """Redirect file descriptor `descriptor` to descriptor `to`, for C, Python, and child processes started inside. If
    `to` is closed, the output is dropped. The descriptor is always restored; one that was closed is closed again."""
    try:
        target = os.dup(to)
    except OSError:
        target = os.open(os.devnull, os.O_WRONLY)
    try:
        with _point_descriptor(descriptor, target):
            yield
    finally:
        os.close(target)


@contextlib.contextmanager
def _point_descriptor(descriptor: int, target: int) -> Iterator[None]:
    _flush_streams()
    original: int | None = None
    with contextlib.suppress(OSError):
        original = os.dup(descriptor)
    os.dup2(target, descriptor)
    try:
        yield
    finally:
        _flush_streams()
        if original is None:
            os.close(descriptor)
        else:
            os.dup2(original, descriptor)
            os.close(original)


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    load_c_library().fflush(None)


def load_c_library() -> ctypes.CDLL:
    """The C library whose standard streams native code writes to."""
    return ctypes.CDLL(None)


_KINETO_CHATTER = re.compile(r"^(USDT|STAGE|INFO|WARNING|ERROR):\d{4}-\d\d-\d\d .*\.cpp:\d+\] .*\n?$")


def drop_kineto_chatter(line: str) -> str:
    """Return `line`, or nothing if Kineto wrote it."""
    return "" if _KINETO_CHATTER.match(line) else line

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
        flush_streams()
        original = _duplicate(descriptor)
        os.dup2(file.fileno(), descriptor)
        try:
            yield result
        finally:
            flush_streams()
            if original is None:
                if file.fileno() != descriptor:
                    os.close(descriptor)
            else:
                os.dup2(original, descriptor)
            file.seek(0)
            result.text = file.read().decode(errors="replace")
            if original is not None:
                _write(original, "".join(foreign(line) for line in result.text.splitlines(keepends=True)))
                os.close(original)


@contextlib.contextmanager
def redirect_output(descriptor: int, to: int) -> Iterator[None]:
    """Redirect file descriptor `descriptor` to descriptor `to`, for C, Python, and child processes started inside. If
    `to` is closed, the output is dropped. The descriptor is always restored; one that was closed is closed again."""
    flush_streams()
    original = _duplicate(descriptor)
    target = _duplicate(to)
    if target is None:
        target = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(target, descriptor)
        yield
    finally:
        flush_streams()
        if original is None:
            os.close(descriptor)
        else:
            os.dup2(original, descriptor)
            os.close(original)
        if target != descriptor:
            os.close(target)


def flush_streams() -> None:
    """Empty Python's and the C library's output buffers."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    load_c_library().fflush(None)


def load_c_library() -> ctypes.CDLL:
    """The C library whose standard streams native code writes to."""
    return ctypes.CDLL(None)


def _duplicate(descriptor: int) -> int | None:
    try:
        return os.dup(descriptor)
    except OSError:
        return None


def _write(descriptor: int, text: str) -> None:
    rest = text.encode()
    with contextlib.suppress(OSError):
        while rest:
            rest = rest[os.write(descriptor, rest) :]


_KINETO_CHATTER = re.compile(r"^(USDT|STAGE|INFO|WARNING|ERROR):\d{4}-\d\d-\d\d .*\.cpp:\d+\] .*\n?$")


def drop_kineto_chatter(line: str) -> str:
    """Return `line`, or nothing if Kineto wrote it."""
    return "" if _KINETO_CHATTER.match(line) else line

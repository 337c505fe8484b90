"""What a program that is recorded is told when recording fails: one line, once, and the program goes on."""

from __future__ import annotations

import contextlib
import sys

_SAID: set[str] = set()
_MOST_SAID = 100


def say_once(message: str) -> None:
    """`message` on standard error, unless it was said before. Never raises, whatever has become of standard error."""
    if message in _SAID or len(_SAID) >= _MOST_SAID:
        return
    _SAID.add(message)
    # Not `warnings`: these are errors in some programs, and this also speaks in another thread.
    with contextlib.suppress(Exception):
        print(f"frx: {message}", file=sys.stderr, flush=True)

"""Issue warnings that point at the user's line, and never end the user's program."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from pathlib import Path

import torch

_NOT_THE_USERS = (
    f"{Path(__file__).parents[1]}{os.sep}",
    f"{Path(torch.__file__).parent}{os.sep}",
    # Runs functions that torch's context managers decorate.
    contextlib.__file__,
)


def warn_user(message: str) -> None:
    """Issue a `RuntimeWarning` at the innermost line outside torch and this package.

    That is the call that compiles, or, under Dynamo, the function that it compiles. From Python 3.12 on
    `skip_file_prefixes` does the same. Never raises, even if warnings are errors: of several ranks one would die, and
    the others wait.
    """
    frame = outermost = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    if frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        # A thread that torch has started, as for backwards.
        frame = outermost
    variables = frame.f_globals
    with contextlib.suppress(RuntimeWarning):
        warnings.warn_explicit(
            message,
            RuntimeWarning,
            frame.f_code.co_filename,
            frame.f_lineno,
            module=variables.get("__name__") or "<string>",
            registry=variables.setdefault("__warningregistry__", {}),
        )


class WarnOnce:
    """Issues one warning per topic."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def has_warned(self, topic: str) -> bool:
        """Return True if a warning was issued on this topic."""
        return topic in self._given

    def warn(self, topic: str, message: str) -> None:
        """Issue the warning, unless there was one on this topic."""
        if topic not in self._given:
            self._given.add(topic)
            warn_user(message)

    def clear(self) -> None:
        """Allow every warning again."""
        self._given.clear()

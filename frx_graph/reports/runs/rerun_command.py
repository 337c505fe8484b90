"""Write commands to run next: the one that records a run again, and the one that looks at a model."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

_PLACEHOLDER: Final = ("python", "train.py")
_LONGEST: Final = 1000
"""Characters of a command that people read and copy."""


def build_advise_command(train: bool) -> str:
    """Return the command line that looks for layout fixes in a model, with its backward if the program has one."""
    return f"frx advise file.py:callable{' --train' if train else ''}"


def build_recollect_command(command: Sequence[str]) -> str:
    """Return the command line that records the program `command` again. It has a placeholder for the program if that is
    unknown, is too long, or has characters that a terminal does not print."""
    words = command if all(word.isprintable() for word in command) else ()
    line = shlex.join(("frx", "collect", "--explain", "--", *(words or _PLACEHOLDER)))
    return line if len(line) <= _LONGEST else build_recollect_command(())

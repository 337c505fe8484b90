"""Formats of reports, and the width and colours of the terminal that shows them."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO


class Format(enum.StrEnum):
    """Formats, named as on the command line and in the project file."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"
    MD = "md"
    SARIF = "sarif"
    GITHUB = "github"


PIPED_WIDTH = 80
DEFAULT_TOP = 10
"""Findings that are explained in full."""
_NARROWEST, _WIDEST = 60, 120
"""Beyond 120 columns lines of prose are hard to follow."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """The number of columns, and True for colour."""

    width: int
    color: bool


def detect_terminal(stream: TextIO, environ: Mapping[str, str]) -> Terminal:
    """Return the terminal's width and colour: colour unless dumb or NO_COLOR is set (https://no-color.org), and 80
    columns without a terminal."""
    if not stream.isatty():
        return Terminal(PIPED_WIDTH, color=False)
    try:
        width = os.get_terminal_size(stream.fileno()).columns or PIPED_WIDTH
    except OSError:
        width = PIPED_WIDTH
    color = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    return Terminal(min(max(width, _NARROWEST), _WIDEST), color)

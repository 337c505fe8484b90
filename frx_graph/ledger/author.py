"""Who decides."""

from __future__ import annotations

import getpass
import os
import platform
from dataclasses import dataclass

from frx_graph.support.plain_text import one_line


@dataclass(frozen=True, slots=True)
class Author:
    """Somebody, or a part of the program, in one process of one machine."""

    decided_by: str
    host: str
    process_id: int


def this_process(decided_by: str | None = None) -> Author:
    """`decided_by` in this process; the user whose process it is without a name."""
    return Author(decided_by or _user(), one_line(platform.node()) or "unknown host", os.getpid())


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # OSError since Python 3.13; a container's user may have no name
        name = ""
    return one_line(name) or f"user {os.getuid()}"

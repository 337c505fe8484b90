"""What a connection to a ledger is for."""

from __future__ import annotations

import enum

WRITING = "frx_writing"
"""Execution option of the connections that are to append."""


class Access(enum.Enum):
    """What an engine may do, in the words of SQLite's `mode`."""

    CREATE = "rwc"
    WRITE = "rw"
    READ = "ro"

"""The result of one check, as `frx doctor` and `frx init` print it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Status(enum.StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Check:
    """One check; `hint` is the remedy if the status is not ok. `absent`: it is not here, and nothing needs it."""

    name: str
    value: str
    status: Status = Status.OK
    hint: str = ""
    absent: bool = False


def find_worst(checks: Sequence[Check]) -> Status:
    """Return the most serious status."""
    return max((check.status for check in checks), key=list(Status).index, default=Status.OK)

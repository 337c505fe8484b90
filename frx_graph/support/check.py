"""One thing that was looked at, and whether somebody should do something about it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Status(enum.StrEnum):
    """Whether somebody should do something about it."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; `hint` says what to do where the status is not ok."""

    name: str
    value: str
    status: Status = Status.OK
    hint: str = ""


def worst(checks: Sequence[Check]) -> Status:
    """The most serious status among them."""
    statuses = {check.status for check in checks}
    return next((status for status in (Status.ERROR, Status.WARNING) if status in statuses), Status.OK)

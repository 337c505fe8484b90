"""A check of the machine or the installation in a document."""

from __future__ import annotations

from pydantic import Field

from frx_graph.reports.render.document import Part
from frx_graph.support.check import Check, Status


class CheckPart(Part):
    """One thing that was looked at."""

    name: str
    value: str = Field(description="what was found")
    status: Status
    hint: str = Field(description="what to do where the status is not ok; empty where there is nothing to do")

    @staticmethod
    def of(check: Check) -> CheckPart:
        """The same of a record."""
        return CheckPart(name=check.name, value=check.value, status=check.status, hint=check.hint)

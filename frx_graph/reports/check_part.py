"""A check of the machine or the installation in a document."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from frx_graph.support.check import Check, Status


class CheckPart(BaseModel):
    """One thing that was looked at."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    value: str = Field(description="what was found")
    status: Status
    hint: str = Field(description="what to do where the status is not ok; empty where there is nothing to do")

    @staticmethod
    def of(check: Check) -> CheckPart:
        """The same of a record."""
        return CheckPart(name=check.name, value=check.value, status=check.status, hint=check.hint)

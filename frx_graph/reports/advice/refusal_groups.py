"""Refusals as people read them: one entry a reason, with all that it applies to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from frx_graph.records import Refusal
from frx_graph.reports.render.plain_text import one_line
from frx_graph.reports.render.source_path import short_path

_REASON_LIMIT = 600


@dataclass(frozen=True, slots=True)
class RefusalGroup:
    """All refusals that share a reason. `subjects` are distinct and printable, each with its call site if known."""

    reason: str
    subjects: tuple[str, ...]

    def listed(self, limit: int) -> str:
        """The first `limit` subjects, and how many more there are."""
        shown = ", ".join(self.subjects[:limit])
        more = len(self.subjects) - limit
        return f"{shown} and {more} more" if more > 0 else shown


def group_refusals(refusals: Iterable[Refusal], root: Path) -> tuple[RefusalGroup, ...]:
    """Groups in the order in which their reasons first appear."""
    subjects: dict[str, dict[str, None]] = {}
    for refusal in refusals:
        subject = one_line(refusal.subject)
        if refusal.site is not None and refusal.site.line:
            subject = f"{subject} ({one_line(short_path(refusal.site.file, root))}:{refusal.site.line})"
        subjects.setdefault(one_line(refusal.reason, _REASON_LIMIT), {})[subject] = None
    return tuple(RefusalGroup(reason, tuple(members)) for reason, members in subjects.items())

"""Group findings by call site: one place, one entry, with the fix that saves most first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.records import Basis, Finding


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """The findings of one line of source. `first` is ranked highest; its fix may settle the `others`."""

    first: Finding
    others: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupedFindings:
    """All findings of an advice. `worthless` save nothing in the current program."""

    groups: tuple[FindingGroup, ...]
    worthless: tuple[Finding, ...]


def group_findings(findings: Sequence[Finding]) -> GroupedFindings:
    """Group ranked findings; groups stay in the order of their first finding. Findings that save nothing are groups,
    too, if there are no others."""
    worthless = tuple(filter(_saves_nothing, findings))
    if len(worthless) == len(findings):
        worthless = ()
    places: dict[object, list[Finding]] = {}
    for number, finding in enumerate(findings):
        if finding in worthless:
            continue
        known = finding.site.file != UNKNOWN_SITE.file and finding.site.line
        places.setdefault(finding.site.location if known else number, []).append(finding)
    groups = tuple(FindingGroup(first, tuple(others)) for first, *others in places.values())
    return GroupedFindings(groups, worthless)


def _saves_nothing(finding: Finding) -> bool:
    """Return True if the finding has no traffic to save and no measured time, and no run has shown it."""
    seen = any(fact.basis is Basis.OBSERVED for fact in finding.evidence)
    return finding.bytes_per_step == 0 and not finding.saving.measured_pct and not seen

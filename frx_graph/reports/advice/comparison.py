"""Compare the predicted and the observed layout copies of a step, per call site."""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from frx_graph.capture.call_site import CallSite, merge_module_paths
from frx_graph.records import Copy

TOLERANCE = 0.10
"""Two counts or byte sums agree within a tenth, since profilers see slightly larger reorders of padded shapes."""


class Agreement(enum.StrEnum):
    """Relation of prediction and observation at one call site."""

    AGREES = "as predicted"
    DIFFERS = "different"
    NOT_OBSERVED = "not observed"
    NOT_PREDICTED = "not predicted"


@dataclass(frozen=True, slots=True)
class SiteCopies:
    """The copies at one line of source: counts and traffic, predicted and observed. None: no copies."""

    site: CallSite
    predicted_count: int | None
    predicted_bytes: int | None
    observed_count: int | None
    observed_bytes: int | None

    @property
    def agreement(self) -> Agreement:
        """AGREES if count and bytes are within the tolerance of the observed values."""
        if self.predicted_count is None or self.predicted_bytes is None:
            return Agreement.NOT_PREDICTED
        if self.observed_count is None or self.observed_bytes is None:
            return Agreement.NOT_OBSERVED
        close = _is_close(self.predicted_count, self.observed_count) and _is_close(
            self.predicted_bytes, self.observed_bytes
        )
        return Agreement.AGREES if close else Agreement.DIFFERS


def compare(predicted: Iterable[Copy], observed: Iterable[Copy]) -> tuple[SiteCopies, ...]:
    """Return one row per call site, largest traffic first."""
    left, right = group_by_location(predicted), group_by_location(observed)
    rows = []
    for location in left.keys() | right.keys():
        ours, seen = left.get(location, []), right.get(location, [])
        anywhere = [copy.site for copy in (*ours, *seen)]
        module_path = merge_module_paths(site.module_path for site in anywhere)
        rows.append(
            SiteCopies(
                site=CallSite(*location, function=anywhere[0].function, module_path=module_path),
                predicted_count=sum(copy.count for copy in ours) if ours else None,
                predicted_bytes=sum(copy.bytes for copy in ours) if ours else None,
                observed_count=sum(copy.count for copy in seen) if seen else None,
                observed_bytes=sum(copy.bytes for copy in seen) if seen else None,
            )
        )
    rows.sort(key=lambda row: (-max(row.predicted_bytes or 0, row.observed_bytes or 0), *row.site.location))
    return tuple(rows)


def count_agreements(rows: Iterable[SiteCopies]) -> dict[Agreement, int]:
    """Count call sites by agreement; every kind is a key."""
    counts = Counter(row.agreement for row in rows)
    return {kind: counts[kind] for kind in Agreement}


def _is_close(predicted: int, observed: int) -> bool:
    return abs(predicted - observed) <= TOLERANCE * observed


def group_by_location(copies: Iterable[Copy]) -> dict[tuple[str, int], list[Copy]]:
    """Return the copies by file and line."""
    grouped: dict[tuple[str, int], list[Copy]] = defaultdict(list)
    for copy in copies:
        grouped[copy.site.location].append(copy)
    return grouped

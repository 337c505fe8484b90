"""Prove fixes of the source: all together, and one by one if that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frx_graph.autopilot.source_trial import SourceTrial
from frx_graph.fix.source_change import ProposedFix

TryFixes = Callable[[Sequence[ProposedFix], int], SourceTrial]
"""Tries fixes together, in one of so many trials."""


@dataclass(frozen=True, slots=True)
class ProvedFixes:
    """The fixes that are kept. `together` is the last trial of all that were tried at once, `alone` pairs each fix that
    was tried by itself with its trial."""

    kept: tuple[ProposedFix, ...]
    together: SourceTrial
    alone: tuple[tuple[ProposedFix, SourceTrial], ...] = ()

    @property
    def proved(self) -> bool:
        """True if a fix is kept: a trial of all that are has proved them."""
        return bool(self.kept) and self.together.proves

    def find_trial(self, fix: ProposedFix) -> SourceTrial:
        """Return the trial that decided about a fix."""
        return next((trial for one, trial in self.alone if one is fix), self.together)


def prove_fixes(fixes: Sequence[ProposedFix], try_fixes: TryFixes) -> ProvedFixes:
    """Return the fixes that a trial proves. `fixes` is not empty."""
    everything = tuple(fixes)
    together = try_fixes(everything, 1)
    if together.proves:
        return ProvedFixes(everything, together)
    if len(everything) == 1 or together.is_open:
        # Trials of parts would fare no better.
        return ProvedFixes((), together)
    alone = tuple((fix, try_fixes((fix,), len(everything))) for fix in everything)
    kept = tuple(fix for fix, trial in alone if trial.proves)
    if not kept:
        return ProvedFixes((), together, alone)
    if len(kept) == 1:
        (trial,) = (trial for fix, trial in alone if fix is kept[0])
        return ProvedFixes(kept, trial, alone)
    last = try_fixes(kept, 1)
    return ProvedFixes(kept if last.proves else (), last, alone)

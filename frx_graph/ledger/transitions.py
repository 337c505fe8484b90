"""Which decision may follow which, for one plan in one environment.

Writers do not wait for each other, so what one decides without having seen the other's event must do no harm: evidence
may always be added, a verdict against a plan outweighs an earlier one for it, and a plan that was ever promoted can
always be rolled back, since somebody may still be running with it. A trial and its verdict belong into one append, so
that no other trial's verdict comes between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from frx_graph.ledger.decision import AUTOPILOT, Kind

_P, _T, _I, _R = Kind.PROPOSED, Kind.TRIED, Kind.INCONCLUSIVE, Kind.REJECTED
_M, _A, _B, _E = Kind.PROMOTED, Kind.APPLIED, Kind.ROLLED_BACK, Kind.EXPIRED

TRANSITIONS: Mapping[Kind | None, Mapping[Kind, Kind]] = MappingProxyType(
    {
        None: {_P: _P},
        _P: {_P: _P, _T: _T, _B: _B},
        _T: {_P: _T, _T: _T, _I: _I, _R: _R, _M: _M, _B: _B},
        _I: {_P: _P, _T: _T, _B: _B},
        _R: {_P: _P, _T: _R, _I: _R, _R: _R, _B: _B},
        _M: {_P: _M, _T: _M, _I: _M, _R: _R, _M: _M, _A: _A, _B: _B, _E: _E},
        _A: {_P: _A, _T: _A, _I: _A, _R: _R, _M: _A, _A: _A, _B: _B, _E: _E},
        _B: {_P: _P, _T: _B, _I: _B, _R: _B, _B: _B},
        _E: {_P: _P, _T: _T, _B: _B, _E: _E},
    }
)
"""State of a plan → what may be decided → its state then. None: nothing is known of it. Two rules more stand in
`next_state`."""

STANDING = frozenset({Kind.PROMOTED, Kind.APPLIED})
"""The states in which a plan may be applied."""


def next_state(state: Kind | None, kind: Kind, decided_by: str, *, was_promoted: bool) -> Kind | None:
    """The state of a plan in `state` after a decision of this kind; None where that must not be decided.

    What was rolled back is proposed again by the autopilot only after somebody else has: until then, not again. Only
    what was promoted at some time can be rolled back.
    """
    if state is Kind.ROLLED_BACK and kind is Kind.PROPOSED and decided_by == AUTOPILOT:
        return None
    if kind is Kind.ROLLED_BACK and not was_promoted:
        return None
    return TRANSITIONS[state].get(kind)

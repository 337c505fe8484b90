"""Which rule answers for a layout copy. Each copy belongs to exactly one rule, so that totals never count twice.

Other rules may point at the same copies as the price of a larger pattern; they say so in their evidence and leave
`Finding.copies` empty.
"""

from __future__ import annotations

from frx_graph.records import Copy, CopyKind, OperandRole


def owner(copy: Copy) -> str:
    """The code of the rule that claims `copy`."""
    if copy.role is OperandRole.WEIGHT:
        return "FRX007"
    if copy.kind in (CopyKind.EXPLICIT, CopyKind.RESHAPE):
        return "FRX002"
    return "FRX001"

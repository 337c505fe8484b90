"""Grades of confidence in a finding, in the order in which a reader should trust them.

They state the basis of a finding; they are not measured frequencies. `benchmarks/advice_accuracy.py` counts how often
predicted copies are confirmed.
"""

from __future__ import annotations

from typing import Final

CONFIRMED: Final = 0.99
"""Predicted, and then seen in a run of the program."""
MEASURED: Final = 0.95
"""The thing itself was seen: the copy is in the program or in the trace, or this very call was run and copied."""
INFERRED: Final = 0.85
"""It follows from measurements of the same operator in other shapes, or of the parts measured separately."""
MODELLED: Final = 0.7
"""The cause is certain; how much a fix saves follows from a model of the compiler or of the device."""
ASSUMED: Final = 0.5
"""It also depends on something not examined here: a device that is not available, or a library's internals."""
LOADED: Final = 0.4
"""It follows from times that were taken while other programs used the processors."""
CONTRADICTED: Final = 0.3
"""A run of the same operators, on operands of the same shapes and strides, did not show it. The confidence is not zero:
the recording may be of another version of the program or of a library."""

_GRADES: Final = (ASSUMED, MODELLED, INFERRED, MEASURED)


def raise_confidence(confidence: float, *, itself: bool) -> float:
    """Return the confidence of a finding after a recorded run showed something of it.

    `itself`: the copies or conversions themselves, in the advised setting (device, compiler), so the finding is
    confirmed. Other settings, or mere consequences of such a layout, raise it by one grade, up to measured at most.
    """
    if itself:
        return max(confidence, CONFIRMED)
    return next((grade for grade in _GRADES if grade > confidence), confidence)


def lower_confidence(confidence: float, *, same_strides: bool) -> float:
    """Return the confidence of a finding whose operators ran, in the advised setting, without showing it. If their
    strides were not recorded, they may have been others: then it drops by one grade."""
    if same_strides:
        return min(confidence, CONTRADICTED)
    return next((grade for grade in reversed(_GRADES) if grade < confidence), min(confidence, CONTRADICTED))

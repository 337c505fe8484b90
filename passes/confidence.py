"""How sure a finding is: grades of knowledge, in the order in which a reader should trust them.

They say what a finding rests on and are no measured frequencies; `benchmarks/advice_accuracy.py` counts how often
predicted copies are confirmed.
"""

from __future__ import annotations

from typing import Final

MEASURED: Final = 0.95
"""The thing itself was seen: the copy stands in the program or in the trace, or this very call was run and copied."""
INFERRED: Final = 0.85
"""It follows from what was measured of the same operator in other shapes, or of its parts by themselves."""
MODELLED: Final = 0.7
"""The cause is certain; how much a fix saves follows from a model of the compiler or of the device."""
ASSUMED: Final = 0.5
"""It also needs something that was not looked at here: a device that is not at hand, what a library does inside."""

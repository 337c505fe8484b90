"""Python's collector of cycles, put off where millions of events are made, none of which is in a cycle."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Within, no cycles are looked for; afterwards as before. Without it, reading a trace of 60 MB takes twice as long:
    the collector goes through all events that were read, again and again. What was made within goes to the oldest
    generation unseen, or the collector would go through all of it at the first object that is made afterwards."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            # Whoever has frozen objects of his own wants them to stay so.
            if gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()
            gc.enable()

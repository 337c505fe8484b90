"""Wait while other programs, or a hypervisor, disturb a trial, and find out which programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from frx_graph.measure.machine.busy_programs import MachineLoad, WatchLoad, describe_load
from frx_graph.trials.samples import Cause, MeasuredQuad, count_disturbed, pause_seconds

_LOADED_SHARE = 1 / 3
"""Share of all quads, void for other programs' load, from which load is the reason for an unfinished trial."""
_LAST_SECONDS = 0.25
WHEN_BUSY = "use frx trial --ignore-load"
"""Advice for a trial on a command line, besides to close other programs."""
_FAR_SECONDS = 120.0
"""Longest that a trial waits for processors that share a cache, in all."""
_LOOK_SECONDS = 0.2
"""Pause between looks. After a pause, processors are often on other cores: short pauses end the wait sooner."""


class BusyWait:
    """Waits after void quads. `load` is that of the moment at which other programs did most; None without a quad that
    was void for their load."""

    def __init__(
        self,
        pause: Callable[[float], None],
        watch: WatchLoad,
        progress: Callable[[str], None],
        advice: str = WHEN_BUSY,
    ) -> None:
        self._pause = pause
        self._watch = watch
        self._progress = progress
        self._advice = advice
        self.load: MachineLoad | None = None
        self._far_seconds = 0.0
        self._gave_up = False

    def wait(self, quads: Sequence[MeasuredQuad], left: float, status: str, *, last: bool) -> None:
        """Wait until the disturbance of the last quad may have passed, but no longer than `left` seconds. If it was
        load, show after `status` that it waits, and then what other programs did meanwhile. With `last` no quad
        follows, and the wait only finds out which programs were busy."""
        seconds = min(pause_seconds(quads), _LAST_SECONDS if last else math.inf, left)
        if not count_disturbed(quads[-1:], Cause.LOADED, void=True):
            self._pause(seconds)
            return
        if not last:
            self._progress(f"{status}; waiting {seconds:.3g} s for other programs")
        with self._watch() as read:
            self._pause(seconds)
            seen = read()
        if seen is not None and (self.load is None or (seen.share or 0.0) >= (self.load.share or 0.0)):
            self.load = seen
        if not last:
            still = f" beside others: {describe_load(seen)}" if seen is not None and seen.is_busy else ""
            self._progress(f"{status}; measuring again{still}")

    def wait_for_near(self, are_near: Callable[[], bool], get_left: Callable[[], float], status: str) -> bool:
        """Wait until the processors share a cache again, or no time is left. Return False if they still do not."""
        self._progress(f"{status}; waiting for processors that share a cache")
        while self._far_seconds < _FAR_SECONDS and get_left() > 0:
            self._pause(_LOOK_SECONDS)
            self._far_seconds += _LOOK_SECONDS
            if are_near():
                return True
        self._gave_up = self._far_seconds >= _FAR_SECONDS
        return False

    def explain_end(self, quads: Sequence[MeasuredQuad]) -> str:
        """Return why a trial could not measure enough quads, and what to do, if other programs or a hypervisor are
        the reason; else an empty string."""
        if self._gave_up:
            return f"they did not for {_FAR_SECONDS:.0f} s: try again later, or {self._advice}"
        if not quads or count_disturbed(quads, Cause.LOADED, void=True) < _LOADED_SHARE * len(quads):
            return ""
        visible = self.load is not None and self.load.programs
        seen = "" if self.load is None else f" ({describe_load(self.load)})"
        close = "close these programs" if visible else "try again later"
        return f"the machine was busy{seen}: {close}, or {self._advice}"

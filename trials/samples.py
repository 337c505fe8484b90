"""Record measurements: blocks of step times, and the quads that they make up. Void quads are kept."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from frx_graph.measure.machine.disturbance import DISTURBED_SHARE, OthersLoad
from frx_graph.trials.protocol import Protocol
from frx_graph.trials.schedule import Arm, Quad, select_next_quad

_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 15.0


class Cause(enum.StrEnum):
    """Reasons why a block does not measure its arm."""

    RECOMPILED = "recompiled"
    """Torch compiled something in the arm's process during the block."""
    THROTTLED = "throttled"
    """The device or the processors ran too hot or had their power limited, or the control group's time was used up."""
    LOADED = "loaded"
    """Other programs used the processors or the device."""
    MOVED = "moved"
    """A hypervisor ran the processors on cores that share no cache (`measure/machine/processor_distance.py`)."""


OF_OTHERS = frozenset({Cause.LOADED, Cause.MOVED})
"""Causes that a trial may be asked to ignore, and that may pass by themselves."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """The reason why a block is void."""

    cause: Cause
    detail: str = ""
    """The step, clocks or load, for people."""


@dataclass(frozen=True, slots=True)
class Block:
    """Steps that one arm ran in a row."""

    arm: Arm
    seconds: tuple[float, ...]
    """Seconds of each step; raises `ValueError` unless there are some, all finite and above 0."""
    disturbance: Disturbance | None = None
    """The reason why it is void."""
    ignored: Disturbance | None = None
    """Other programs' load, or far processors, if the trial was asked to ignore it; the block counts."""
    distance: float | None = None
    """Distance between the processors, as `measure_distance` defines it; None: not measured."""

    def __post_init__(self) -> None:
        if not self.seconds or not all(0 < seconds < math.inf for seconds in self.seconds):
            raise ValueError(f"a block of {self.arm} with step times of {self.seconds} s")


@dataclass(frozen=True, slots=True)
class MeasuredQuad:
    """A quad and its blocks, in the order of the runs. Raises `ValueError` if the arms differ from the plan."""

    quad: Quad
    blocks: tuple[Block, Block, Block, Block]
    log_ratio: float = field(init=False)
    """Log ratio of the arms' block medians, baseline over candidate: above 0 if the candidate is faster.

    The median of a block's steps leaves out single slow steps, without judging which times are outliers. The two blocks
    of an arm count the same.
    """

    def __post_init__(self) -> None:
        if tuple(block.arm for block in self.blocks) != self.quad.arms:
            raise ValueError(f"blocks of {[str(block.arm) for block in self.blocks]} for {self.quad}")
        log = dict.fromkeys(Arm, 0.0)
        for block in self.blocks:
            log[block.arm] += math.log(statistics.median(block.seconds))
        object.__setattr__(self, "log_ratio", (log[Arm.BASELINE] - log[Arm.CANDIDATE]) / 2)

    @property
    def void(self) -> bool:
        """True if a block of the quad was disturbed."""
        return any(block.disturbance is not None for block in self.blocks)


def make_block(
    arm: Arm,
    seconds: tuple[float, ...],
    found: Disturbance | None,
    distance: float | None = None,
    *,
    ignore_load: bool,
) -> Block:
    """Return a block, and what was `found` to disturb it. With `ignore_load`, causes of others do not make it void."""
    if ignore_load and found is not None and found.cause in OF_OTHERS:
        return Block(arm, seconds, ignored=found, distance=distance)
    return Block(arm, seconds, found, distance=distance)


def count_disturbed(quads: Sequence[MeasuredQuad], *causes: Cause, void: bool) -> int:
    """Return how many quads have a block with one of the `causes`: those that were `void` for it, or those that count
    all the same."""
    return sum(
        any(_has_cause(block.disturbance if void else block.ignored, causes) for block in quad.blocks)
        for quad in quads
        if quad.void is void
    )


def select_quad(plan: Sequence[Quad], quads: Sequence[MeasuredQuad], protocol: Protocol) -> Quad | None:
    """Return the quad to run next; None after the last one, or if too many were disturbed."""
    if count_own_void(quads) > protocol.void_quads_allowed:
        return None
    return select_next_quad(plan, [measured.quad for measured in quads if not measured.void])


def count_own_void(quads: Sequence[MeasuredQuad]) -> int:
    """Return how many quads were void, without those of far processors alone: a trial waits for near ones."""
    return sum(
        any(block.disturbance is not None and block.disturbance.cause is not Cause.MOVED for block in quad.blocks)
        for quad in quads
    )


def _has_cause(found: Disturbance | None, causes: Sequence[Cause]) -> bool:
    return found is not None and found.cause in causes


def load_disturbance(others: OthersLoad | None) -> Disturbance | None:
    """Return the disturbance by other programs' load, if any. A short block's share is made of a few ticks, so it must
    also exceed their resolution."""
    if others is None or others.share < DISTURBED_SHARE or others.used <= others.resolution:
        return None
    return Disturbance(Cause.LOADED, others.told)


def count_quads(quads: Sequence[MeasuredQuad], protocol: Protocol) -> str:
    """Return how many quads of a trial are measured, and how many more were void, for people: they are rounds."""
    void = sum(quad.void for quad in quads)
    return f"round {len(quads) - void} of {protocol.quads}{f', {void} disturbed' if void else ''}"


def pause_seconds(quads: Sequence[MeasuredQuad]) -> float:
    """Return how long to wait after a void quad: twice as long after each in a row, as the disturbance may pass."""
    row = next((n for n, quad in enumerate(reversed(quads)) if not quad.void), len(quads))
    return float(min(_FIRST_PAUSE_SECONDS * 2 ** (row - 1), _LONGEST_PAUSE_SECONDS))

"""What was measured: blocks of step times, and the quads that they make up. Nothing is dropped: a void quad is kept."""

from __future__ import annotations

import enum
import math
import statistics
from dataclasses import dataclass, field

from frx_graph.trials.schedule import Arm, Quad


class Cause(enum.StrEnum):
    """Why a block says nothing about its arm."""

    RECOMPILED = "recompiled"
    """Something was compiled during one of its steps."""
    THROTTLED = "throttled"
    """The device lowered its clocks."""
    LOADED = "loaded"
    """Other programs held the processors or the device."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What makes a block void."""

    cause: Cause
    detail: str = ""
    """For people: which step, which clocks, how much load."""


@dataclass(frozen=True, slots=True)
class Block:
    """Steps that one arm ran in a row."""

    arm: Arm
    seconds: tuple[float, ...]
    """Of each step; raises `ValueError` unless there are some, all of them finite and above 0."""
    disturbance: Disturbance | None = None

    def __post_init__(self) -> None:
        if not self.seconds or not all(0 < seconds < math.inf for seconds in self.seconds):
            raise ValueError(f"a block of {self.arm} with step times of {self.seconds} s")


@dataclass(frozen=True, slots=True)
class MeasuredQuad:
    """A quad and its blocks, in the order they were run. Raises `ValueError` if other arms ran than were planned."""

    quad: Quad
    blocks: tuple[Block, Block, Block, Block]
    log_ratio: float = field(init=False)
    """Of the arms' block medians, baseline over candidate: above 0 where the candidate is faster.

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
        """Whether any of its blocks was disturbed."""
        return any(block.disturbance is not None for block in self.blocks)

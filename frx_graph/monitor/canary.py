"""Measures a promoted program against its baseline by the steps that the user's process makes anyway.

The next steps run in quads, with the plan and without it: the same comparison as a trial's, in one process. What is
compiled and what memory grows by is counted beside the time. Nothing is run that would not have run, and what the steps
return is right in either case.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Protocol

from scipy.special import ndtri

from frx_graph.monitor.health_signals import Sign
from frx_graph.trials.policy import FEWEST_QUADS, TrialPolicy
from frx_graph.trials.samples import Block, Disturbance, MeasuredQuad
from frx_graph.trials.schedule import ABBA, BAAB, Arm, Quad
from frx_graph.trials.statistics import safe_t, trimmed_interval

_WARM_STEPS = 3
"""Of the baseline, which may never have run in this process: its backward is compiled in the first."""
_COMPILED_FRAMES = 2
_LEAK_BYTES = 16 * 2**20
"""By which memory must have grown in the candidate's blocks to be its doing."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Frames that Dynamo has compiled, and bytes that are held: so far, or by a block."""

    frames: int
    held_bytes: int

    def since(self, before: Footprint) -> Footprint:
        """What has been added. Counts of Dynamo's begin anew when it is reset."""
        return Footprint(max(0, self.frames - before.frames), self.held_bytes - before.held_bytes)


@dataclass(frozen=True, slots=True)
class LiveQuad:
    """A quad of the user's own steps."""

    measured: MeasuredQuad
    footprints: tuple[Footprint, ...]
    """Of its blocks."""

    def of(self, arm: Arm) -> Iterator[Footprint]:
        """Those of the blocks that this arm ran."""
        blocks = zip(self.measured.blocks, self.footprints, strict=True)
        return (footprint for block, footprint in blocks if block.arm is arm)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a canary has come to. `regression` says in a line what is worse with the plan; None: nothing."""

    regression: str | None


class Surroundings(Protocol):
    """What a canary reads around its blocks."""

    def clock(self) -> float:
        """Seconds, once the device has done what it was given."""

    def footprint(self) -> Footprint:
        """Frames compiled so far, and bytes held."""

    def disturbances(self) -> AbstractContextManager[Callable[[], Disturbance | None]]:
        """What makes the block inside say nothing about time."""


def judged(quads: Sequence[LiveQuad], sign: Sign, policy: TrialPolicy) -> Finding | None:
    """What the quads so far settle; None: go on.

    Slower is what the safe t-test finds by more than the bias that one process exceeds with probability `alpha`, after
    five quads at least, or the trimmed one at the end. One quad is enough for a canary that no harm is behind, if it
    does not find the plan slower.
    """
    ours, theirs = (_total(quads, arm) for arm in (Arm.CANDIDATE, Arm.BASELINE))
    if ours.frames >= _COMPILED_FRAMES and theirs.frames == 0:
        return Finding(f"{ours.frames} frames were compiled again in its steps, none in the baseline's")
    if ours.held_bytes >= _LEAK_BYTES and 4 * max(0, theirs.held_bytes) < ours.held_bytes:
        grown = f"{ours.held_bytes / 2**20:.0f} MiB in its steps, {theirs.held_bytes / 2**20:.0f} in the baseline's"
        return Finding(f"memory grew by {grown}")
    slower_by = [-quad.measured.log_ratio for quad in quads if not quad.measured.void]
    bias = float(-ndtri(policy.alpha)) * policy.process_bias
    if sign in (Sign.DUE, Sign.PROMISE) and len(slower_by) == 1 and slower_by[0] <= 0:
        return Finding(None)
    if len(slower_by) >= FEWEST_QUADS:
        if safe_t(slower_by, bias) >= -math.log(policy.alpha):
            return Finding(_slower(slower_by))
        if safe_t([-value for value in slower_by]) >= -math.log(policy.alpha):
            return Finding(None)
    most = policy.process_pairs * policy.quads_per_pair
    if len(slower_by) < most and len(quads) - len(slower_by) <= policy.void_quads_allowed:
        return None
    if len(slower_by) == most and trimmed_interval(slower_by, policy.alpha)[0] > bias:
        return Finding(_slower(slower_by))
    return Finding(None)


def _slower(log_ratios: Sequence[float]) -> str:
    ratio = math.exp(statistics.median(log_ratios))
    return f"its steps take {ratio:.3f} times as long as the baseline's, in {len(log_ratios)} quads"


def _total(quads: Sequence[LiveQuad], arm: Arm) -> Footprint:
    found = [footprint for quad in quads for footprint in quad.of(arm)]
    return Footprint(sum(one.frames for one in found), sum(one.held_bytes for one in found))


class Canary:
    """Says for each step which program runs it. Not to be used by two threads at once."""

    def __init__(self, sign: Sign, policy: TrialPolicy, around: Surroundings, *, whole_steps: bool) -> None:
        """`whole_steps`: a step lasts until the next one begins, so that it holds its backward."""
        self.sign = sign
        self.finding: Finding | None = None
        self._policy = policy
        self._around = around
        self._whole_steps = whole_steps
        self._warm = _WARM_STEPS
        self._quads: list[LiveQuad] = []
        self._blocks: list[Block] = []
        self._footprints: list[Footprint] = []
        self._seconds: list[float] = []
        self._began: float | None = None
        self._open: ExitStack | None = None
        self._disturbed: Callable[[], Disturbance | None] = lambda: None
        self._before = Footprint(0, 0)

    def begin(self) -> Arm:
        """Which program runs the step that begins now: the candidate's, where nothing is left to find out."""
        if self._whole_steps:
            self._step_ended()
        if self.finding is not None:
            return Arm.CANDIDATE
        if self._warm:
            return Arm.BASELINE
        if self._open is None:
            self._open = ExitStack()
            self._before = self._around.footprint()
            self._disturbed = self._open.enter_context(self._around.disturbances())
        self._began = self._around.clock()
        return self._arms[len(self._blocks)]

    def end(self) -> None:
        """The step's program has returned."""
        if self._warm:
            self._warm -= 1
        elif not self._whole_steps:
            self._step_ended()

    def abandon(self) -> None:
        """Measure no further."""
        if self._open is not None:
            self._open.close()
        self._open = self._began = None
        self.finding = self.finding or Finding(None)

    @property
    def _arms(self) -> tuple[Arm, Arm, Arm, Arm]:
        return (ABBA, BAAB)[len(self._quads) % 2]

    def _step_ended(self) -> None:
        if self._began is None:
            return
        self._seconds.append(self._around.clock() - self._began)
        self._began = None
        if len(self._seconds) == self._policy.steps_per_block:
            self._close_block()

    def _close_block(self) -> None:
        assert self._open is not None
        disturbance = self._disturbed()
        self._open.close()
        self._open = None
        after = self._around.footprint()
        self._footprints.append(after.since(self._before))
        self._blocks.append(Block(self._arms[len(self._blocks)], tuple(self._seconds), disturbance))
        self._seconds = []
        if len(self._blocks) == len(ABBA):
            first, second, third, fourth = self._blocks
            quad = MeasuredQuad(Quad(0, len(self._quads), self._arms), (first, second, third, fourth))
            self._quads.append(LiveQuad(quad, tuple(self._footprints)))
            self._blocks, self._footprints = [], []
            self.finding = judged(self._quads, self.sign, self._policy)

"""Measure a promoted program against its baseline on the steps that the user's process runs anyway.

The next steps run in quads, with and without the plan, like a trial in one process. Compiled frames and memory growth
are also counted. No additional steps run, and each returns correct results.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from scipy.special import ndtri

from frx_graph.monitor.health_signals import Signal
from frx_graph.monitor.step_metrics import Footprint, StepMetrics
from frx_graph.trials.policy import FEWEST_QUADS, TrialPolicy
from frx_graph.trials.samples import Block, Disturbance, MeasuredQuad
from frx_graph.trials.schedule import ABBA, BAAB, Arm, Quad
from frx_graph.trials.statistics import compute_safe_t, compute_trimmed_interval

_WARM_STEPS = 3
"""Steps of the baseline before the first block. It may never have run here: the first compiles its backward."""
_COMPILED_FRAMES = 2
_LEAK_BYTES = 16 * 2**20
"""Growth in the candidate's blocks from which on it counts as a leak."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a canary: a line on what is worse with the plan, or None."""

    regression: str | None


def judge_quads(
    quads: Sequence[MeasuredQuad], footprints: Mapping[Arm, Footprint], signal: Signal, policy: TrialPolicy
) -> Finding | None:
    """Return the finding that the quads so far settle; None if more are needed. `footprints` belong to their blocks.

    The plan is slower if the safe t-test finds it so, after five quads at least, or the trimmed interval does at the
    end. Both must exceed the bias that one process exceeds with probability `alpha`. A canary without suspicion of harm
    ends after one quad that does not find the plan slower.
    """
    planned, baseline = footprints[Arm.CANDIDATE], footprints[Arm.BASELINE]
    if planned.frames >= _COMPILED_FRAMES and baseline.frames == 0:
        return Finding(f"{planned.frames} frames were compiled again in its steps, none in the baseline's")
    if planned.held_bytes >= _LEAK_BYTES and 4 * max(0, baseline.held_bytes) < planned.held_bytes:
        grown, there = planned.held_bytes / 2**20, baseline.held_bytes / 2**20
        return Finding(f"memory grew by {grown:.0f} MiB in its steps, {there:.0f} in the baseline's")
    slower_by = [-quad.log_ratio for quad in quads if not quad.void]
    bias = float(-ndtri(policy.alpha)) * policy.process_bias
    if signal in (Signal.DUE, Signal.PROMISE) and len(slower_by) == 1 and slower_by[0] <= 0:
        return Finding(None)
    if len(slower_by) >= FEWEST_QUADS:
        if compute_safe_t(slower_by, bias) >= -math.log(policy.alpha):
            return Finding(_describe_slowdown(slower_by))
        if compute_safe_t([-value for value in slower_by]) >= -math.log(policy.alpha):
            return Finding(None)
    most = policy.process_pairs * policy.quads_per_pair
    if len(slower_by) < most and len(quads) - len(slower_by) <= policy.void_quads_allowed:
        return None
    slower = len(slower_by) == most and compute_trimmed_interval(slower_by, policy.alpha)[0] > bias
    return Finding(_describe_slowdown(slower_by) if slower else None)


def _describe_slowdown(log_ratios: Sequence[float]) -> str:
    ratio = math.exp(statistics.median(log_ratios))
    return f"its steps take {ratio:.3f} times as long as the baseline's, in {len(log_ratios)} quads"


class Canary:
    """Choose the program of each step, until there is a finding. Not for use by two threads at once."""

    def __init__(self, signal: Signal, policy: TrialPolicy, metrics: StepMetrics, *, whole_steps: bool) -> None:
        """Measure for `signal`. `whole_steps`: a step lasts until the next one begins, which includes its backward."""
        self.signal = signal
        self.finding: Finding | None = None
        self._policy = policy
        self._metrics = metrics
        self._whole_steps = whole_steps
        self._warm = _WARM_STEPS
        self._quads: list[MeasuredQuad] = []
        self._blocks: list[Block] = []
        self._footprints = dict.fromkeys(Arm, Footprint(0, 0))
        self._seconds: list[float] = []
        self._began: float | None = None
        self._open: ExitStack | None = None
        self._disturbed: Callable[[], Disturbance | None] = lambda: None
        self._before = Footprint(0, 0)

    def begin(self) -> Arm:
        """Return the arm that runs the step that begins now; the candidate if there is a finding."""
        if self._whole_steps:
            self._finish_step()
        if self.finding is not None:
            return Arm.CANDIDATE
        if self._warm:
            return Arm.BASELINE
        if self._open is None:
            self._open = ExitStack()
            self._before = self._metrics.read_footprint()
            self._disturbed = self._open.enter_context(self._metrics.watch_disturbances())
        self._began = self._metrics.read_clock()
        return self._arms[len(self._blocks)]

    def end(self) -> None:
        """Record that the step's program has returned."""
        if self._warm:
            self._warm -= 1
        elif not self._whole_steps:
            self._finish_step()

    def abandon(self) -> None:
        """Measure no further; without a finding so far, the plan stays."""
        if self._open is not None:
            self._open.close()
        self._open = self._began = None
        self.finding = self.finding or Finding(None)

    @property
    def _arms(self) -> tuple[Arm, Arm, Arm, Arm]:
        return (ABBA, BAAB)[len(self._quads) % 2]

    def _finish_step(self) -> None:
        if self._began is None:
            return
        self._seconds.append(self._metrics.read_clock() - self._began)
        self._began = None
        if len(self._seconds) == self._policy.steps_per_block:
            self._close_block()

    def _close_block(self) -> None:
        assert self._open is not None
        disturbance = self._disturbed()
        self._open.close()
        self._open = None
        arm = self._arms[len(self._blocks)]
        self._footprints[arm] = self._footprints[arm].add_growth(self._before, self._metrics.read_footprint())
        self._blocks.append(Block(arm, tuple(self._seconds), disturbance))
        self._seconds = []
        if len(self._blocks) == len(ABBA):
            first, second, third, fourth = self._blocks
            self._quads.append(MeasuredQuad(Quad(0, len(self._quads), self._arms), (first, second, third, fourth)))
            self._blocks = []
            self.finding = judge_quads(self._quads, self._footprints, self.signal, self._policy)

"""Time one candidate against a baseline by rule R: quads in pairs of fresh processes, until the verdict is clear.

`frx_graph.trials` implements the rule; this module supplies the blocks. A program that ends in the middle of a trial
has not failed: the trial goes on in fresh processes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from frx_graph.errors import TrialError
from frx_graph.runs.tune.live_arm import AlternatingArms, ArmEndedError
from frx_graph.trials.configuration_trial import Gain, StepBlock, StepQuad
from frx_graph.trials.protocol import Protocol
from frx_graph.trials.samples import MeasuredQuad, count_quads, pause_seconds, select_quad
from frx_graph.trials.schedule import ABBA, Arm, Quad, make_schedule
from frx_graph.trials.verdict import Outcome, Verdict, decide_early, decide_finally

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TimedResult:
    """The result of the quads. `quads` are all that were measured, void ones included."""

    outcome: Outcome
    reason: str
    gain: Gain | None
    quads: tuple[StepQuad, ...]


def run_timed_trial(
    arms: AlternatingArms,
    rule: Protocol,
    *,
    by_sample: bool = False,
    whole: bool = False,
    progress: Progress = lambda _: None,
    pause: Callable[[float], None] = time.sleep,
) -> TimedResult:
    """Run the trial. With `whole` no promotion ends it early, since that would overstate the gain. Raises `TrialError`
    if the baseline fails."""
    plan = make_schedule(rule)
    quads: list[MeasuredQuad] = []
    kept: list[StepQuad] = []
    pair: int | None = None
    since_fresh = 0

    def finish(verdict: Verdict) -> TimedResult:
        gain = None
        if (found := verdict.statistics) is not None:
            high = found.ci_high if math.isfinite(found.ci_high) else None
            counted = found.quads, found.processes, found.pair_medians, found.void
            gain = Gain(found.ratio_median, found.ci_low, high, *counted)
        return TimedResult(verdict.outcome, verdict.reason, gain, tuple(kept))

    while (quad := select_quad(plan, quads, rule)) is not None:
        try:
            if quad.pair != pair:
                arms.start_fresh(quad.arms[0])
                pair, since_fresh = quad.pair, 0
            blocks = tuple(arms.run_block(arm) for arm in quad.arms)
        except ArmEndedError as ended:
            known = finish(decide_finally(quads, rule))
            if ended.failed:
                _check_baseline(ended)
                return replace(known, outcome=Outcome.REJECT, reason=f"it fails: {ended.detail}")
            if not since_fresh:
                reason = f"the {ended.arm} ends before it has been measured once: {ended.detail}"
                return replace(known, outcome=Outcome.INCONCLUSIVE, reason=reason)
            pair = None
            continue
        since_fresh += 1
        quads.append(_make_quad(quad, blocks, by_sample=by_sample))
        kept.append(StepQuad(quad.pair, quad.number, quads[-1].log_ratio, quads[-1].void, blocks))
        progress(count_quads(quads, rule))
        if quads[-1].void:
            pause(pause_seconds(quads))
        verdict = decide_early(quads, rule)
        if verdict is not None and not (whole and verdict.outcome is Outcome.PROMOTE):
            return finish(verdict)
    return finish(decide_finally(quads, rule))


def run_race(arms: AlternatingArms, *, by_sample: bool = False) -> TimedResult:
    """Run one quad, which cannot promote. Raises `TrialError` if the baseline fails."""
    quad = Quad(0, 0, ABBA)
    try:
        arms.start_fresh(Arm.BASELINE)
        blocks = tuple(arms.run_block(arm) for arm in quad.arms)
    except ArmEndedError as ended:
        _check_baseline(ended)
        return TimedResult(Outcome.REJECT, f"the {ended.arm} failed: {ended.detail}", None, ())
    measured = _make_quad(quad, blocks, by_sample=by_sample or has_different_sizes(blocks))
    ratio = math.exp(measured.log_ratio)
    gain = Gain(ratio, None, None, 1, 1, (ratio,), int(measured.void))
    kept = StepQuad(0, 0, measured.log_ratio, measured.void, blocks)
    return TimedResult(Outcome.INCONCLUSIVE, "a race proves nothing", gain, (kept,))


def has_different_sizes(blocks: Sequence[StepBlock]) -> bool:
    """Return True if the arms' steps have different numbers of samples."""
    sizes: dict[Arm, float] = {}
    for block in blocks:
        if block.samples is None:
            return False
        size = block.samples / len(block.step_seconds)
        sizes[block.arm] = max(size, sizes.get(block.arm, size))
    return len({round(size) for size in sizes.values()}) > 1


def _make_quad(quad: Quad, blocks: Sequence[StepBlock], *, by_sample: bool) -> MeasuredQuad:
    first, second, third, fourth = (block.block(by_sample=by_sample) for block in blocks)
    return MeasuredQuad(quad, (first, second, third, fourth))


def _check_baseline(ended: ArmEndedError) -> None:
    if ended.failed and ended.arm is Arm.BASELINE:
        raise TrialError(f"the baseline fails: {ended.detail}", "look at its stderr.log") from ended

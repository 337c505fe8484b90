"""What quads of given ratios say: the four outcomes with their words, each with its near miss."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.trials.policy import TUNE_POLICY, TrialPolicy
from frx_graph.trials.protocol import Protocol, make_protocol
from frx_graph.trials.samples import Block, Cause, Disturbance, MeasuredQuad
from frx_graph.trials.schedule import Arm, Quad, make_schedule
from frx_graph.trials.verdict import Outcome, decide_early, decide_finally, find_dissent, format_range

DEFAULT = make_protocol(TrialPolicy())
TUNE = make_protocol(TUNE_POLICY)
LOADED = Disturbance(Cause.LOADED, "others had 1.2 of 2 processors")


def run(quad: Quad, ratio: float, disturbance: Disturbance | None = None, unit: float = 1.0) -> MeasuredQuad:
    """A quad whose baseline takes `ratio` times as long as its candidate, `unit` seconds."""
    seconds = {Arm.BASELINE: (unit * ratio,), Arm.CANDIDATE: (unit,)}
    first, second, third, fourth = (Block(arm, seconds[arm]) for arm in quad.arms)
    return MeasuredQuad(quad, (replace(first, disturbance=disturbance), second, third, fourth))


def trial(rule: Protocol, ratios: Sequence[float], unit: float = 1.0) -> list[MeasuredQuad]:
    """The first quads of a schedule, with these ratios."""
    return [run(quad, ratio, unit=unit) for quad, ratio in zip(make_schedule(rule), ratios, strict=False)]


def by_pair(rule: Protocol, *ratios: float) -> list[float]:
    """The same ratio in all quads of a process pair."""
    return [ratio for ratio in ratios for _ in range(rule.quads_per_pair)]


def alternating(rule: Protocol, one: float, other: float) -> list[float]:
    """Log ratios, of which one more is `one`."""
    return [math.exp((one, other)[number % 2]) for number in range(rule.quads)]


@pytest.mark.parametrize(
    ("rule", "ratios", "outcome", "reason"),
    [
        (
            DEFAULT,
            by_pair(DEFAULT, *[1.12] * 6),
            Outcome.PROMOTE,
            "12.0 % faster (+12.0 to +12.0 %): the 3 % asked for is reached, and all 6 process pairs agree",
        ),
        (
            DEFAULT,
            by_pair(DEFAULT, *[1.0] * 6),
            Outcome.EQUIVALENT,
            "no difference of 3 % or more: 0.0 % faster (between 0.0 % and 0.0 % faster)",
        ),
        (
            DEFAULT,
            by_pair(DEFAULT, *[0.95] * 6),
            Outcome.REJECT,
            "5.0 % slower (between 5.0 % and 5.0 % slower)",
        ),
        (
            DEFAULT,
            by_pair(DEFAULT, 1.12, 1.12, 1.01, 1.12, 1.12, 1.12),
            Outcome.INCONCLUSIVE,
            "between 12.0 % and 12.0 % faster, but the process pairs disagree "
            "(+12.0, +12.0, +1.0, +12.0, +12.0, +12.0 %)",
        ),
        (
            DEFAULT,
            by_pair(DEFAULT, 1.12, 1.12, 1.05, 1.12, 1.12, 1.12),
            Outcome.PROMOTE,
            "12.0 % faster (+12.0 to +12.0 %): the 3 % asked for is reached, and all 6 process pairs agree",
        ),
        (
            make_protocol(TrialPolicy(), in_process=True),
            by_pair(DEFAULT, *[1.15] * 6),
            Outcome.PROMOTE,
            "15.0 % faster (+15.0 to +15.0 %): the 13 % asked for is reached, in one process",
        ),
        (
            make_protocol(TrialPolicy(), in_process=True),
            by_pair(DEFAULT, *[1.12] * 6),
            Outcome.EQUIVALENT,
            "no difference of 13 % or more: 12.0 % faster (between 12.0 % and 12.0 % faster)",
        ),
    ],
)
def test_even_quads_and_their_words(rule: Protocol, ratios: list[float], outcome: Outcome, reason: str) -> None:
    verdict = decide_finally(trial(rule, ratios), rule)
    assert (verdict.outcome, verdict.reason, verdict.early) == (outcome, reason, False)


@pytest.mark.parametrize(
    ("ratios", "outcome", "words"),
    [
        (alternating(DEFAULT, 0.3, -0.3), Outcome.INCONCLUSIVE, "perhaps no faster at all"),
        (alternating(DEFAULT, 0.02, 0.038), Outcome.INCONCLUSIVE, "perhaps not faster by the 3 % asked for"),
        (alternating(DEFAULT, -0.06, 0.02), Outcome.REJECT, "not faster by the 3 % asked for"),
        (alternating(DEFAULT, -0.005, 0.02), Outcome.EQUIVALENT, "no difference of 3 % or more"),
        (alternating(DEFAULT, -0.025, 0.035), Outcome.EQUIVALENT, "most likely no difference of 3 % or more"),
        (alternating(DEFAULT, -0.09, 0.05), Outcome.REJECT, "most likely not faster by the 3 % asked for"),
        (
            alternating(DEFAULT, 0.04, 0.035),
            Outcome.PROMOTE,
            "the 3 % asked for is reached, and all 6 process pairs agree",
        ),
    ],
)
def test_uneven_quads(ratios: list[float], outcome: Outcome, words: str) -> None:
    verdict = decide_finally(trial(DEFAULT, ratios), DEFAULT)
    assert (verdict.outcome, words in verdict.reason.split(": ")) == (outcome, True)


def test_a_rejection_names_both_ends_of_the_interval_in_words() -> None:
    verdict = decide_finally(trial(DEFAULT, alternating(DEFAULT, -0.09, 0.05)), DEFAULT)
    stats = verdict.statistics
    assert stats is not None
    between = f"between {100 * (1 - stats.ci_low):.1f} % slower and {100 * (stats.ci_high - 1):.1f} % faster"
    median = f"{100 * (1 - stats.ratio_median):.1f} % slower"
    assert verdict.reason == f"most likely not faster by the 3 % asked for: {median} ({between})"


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.923, 1.032, "between 7.7 % slower and 3.2 % faster"),
        (1.02, 1.05, "between 2.0 % and 5.0 % faster"),
        (0.95, 0.98, "between 2.0 % and 5.0 % slower"),
    ],
)
def test_an_interval_in_words(low: float, high: float, words: str) -> None:
    assert format_range(low, high) == words


def test_pairs_must_agree_as_far_as_the_policy_requires() -> None:
    near, nearer, against = (by_pair(TUNE, 1.13, 1.12, 1.14, last, 1.12, 1.12) for last in (1.05, 1.03, 0.999))
    whole, half = replace(TUNE, agreement=TUNE.minimum), replace(TUNE, agreement=TUNE.minimum / 2)
    outcomes = [[decide_finally(trial(TUNE, ratios), rule).outcome for rule in (whole, half, TUNE)]
                for ratios in (near, nearer, against)]  # fmt: skip
    promoted, not_yet = Outcome.PROMOTE, Outcome.INCONCLUSIVE
    assert outcomes == [[not_yet, promoted, promoted], [not_yet, not_yet, promoted], [not_yet] * 3]


def test_pairs_that_differ_more_than_was_assumed_are_not_believed_though_they_all_agree() -> None:
    # Half of the processes 30 % slower than others, and each pair in favour of the candidate: some by chance.
    wide = by_pair(DEFAULT, 1.32, 1.10, 1.06, 1.27, 1.10, 1.06)
    verdict = decide_finally(trial(DEFAULT, wide), DEFAULT)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "but the process pairs (+32.0, +10.0, +6.0, +27.0, +10.0, +6.0 %) are too few, or differ" in verdict.reason
    narrow = by_pair(DEFAULT, 1.32, 1.20, 1.22, 1.27, 1.25, 1.24)
    assert decide_finally(trial(DEFAULT, narrow), DEFAULT).outcome is Outcome.PROMOTE


@pytest.mark.parametrize(("low", "outcome"), [(1.01, Outcome.PROMOTE), (0.97, Outcome.INCONCLUSIVE)])
def test_in_a_second_look_the_mean_of_the_pairs_must_show_it(low: float, outcome: Outcome) -> None:
    extended = DEFAULT.extend()
    assert extended is not None
    verdict = decide_finally(trial(extended, by_pair(extended, low, low, *[1.05] * 10)), extended)
    assert verdict.outcome is outcome
    end = ": the 3 % asked for is reached, and 12 process pairs prove half of it"
    assert verdict.reason.endswith(end) is (outcome is Outcome.PROMOTE)


@pytest.mark.parametrize(
    ("low", "high", "outcome", "beginning"),
    [
        (-0.065, 0.085, Outcome.EQUIVALENT, "probably no difference of 3 % or more"),
        (-0.20, 0.18, Outcome.REJECT, "probably not faster by the 3 % asked for"),
        (-0.03, 0.13, Outcome.INCONCLUSIVE, "perhaps no faster at all"),
    ],
)
def test_the_last_look_ends_with_less_confidence(low: float, high: float, outcome: Outcome, beginning: str) -> None:
    extended = DEFAULT.extend()
    assert extended is not None
    ratios = [math.exp(value) for value in (low, high)] * (extended.quads // 2)
    first = decide_finally(trial(DEFAULT, ratios[: DEFAULT.quads]), DEFAULT)
    last = decide_finally(trial(extended, ratios), extended)
    assert first.outcome is Outcome.INCONCLUSIVE
    assert (last.outcome, last.reason.partition(": ")[0]) == (outcome, beginning)


@pytest.mark.parametrize(
    ("baseline", "candidate", "told"),
    [
        (1.4, 1.27, "both programs took up to 1.3 times as long as in its fastest pair"),
        (1.14, 1.0, ""),  # The processes of one program differ.
        (1.25, 1.12, ""),
    ],
)
def test_an_open_verdict_names_a_machine_whose_speed_changed(baseline: float, candidate: float, told: str) -> None:
    slow, fast = {Arm.BASELINE: baseline, Arm.CANDIDATE: candidate}, dict.fromkeys(Arm, 1.0)
    quads = []
    for quad in make_schedule(DEFAULT):
        seconds = slow if quad.pair % 2 else fast
        first, second, third, fourth = (Block(arm, (seconds[arm],)) for arm in quad.arms)
        quads.append(MeasuredQuad(quad, (first, second, third, fourth)))
    verdict = decide_finally(quads, DEFAULT)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason.partition("; the machine's speed changed: ")[2] == told


def test_a_whole_pair_without_a_gain_is_a_dissent() -> None:
    ratios = by_pair(DEFAULT, 1.2, 1.0)
    assert not find_dissent(trial(DEFAULT, ratios[:-1]), DEFAULT)
    assert find_dissent(trial(DEFAULT, ratios), DEFAULT)
    assert not find_dissent(trial(DEFAULT, by_pair(DEFAULT, 1.2, 1.02)), DEFAULT)


def test_figures_of_a_verdict() -> None:
    ratios = by_pair(TUNE, 1.10, 1.20, 1.30, 1.10, 1.20, 1.30)
    stats = decide_finally([run(make_schedule(TUNE)[0], 9.0, LOADED), *trial(TUNE, ratios)], TUNE).statistics
    assert stats is not None
    assert stats.ratio_median == pytest.approx(1.20)
    assert stats.pair_medians == pytest.approx((1.10, 1.20, 1.30) * 2)
    assert (stats.quads, stats.processes, stats.void) == (36, 6, 1)
    assert 1.0 < stats.ci_low < 1.20 < stats.ci_high < 1.4


def test_a_trial_that_could_not_measure_enough_is_inconclusive() -> None:
    plan = make_schedule(DEFAULT)
    voids = [run(plan[20], 2.0, LOADED) for _ in range(15)]
    verdict = decide_finally([*trial(DEFAULT, [2.0] * 20), *voids], DEFAULT)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason == "only 20 of 36 rounds were measured, 15 were disturbed by other programs"
    hot = run(plan[20], 2.0, Disturbance(Cause.THROTTLED))
    mixed = decide_finally([*trial(DEFAULT, [2.0] * 20), *voids[:2], hot], DEFAULT)
    assert mixed.reason.endswith(", 2 were disturbed by other programs, 1 by slowed-down hardware")
    assert verdict.statistics is not None
    assert verdict.statistics.ratio_median == pytest.approx(2.0)
    assert decide_finally(trial(DEFAULT, [2.0]), DEFAULT).reason == "only 1 of 36 rounds were measured"


def test_two_quads_that_are_far_apart_bound_nothing() -> None:
    # On a busy machine a step of a tenth of a millisecond may take 20 ms: cut short then, nothing is known, nor wrong.
    stats = decide_finally(trial(DEFAULT, [math.exp(2.0), math.exp(-2.0)]), DEFAULT).statistics
    assert stats is not None
    assert (stats.ci_low, stats.ci_high) == (0.0, math.inf)
    assert stats.ratio_median == pytest.approx(1.0)


def test_a_trial_without_measurements_has_no_figures() -> None:
    verdict = decide_finally([], DEFAULT)
    assert (verdict.outcome, verdict.statistics) == (Outcome.INCONCLUSIVE, None)


def count(rule: Protocol, pairs: int) -> int:
    """Quads up to the end of that many pairs, and one more of the next."""
    return pairs * rule.quads_per_pair + 1


def test_no_evidence_in_one_pair_of_processes_ends_a_trial() -> None:
    assert decide_early(trial(DEFAULT, [0.3] * DEFAULT.quads_per_pair), DEFAULT) is None
    many = replace(DEFAULT, quads_per_pair=20)
    assert decide_early(trial(many, [0.3] * 20), many) is None
    assert decide_early(trial(many, [0.3] * 21), many) is not None


@pytest.mark.parametrize(
    ("ratio", "outcome", "words"),
    [(1.0, Outcome.EQUIVALENT, "no difference of 3 % or more: "), (0.95, Outcome.REJECT, "5.0 % slower")],
)
def test_even_quads_end_a_trial_early_without_promotion(ratio: float, outcome: Outcome, words: str) -> None:
    verdict = decide_early(trial(DEFAULT, [ratio] * 8), DEFAULT)
    assert verdict is not None
    assert (verdict.outcome, words in verdict.reason, verdict.early) == (outcome, True, True)


def test_a_gain_is_promoted_early_from_the_fourth_process_pair_on() -> None:
    fourth = count(DEFAULT, 3)
    assert decide_early(trial(DEFAULT, [3.0] * (fourth - 1)), DEFAULT) is None
    verdict = decide_early(trial(DEFAULT, [3.0] * fourth), DEFAULT)
    assert verdict is not None
    assert (verdict.outcome, verdict.early) == (Outcome.PROMOTE, True)
    assert verdict.reason.endswith("the 3 % asked for is reached, and all 4 process pairs agree")


def test_before_the_last_pair_each_must_reach_the_minimum() -> None:
    # Half of the minimum is enough in the end.
    ratios = [1.02] * DEFAULT.quads_per_pair + [1.2] * (5 * DEFAULT.quads_per_pair)
    certain = replace(DEFAULT, process_bias=0.0, pairs_alpha=0.3)
    before = [decide_early(trial(certain, ratios[:number]), certain) for number in range(count(DEFAULT, 5))]
    assert before == [None] * count(DEFAULT, 5)
    assert decide_early(trial(certain, ratios[: count(DEFAULT, 5)]), certain) is not None


def test_a_gain_that_process_bias_could_explain_is_not_promoted() -> None:
    # Six pairs that show the same may be off by 5.21 * 2 % / sqrt(6 * 6) = 1.7 %.
    tiny = replace(DEFAULT, minimum=0.0, agreement=0.0)
    assert decide_early(trial(tiny, [1.017] * count(tiny, 5)), tiny) is None
    assert decide_early(trial(tiny, [1.018] * count(tiny, 5)), tiny) is not None
    # Four, by 7.17 * 2 % / sqrt(4 * 4) = 3.6 %.
    assert decide_early(trial(tiny, [1.036] * count(tiny, 3)), tiny) is None
    assert decide_early(trial(tiny, [1.037] * count(tiny, 3)), tiny) is not None
    trusting = replace(tiny, process_bias=0.0)
    assert decide_early(trial(trusting, [1.017] * count(tiny, 5)), trusting) is not None


def test_pairs_that_disagree_do_not_end_a_trial_by_promotion() -> None:
    ratios = [1.5] * (count(DEFAULT, 3) - 1) + [1.01] * (3 * DEFAULT.quads_per_pair)
    assert all(decide_early(trial(DEFAULT, ratios[:number]), DEFAULT) is None for number in range(37))


def test_one_of_twelve_candidates_needs_more_evidence() -> None:
    dozen = make_protocol(TrialPolicy(), candidates=12)
    assert decide_early(trial(dozen, [0.5] * 8), dozen) is None
    assert decide_early(trial(dozen, [0.5] * 9), dozen) is not None
    noisy = alternating(DEFAULT, 0.16, 0.04)
    lenient = replace(DEFAULT, agreement=0.0)
    assert decide_finally(trial(DEFAULT, noisy), lenient).outcome is Outcome.PROMOTE
    assert decide_finally(trial(DEFAULT, noisy), replace(lenient, alpha=1e-7)).outcome is Outcome.INCONCLUSIVE


def test_single_process_may_end_early() -> None:
    rule = make_protocol(TrialPolicy(), in_process=True)
    verdict = decide_early(trial(rule, [1.5] * 8), rule)
    assert verdict is not None
    assert verdict.outcome is Outcome.PROMOTE


log_ratios = st.lists(st.floats(-0.1, 0.3), min_size=TUNE.quads, max_size=TUNE.quads)


@given(log_ratios, st.floats(0, 0.5))
def test_a_larger_gain_is_not_judged_worse(logs: list[float], more: float) -> None:
    before, after = (
        decide_finally(trial(TUNE, [math.exp(log + extra) for log in logs]), TUNE) for extra in (0.0, more + 1e-9)
    )
    assert before.outcome is not Outcome.PROMOTE or after.outcome is Outcome.PROMOTE
    assert after.outcome is not Outcome.REJECT or before.outcome is not Outcome.PROMOTE


@given(log_ratios)
def test_a_candidate_and_its_baseline_are_not_both_promoted(logs: list[float]) -> None:
    outcomes = [decide_finally(trial(TUNE, [math.exp(sign * log) for log in logs]), TUNE).outcome for sign in (1, -1)]
    assert outcomes.count(Outcome.PROMOTE) <= 1


@given(log_ratios, st.sampled_from([1e-6, 2.0**-10, 1e3]))
def test_the_unit_of_time_changes_no_verdict(logs: list[float], unit: float) -> None:
    ratios = [math.exp(log) for log in logs]
    one, other = (decide_finally(trial(TUNE, ratios, unit=unit), TUNE) for unit in (1.0, unit))
    assert one.statistics and other.statistics
    assert one.outcome is other.outcome
    assert one.statistics.ratio_median == pytest.approx(other.statistics.ratio_median)


@given(log_ratios, st.integers(0, 100))
def test_position_and_times_of_void_quads_do_not_matter(logs: list[float], seed: int) -> None:
    draw = random.Random(seed)
    measured = trial(TUNE, [math.exp(log) for log in logs])
    voids = [run(quad, draw.uniform(0.1, 10), LOADED) for quad in make_schedule(TUNE)[:5]]
    mixed = list(measured)
    for void in voids:
        mixed.insert(draw.randrange(len(mixed) + 1), void)
    assert decide_finally(mixed, TUNE) == decide_finally([*voids, *measured], TUNE)
    part = [quad for quad in mixed if quad.void or quad.quad.pair < 2]
    assert decide_early(part, TUNE) == decide_early([*voids, *measured[:12]], TUNE)
    assert decide_finally(mixed, TUNE).outcome is decide_finally(measured, TUNE).outcome

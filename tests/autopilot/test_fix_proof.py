"""Which fixes are kept, by the trials of all together and of each alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from frx_graph.autopilot.fix_proof import prove_fixes
from frx_graph.autopilot.source_trial import SourceTrial, Speed
from frx_graph.fix.source_change import ProposedFix
from frx_graph.records import SourceEdit
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.trial_run import Gate, GateResult, TrialRun
from frx_graph.trials.verdict import Outcome, TrialStatistics, Verdict


def fix(name: str) -> ProposedFix:
    return ProposedFix((SourceEdit(name, 0, 1, "", 1, 1, 1, 2),), (), unsafe=False)


def trial(
    ratio: float | None, outcome: Outcome = Outcome.REJECT, *, quads: int = 36, failed: Gate | None = None
) -> SourceTrial:
    found = None if ratio is None else TrialStatistics(ratio, ratio - 0.05, ratio + 0.05, quads, 6, (ratio,) * 6, 0)
    gates = () if failed is None else (GateResult(failed, False, "it differs"),)
    return SourceTrial(TrialRun(gates, Verdict(outcome, "why", found, early=False), (), None, ()), TrialPolicy())


GOOD, WRONG = trial(1.1, Outcome.PROMOTE), trial(None, failed=Gate.NUMERICS)
A, B, C = map(fix, "abc")


@pytest.mark.parametrize(
    ("made", "speed"),
    [
        (trial(1.1, Outcome.PROMOTE), Speed.FASTER),
        (trial(1.0, Outcome.EQUIVALENT), Speed.AS_FAST),
        # Most likely under the minimum that a rewrite needs, and no slower.
        (trial(0.99), Speed.AS_FAST),
        (trial(1.02, Outcome.INCONCLUSIVE), Speed.AS_FAST),
        (trial(0.96), Speed.SLOWER),
        (trial(0.9), Speed.SLOWER),
        (trial(1.02, Outcome.INCONCLUSIVE, quads=5), Speed.UNKNOWN),
        (trial(None, Outcome.INCONCLUSIVE), Speed.UNKNOWN),
        (trial(1.1, failed=Gate.STRIDES), Speed.UNKNOWN),
    ],
)
def test_a_change_of_the_source_needs_no_gain_but_no_loss(made: SourceTrial, speed: Speed) -> None:
    assert made.speed is speed
    assert made.proves is (speed in (Speed.FASTER, Speed.AS_FAST))


@pytest.mark.parametrize(
    ("answers", "kept", "asked"),
    [
        ({"abc": GOOD}, "abc", ["abc"]),
        ({"abc": WRONG, "a": GOOD, "b": WRONG, "c": GOOD, "ac": GOOD}, "ac", ["abc", "a", "b", "c", "ac"]),
        ({"abc": WRONG, "a": GOOD, "b": WRONG, "c": WRONG}, "a", ["abc", "a", "b", "c"]),
        ({"abc": WRONG, "a": WRONG, "b": WRONG, "c": WRONG}, "", ["abc", "a", "b", "c"]),
        # Each is right alone, and both together are not.
        ({"abc": WRONG, "a": GOOD, "b": GOOD, "c": WRONG, "ab": WRONG}, "", ["abc", "a", "b", "c", "ab"]),
        # On a busy machine parts would fare no better.
        ({"abc": trial(None, Outcome.INCONCLUSIVE)}, "", ["abc"]),
    ],
)
def test_what_is_kept_was_proved_together(answers: dict[str, SourceTrial], kept: str, asked: list[str]) -> None:
    seen: list[str] = []

    def answer(fixes: Sequence[ProposedFix], _candidates: int) -> SourceTrial:
        seen.append("".join(one.edits[0].file for one in fixes))
        return answers[seen[-1]]

    found = prove_fixes([A, B, C], answer)
    assert "".join(one.edits[0].file for one in found.kept) == kept
    assert seen == asked
    assert found.proved is bool(kept)


def test_a_single_fix_is_tried_once() -> None:
    seen = []
    found = prove_fixes([A], lambda fixes, _: seen.append(fixes) or WRONG)
    assert (len(seen), found.kept, found.proved) == (1, (), False)
    assert found.find_trial(A) is WRONG

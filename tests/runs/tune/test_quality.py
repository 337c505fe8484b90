from __future__ import annotations

from dataclasses import replace

import pytest

from frx_graph.runs.tune.quality import MOST_MEMORY, compute_final_loss, find_failures
from frx_graph.runs.tune.settings import TuneSettings
from frx_graph.trials.configuration_trial import RunSeen

SEEN = RunSeen(
    exit_code=0, ending="it ends", in_time=True, steps=26, step_seconds=(0.01,) * 20, samples=160, batch_size=8,
    losses=(2.0,) * 20, outputs=(("output_mean", 0.5),), workers=0, batch_layouts=1, peak_bytes=1, memory_ratio=0.1,
    device_busy_percent=None, bottleneck=None,
)  # fmt: skip


def failed(baseline: RunSeen = SEEN, flags: dict | None = None, **changes) -> str:
    settings = TuneSettings(command=("x",), **(flags or {}))
    return "; ".join(find_failures(replace(SEEN, **changes), baseline, settings))


def test_what_is_as_the_baseline_passes():
    assert failed() == ""


def test_it_must_end_well_and_make_some_steps():
    assert "it ends" in failed(exit_code=1)
    assert failed(exit_code=None) == ""
    assert failed(steps=3, exit_code=None) == ""
    assert "only 2 steps" in failed(steps=2)
    assert "raise --time-budget-s" in failed(steps=2, in_time=False)


def test_one_that_ends_before_the_baseline_has_not_done_its_work():
    assert failed(steps=25) == "it ends after 25 steps, and the baseline makes 26"
    assert failed(replace(SEEN, steps=25), steps=26) == ""
    assert failed(steps=13, batch_size=16) == ""
    assert "it ends after 12 steps" in failed(steps=12, batch_size=16)
    assert "it ends after 25 steps" in failed(steps=25, batch_size=4)
    assert "it ends after 13 steps" in failed(steps=13, batch_size=None)


def test_memory_from_nine_tenths_on_is_too_much():
    assert failed(memory_ratio=MOST_MEMORY - 0.001) == ""
    assert "90 %" in failed(memory_ratio=MOST_MEMORY)
    assert failed(memory_ratio=None) == ""


@pytest.mark.parametrize(("allowed", "loss", "fails"), [(0.05, 2.1, False), (0.05, 2.1001, True), (0.2, 2.3, False)])
def test_the_final_loss_may_be_worse_by_so_much(allowed, loss, fails):
    said = failed(losses=(loss,) * 20, flags={"max_final_loss_regression": allowed})
    assert ("exceeds baseline 2" in said) is fails


def test_a_negative_loss_is_worse_where_it_is_greater():
    baseline = replace(SEEN, losses=(-2.0,) * 20)
    assert failed(baseline, losses=(-2.0,) * 20) == ""
    assert "exceeds baseline -2" in failed(baseline, losses=(-1.8,) * 20)


@pytest.mark.parametrize(("last", "fails"), [(3.0, False), (3.01, True)])
def test_a_loss_that_grows_diverges(last, fails):
    baseline = replace(SEEN, losses=(2.0,) * 15 + (last,) * 5)
    said = failed(baseline, losses=(2.0,) * 15 + (last,) * 5)
    assert ("by more than 50 %" in said) is fails


def test_a_loss_that_is_not_finite_fails_unless_it_may_be():
    assert "not finite" in failed(losses=(2.0, None, 2.0))
    assert failed(losses=(2.0, None, 2.0), flags={"allow_nonfinite_loss": True}) == ""
    assert "as one of the baseline's" in failed(replace(SEEN, losses=(None,)), losses=(None,))


@pytest.mark.parametrize(("value", "fails"), [(0.5049, False), (0.5051, True), (None, True)])
def test_outputs_may_drift_by_so_much(value, fails):
    assert (failed(outputs=(("output_mean", value),)) != "") is fails
    assert failed(outputs=(("output_mean", value),), flags={"quality_checks": False}) == ""


def test_drift_reported_by_the_program_is_used_as_is():
    assert "output_abs_drift is off by 0.006" in failed(outputs=(*SEEN.outputs, ("output_abs_drift", 0.006)))
    assert failed(outputs=(*SEEN.outputs, ("output_abs_drift", 0.005))) == ""


def test_without_losses_there_is_nothing_to_compare():
    assert failed(replace(SEEN, losses=()), losses=()) == ""
    assert compute_final_loss(()) is None
    assert compute_final_loss((9.0, 9.0, 9.0, 1.0)) == 1.0


def test_candidate_that_lacks_baseline_values_cannot_be_judged():
    assert "no loss" in failed(losses=())
    assert "no output_mean" in failed(outputs=())
    assert failed(outputs=(), flags={"quality_checks": False}) == ""
    assert failed(replace(SEEN, losses=()), losses=()) == ""
    assert failed(replace(SEEN, losses=(), outputs=())) == ""

"""The machines that trials are simulated on, and how one of them is recorded."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from false_promotions import TRACE
from record_steps import record, step_seconds
from step_noise import HOSTILE, SHARED, RecordedNoise, autoregressive, recorded

from frx_graph.errors import EvidenceError


def test_drift_has_the_deviation_and_correlation_that_it_is_named_for() -> None:
    process = autoregressive(500, 400, 0.95, np.random.default_rng(0))
    assert process.std() == pytest.approx(1.0, abs=0.05)
    assert process[:, 0].std() == pytest.approx(1.0, abs=0.1)
    assert (process[:, 1:] * process[:, :-1]).mean() == pytest.approx(0.95, abs=0.05)


def test_the_hostile_machine_is_the_noisier() -> None:
    spread = [np.log(noise.factors(200, 400, np.random.default_rng(0))).std() for noise in (SHARED, HOSTILE)]
    assert 0.05 < spread[0] < 0.15 < spread[1] < 0.25


def test_the_same_seed_is_the_same_noise() -> None:
    one, other = (SHARED.factors(3, 50, np.random.default_rng(7)) for _ in range(2))
    assert (one == other).all()


def test_windows_of_a_recording_keep_its_order_and_begin_again() -> None:
    noise = RecordedNoise("real", np.arange(10.0))
    windows = noise.factors(100, 25, np.random.default_rng(0))
    assert windows.shape == (100, 25)
    assert (np.diff(windows, axis=1) % 10 == 1).all()
    assert set(windows[:, 0]) == set(range(10))


def test_the_committed_recording_is_of_a_noisy_machine() -> None:
    relative = recorded(TRACE).relative
    assert np.median(relative) == 1.0
    assert relative.std() > 0.05


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seconds": 3}', '{"seconds": ["a"]}', '{"seconds": [1, 2]}'])
def test_file_without_a_recording_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(EvidenceError, match="--record FILE"):
        recorded(path)


def test_times_that_cannot_be_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"seconds": [0.001] * 1000 + [0.0]}))
    with pytest.raises(EvidenceError, match="all above 0"):
        recorded(path)


def test_steps_are_timed_one_by_one_until_time_is_up() -> None:
    clock = itertools.accumulate([0.0, 1.0, 2.0, 4.0, 99.0])
    assert step_seconds(lambda: None, 6.0, lambda: next(clock)) == [1.0, 2.0, 4.0]


def test_a_recording_is_written_with_what_it_is_of(tmp_path: Path) -> None:
    record(tmp_path / "trace.json", duration=0.05)
    document = json.loads((tmp_path / "trace.json").read_text())
    assert document["step"].startswith("four times torch.nn.Conv2d(32, 32, 3, padding=1)")
    assert sum(document["seconds"]) >= 0.045

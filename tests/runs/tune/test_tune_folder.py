from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from frx_graph.errors import EvidenceError, OptionError
from frx_graph.runs.tune.bench import TuneBench
from frx_graph.runs.tune.settings import TuneSettings
from frx_graph.runs.tune.tune_folder import make_tune_folder, open_tune_folder
from frx_graph.trials.configuration_trial import (
    Configuration,
    ConfigurationTrial,
    Fate,
    Gain,
    Kind,
    RunSeen,
    StepBlock,
    StepQuad,
    Tier,
)
from frx_graph.trials.samples import Cause, Disturbance
from frx_graph.trials.schedule import ABBA

SETTINGS = TuneSettings(command=("python", "train.py"), candidates=((("A", "1"),),))
SEEN = RunSeen(
    exit_code=None, ending="it ends", in_time=True, steps=26, step_seconds=(0.01,) * 20, samples=None, batch_size=None,
    losses=(2.0, None), outputs=(("output_mean", None),), workers=0, batch_layouts=1, peak_bytes=1, memory_ratio=0.1,
    device_busy_percent=None, bottleneck=None,
)  # fmt: skip
CANDIDATE = Configuration("dl-nw4", "dl:nw=4", "dataloader", Tier.SAFE, (("FRX_NUM_WORKERS", "4"),))
BLOCKS = tuple(StepBlock(arm, (0.01, 0.02), None, Disturbance(Cause.LOADED, "others")) for arm in ABBA)
TRIAL = ConfigurationTrial(
    Kind.FULL, CANDIDATE, (("B", "2"),), Fate.PROMOTE, "faster", SEEN, Gain(1.2, 1.1, None, 9, 2, (1.2,), 1), False,
    False, (StepQuad(0, 1, 0.18, True, BLOCKS),),
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    return make_tune_folder(tmp_path, "tune-1", SETTINGS)


def test_stored_results_are_read_back_unchanged(folder):
    assert folder.read_trial(Kind.FULL, CANDIDATE.id) is None
    folder.begin_trial(folder.get_trial_folder(Kind.FULL, CANDIDATE.id), {"FRX_NUM_WORKERS": "4"})
    folder.keep_trial(TRIAL)
    assert folder.read_trial(Kind.FULL, CANDIDATE.id) == TRIAL
    assert folder.read_trial(Kind.RACE, CANDIDATE.id) is None
    folder.begin_trial(folder.path / "baseline", {})
    folder.keep_baseline(SEEN)
    assert open_tune_folder(folder.path, SETTINGS).read_baseline() == SEEN


def test_interrupted_trial_is_measured_again(folder):
    place = folder.get_trial_folder(Kind.FULL, CANDIDATE.id)
    folder.begin_trial(place, {})
    (place / "left over").touch()
    assert folder.read_trial(Kind.FULL, CANDIDATE.id) is None
    folder.begin_trial(place, {})
    assert not (place / "left over").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"trial": {"kind": "full"}}', "\x00", '{"trial": NaN}'])
def test_altered_metrics_file_is_an_error(folder, text):
    place = folder.get_trial_folder(Kind.FULL, CANDIDATE.id)
    folder.begin_trial(place, {})
    (place / "metrics.json").write_text(text)
    with pytest.raises(EvidenceError, match="delete its folder"):
        folder.read_trial(Kind.FULL, CANDIDATE.id)


def test_other_arguments_are_refused_and_named(folder):
    assert open_tune_folder(folder.path, SETTINGS).path == folder.path
    with pytest.raises(OptionError, match="measure_steps was 20 and is 5"):
        open_tune_folder(folder.path, SETTINGS.model_copy(update={"measure_steps": 5}))
    (folder.path / "settings.json").write_text("{}")
    with pytest.raises(OptionError, match="begin a new tune"):
        open_tune_folder(folder.path, SETTINGS)


def test_two_tunes_do_not_write_into_one_folder(folder):
    again = open_tune_folder(folder.path, SETTINGS)
    with folder.hold():
        with pytest.raises(OptionError, match="another frx tune is using it"), again.hold():
            pass
        assert again.read_baseline() is None
    with again.hold():
        pass


def test_a_refused_candidate_has_its_folder_with_the_reason(folder):
    bench = TuneBench(SETTINGS, folder)
    bench.record_refusal(Kind.FULL, CANDIDATE, (("B", "2"),), "there is no GPU")
    place = folder.path / "dl-nw4"
    assert yaml.safe_load((place / "config.yaml").read_text())["environment"] == {"B": "2", "FRX_NUM_WORKERS": "4"}
    assert json.loads((place / "metrics.json").read_text())["reason"] == "there is no GPU"
    assert "there is no GPU" in (place / "stderr.log").read_text()


def test_unknown_metrics_are_written_as_null(folder):
    folder.begin_trial(folder.path / "baseline", {})
    folder.keep_baseline(replace(SEEN, step_seconds=()))
    metrics = json.loads((folder.path / "baseline" / "metrics.json").read_text())
    assert metrics["steps_per_second"] is metrics["step_ms"] is metrics["gpu_util_pct"] is None
    assert metrics["steps"] == 26

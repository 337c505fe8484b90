from __future__ import annotations

import functools

import pytest

from frx_graph.runs.tune import bench
from frx_graph.runs.tune.bench import TuneBench
from frx_graph.runs.tune.settings import TuneSettings
from frx_graph.runs.tune.step_stream import SETTLE_NS, compute_block_length
from frx_graph.runs.tune.timed_trial import run_timed_trial
from frx_graph.runs.tune.tune_folder import make_tune_folder
from frx_graph.trials.configuration_trial import Configuration, Kind, RunSeen, StepBlock, Tier
from frx_graph.trials.samples import Cause, Disturbance
from frx_graph.trials.schedule import Arm

CANDIDATE = Configuration("own-a", "custom:A=1", "custom", Tier.SAFE, (("A", "1"),))
SEEN = RunSeen(
    exit_code=None, ending="it ends", in_time=True, steps=26, step_seconds=(0.01,) * 20, samples=None, batch_size=None,
    losses=(), outputs=(), workers=0, batch_layouts=1, peak_bytes=1, memory_ratio=0.1,
    device_busy_percent=None, bottleneck=None,
)  # fmt: skip


class Disturbed:
    """Arms of which as many blocks are disturbed as may be, all in their first processes. `room` is how many steps each
    process is told to make, `made` how many it has made, the most of any."""

    def __init__(self, void_blocks: int, workers: int) -> None:
        self.void_blocks, self.workers = void_blocks, workers
        self.room = self.blocks = 0
        self.made = 0.0
        self._own: dict[Arm, float] = {}

    def __call__(self, starts, _, *, warmup: int, steps: int) -> Disturbed:
        self.room = int(starts(Arm.BASELINE).environment["FRX_TUNE_MAX_STEPS"])
        self.warmup, self.steps = warmup, steps
        return self

    def __enter__(self) -> Disturbed:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def start_fresh(self, _: Arm) -> None:
        self._own = dict.fromkeys(Arm, self.warmup)

    def run_block(self, arm: Arm) -> StepBlock:
        settling = SETTLE_NS / 1e9 / SEEN.step_seconds[0]
        self._own[arm] += settling + compute_block_length(self.steps, self.workers).ends
        self.made = max(self.made, self._own[arm])
        self.blocks += 1
        disturbed = Disturbance(Cause.LOADED) if self.blocks <= self.void_blocks else None
        return StepBlock(arm, (0.01,) * self.steps, None, disturbed)


@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize(("warmup", "measured"), [(5, 20), (5, 200), (1, 40)])
def test_a_program_that_counts_its_steps_lasts_as_long_as_its_processes_may_be_measured(
    warmup: int, measured: int, workers: int, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TuneSettings(command=("x",), warmup_steps=warmup, measure_steps=measured)
    rule = settings.make_protocol(1)
    arms = Disturbed(4 * rule.void_quads_allowed, workers)
    monkeypatch.setattr(bench, "AlternatingArms", arms)
    monkeypatch.setattr(bench, "examine_run", lambda *_, **__: SEEN)
    monkeypatch.setattr(bench, "run_timed_trial", functools.partial(run_timed_trial, pause=lambda _: None))
    tune_bench = TuneBench(settings, make_tune_folder(tmp_path, "tune-1", settings))
    (found,) = tune_bench.run_trials(Kind.FINAL, (CANDIDATE,), (), SEEN, 1)
    assert found.quads, found.reason
    assert arms.blocks > 4 * (rule.void_quads_allowed + rule.quads_per_pair)
    assert arms.made <= arms.room

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path

import pytest

from frx_graph.runs.tune.live_arm import AlternatingArms, ArmEndedError, ArmStart, SuccessiveArms
from frx_graph.runs.tune.step_stream import SETTLE_NS
from frx_graph.trials.schedule import ABBA, BAAB, Arm

TINY = str(Path(__file__).with_name("tiny_workload.py"))


def starts(**candidate: str):
    def start(arm: Arm) -> ArmStart:
        own = candidate if arm is Arm.CANDIDATE else {}
        return ArmStart([sys.executable, "-S", TINY], {**os.environ, **own}, 60.0, ignore_load=True)

    return start


def step_ends(folder: Path) -> list[tuple[int, str]]:
    found = []
    for trace in folder.glob("00-*/raw/trace.jsonl"):
        arm = trace.parent.parent.name
        for line in trace.read_text().splitlines():
            event = json.loads(line)
            if event["event_type"] == "step_end":
                found.append((event["timestamp_ns"], arm))
    return sorted(found)


def test_while_one_runs_the_other_makes_no_step(tmp_path):
    order = [*ABBA, *BAAB, *ABBA]
    with AlternatingArms(starts(), tmp_path, warmup=2, steps=4) as arms:
        arms.start_fresh(Arm.BASELINE)
        blocks = [arms.run_block(arm) for arm in order]
    assert [block.arm for block in blocks] == order
    turns = [arm for arm, _ in itertools.groupby(arm for _, arm in step_ends(tmp_path))]
    # Each warms up, then they take turns; two blocks of one arm in a row are one turn.
    wanted = [arm for arm, _ in itertools.groupby([Arm.BASELINE, Arm.CANDIDATE, *order])]
    assert turns == [f"00-{arm}" for arm in wanted]


def test_steps_right_after_a_stop_do_not_count(tmp_path):
    with AlternatingArms(starts(), tmp_path, warmup=2, steps=4) as arms:
        arms.start_fresh(Arm.BASELINE)
        arms.run_block(Arm.BASELINE)
        before = list_ends(tmp_path)
        block = arms.run_block(Arm.BASELINE)
    ends = list_ends(tmp_path)
    lasted = [(after - one) / 1e9 for one, after in itertools.pairwise(ends)]
    (counted,) = [at for at in range(len(before), len(lasted)) if tuple(lasted[at : at + 4]) == block.step_seconds]
    assert ends[counted] - before[-1] >= SETTLE_NS


def list_ends(folder: Path) -> list[int]:
    return [at for at, arm in step_ends(folder) if arm == "00-baseline"]


def test_each_pair_is_fresh_and_the_one_before_is_gone(tmp_path, processes_of):
    with AlternatingArms(starts(), tmp_path, warmup=1, steps=2) as arms:
        arms.start_fresh(Arm.BASELINE)
        arms.run_block(Arm.CANDIDATE)
        arms.start_fresh(Arm.CANDIDATE)
        arms.run_block(Arm.CANDIDATE)
        assert not processes_of(tmp_path / "00-candidate")
        assert processes_of(tmp_path / "01-candidate")
    assert not processes_of(tmp_path / "01-candidate")
    assert (tmp_path / "01-baseline" / "raw" / "trace.jsonl").is_file()


def test_failed_candidate_leaves_no_processes(tmp_path, processes_of):
    with (
        pytest.raises(ArmEndedError) as ended,
        AlternatingArms(starts(TINY_STEPS="1", TINY_EXIT="1"), tmp_path, warmup=5, steps=2) as arms,
    ):
        arms.start_fresh(Arm.BASELINE)
    assert ended.value.arm is Arm.CANDIDATE
    assert not processes_of(tmp_path / "00-baseline")


def test_successive_arms_run_every_block_in_its_own_process(tmp_path, processes_of):
    with SuccessiveArms(starts(), tmp_path, warmup=1, steps=3) as arms:
        arms.start_fresh(Arm.BASELINE)
        for arm in ABBA:
            assert len(arms.run_block(arm).step_seconds) == 3
            assert not processes_of(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00-baseline", "01-candidate", "02-candidate", "03-baseline"]

"""Warm arms: forked where that is safe, started one by one elsewhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest
import torch

from frx_graph.support.supervisor.fork_server import ForkServer
from frx_graph.trial_worker import launch
from frx_graph.trial_worker.launch import WarmArms, open_warm_arms, share_warm_arms
from frx_graph.trials.arm_messages import Load, Loaded, Measure, Measured, TargetWorkload, Warm, Warmed, ask

MODEL = """
import os
import torch

def build():
    return torch.nn.Conv2d(3, int(os.environ.get("FRX_TEST_WIDTH", "4")), 3), (torch.randn(1, 3, 8, 8),)
"""


def make_load(folder: Path) -> Load:
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    return Load(TargetWorkload(f"{folder / 'model.py'}:build"), False, "eager", seed=0, random=False)


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux" or torch.cuda.is_available(), reason="arms are not forked here")
def test_warm_arms_compile_measure_and_inherit_what_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = make_load(tmp_path)
    with WarmArms() as warm:
        parents = []
        for width in ("4", "4", "5"):
            monkeypatch.setenv("FRX_TEST_WIDTH", width)
            with warm.start() as arm:
                parents.append(psutil.Process(arm.pid).ppid())
                loaded = ask(arm, load, Loaded, 120)
                assert ask(arm, Warm(2), Warmed, 120).failures == ()
                assert len(ask(arm, Measure(3), Measured, 120).seconds) == 3
            assert loaded.environment.setup.frx
    # Another environment needs another process to fork from.
    assert parents[0] == parents[1] != parents[2]
    assert os.getpid() not in parents
    assert not any(map(psutil.pid_exists, parents))


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux" or torch.cuda.is_available(), reason="arms are not forked here")
def test_trials_that_share_fork_from_one_process_that_began_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = make_load(tmp_path)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    before = set(psutil.Process().children())
    with share_warm_arms():
        (server,) = set(psutil.Process().children()) - before
        for folder in (tmp_path / "one", tmp_path / "other"):
            # Torch sets it itself when it is first used.
            monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
            with open_warm_arms() as warm, warm.start() as arm:
                assert psutil.Process(arm.pid).ppid() == server.pid
                ask(arm, load, Loaded, 120)
    assert not server.is_running()


@pytest.mark.integration
def test_arms_are_started_one_by_one_if_none_can_be_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> ForkServer:
        raise OSError("no socket")

    monkeypatch.setattr(launch, "ForkServer", refuse)
    with WarmArms() as warm, warm.start() as arm:
        assert psutil.Process(arm.pid).ppid() == os.getpid()
        ask(arm, make_load(tmp_path), Loaded, 120)

"""A real Ray cluster of two nodes on this machine: what runs where, what is lost with a node, and what is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from frx_graph.cli.interrupt import EXIT_INTERRUPTED
from frx_graph.cli.main import run
from frx_graph.engines.attempt import ProcessorPart
from frx_graph.engines.cluster import Cluster, Reservation, Running
from frx_graph.engines.engine import Holding, Job, JobResult, LocalEngine
from frx_graph.errors import FrxError
from frx_graph.reports.trials.trial_document import TrialMatrixDocument
from frx_graph.support.allocator import Allocation
from frx_graph.trials.environment import read_trial_environment
from frx_graph.trials.trial_run import Gate

pytest.importorskip("ray", reason="needs the [ray] extra")
pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
sys.path.append(str(HERE))
from cluster_jobs import Doubled, Dying, Failing, PlayedTrial, Surroundings, WithArm, processes_of  # noqa: E402

RayNode = Callable[..., dict[str, Any]]
SECONDS = 120.0
"""Longest that anything is waited for."""


class Silent:
    """A cluster that never tells of what runs on the node `lost`."""

    def __init__(self, cluster: Cluster, lost: str) -> None:
        self._cluster = cluster
        self._lost = lost

    def wait(
        self, reservations: Collection[Reservation], running: Collection[Running], seconds: float
    ) -> tuple[tuple[Reservation, ...], tuple[Running, ...]]:
        told = [one for one in running if one.reservation.node.id != self._lost]
        return self._cluster.wait(reservations, told, seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)


def ran(
    cluster: Any,
    jobs: Sequence[Job[Any]],
    folder: Path | None = None,
    *,
    holding: Holding = Holding.CORES,
    silent_about: str = "",
) -> list[JobResult[Any]]:
    from frx_graph.engines.ray_cluster import connect_ray
    from frx_graph.engines.ray_engine import RayEngine

    with (
        connect_ray(cluster.address) as connected,
        contextlib.closing(
            RayEngine(Silent(connected, silent_about), holding, folder=folder).run(jobs, lambda _: None)
        ) as finished,
    ):
        return sorted(finished, key=lambda one: one.number)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def no_process_is_left(folder: Path) -> None:
    assert len(processes_of(folder)) >= 4, "two trials, each with an arm"
    wait_until(lambda: not any(map(alive, processes_of(folder))))


@pytest.fixture
def own_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use as many threads as a new process without `OMP_NUM_THREADS`: this one has read the variable already."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    program = [sys.executable, "-c", "import torch; print(torch.get_num_threads())"]
    torch.set_num_threads(int(subprocess.run(program, capture_output=True, text=True, check=True).stdout))
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("own_threads")
def test_jobs_return_the_same_on_the_cluster_as_locally(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    jobs = (*(PlayedTrial(seed) for seed in range(2)), Doubled(7), Failing())
    there, here = ran(cluster, jobs, tmp_path), list(LocalEngine().run(jobs, lambda _: None))
    for number in range(2):
        far, near = there[number].result, here[number].result
        assert replace(far, environment=None, load=None) == replace(near, environment=None, load=None)
        assert {quad.quad.pair for quad in far.quads} > {0}
        assert far.environment.setup == near.environment.setup
    assert there[0].result.quads != there[1].result.quads
    # No thread count of Ray's, and the user's folder.
    assert there[2].result == (14, there[2].result[1], str(tmp_path), None)
    assert str(there[3].result) == str(here[3].result) == "the program does not run (run it by itself first)"
    assert {one.placed.node for one in there if one.placed} == {n.node_id for n in cluster.list_all_nodes()}


def test_an_attempt_whose_process_is_killed_is_made_again_and_not_for_ever(cluster: Any, tmp_path: Path) -> None:
    for name in "once", "always":
        (tmp_path / name).mkdir()
    once, always = ran(cluster, (Dying(str(tmp_path / "once"), 1), Dying(str(tmp_path / "always"), 9)))
    assert once.result == 1
    assert len(once.placed.lost) == 1
    assert "its process was ended by signal 9" in once.placed.lost[0]
    assert isinstance(always.result, FrxError)
    assert always.result.message.startswith("void: 3 attempts were lost")
    assert len(list((tmp_path / "always").iterdir())) == 3


@pytest.mark.parametrize("told", [True, False])
def test_a_node_is_killed_in_the_middle(cluster: Any, ray_node: RayNode, tmp_path: Path, *, told: bool) -> None:
    """Both trials are under way; that of the lost node is made again on the other one, and each counts once. So it is
    where Ray never tells of it."""
    gate = tmp_path / "gate"
    gate.touch()
    lost = cluster.add_node(**ray_node())
    others = [one for one in cluster.list_all_nodes() if one.node_id not in (lost.node_id, cluster.head_node.node_id)]
    for one in others:
        cluster.remove_node(one)
    killed: list[int] = []

    def kill() -> None:
        wait_until(lambda: len(processes_of(tmp_path)) == 4)
        before = set(processes_of(tmp_path))
        cluster.remove_node(lost, allow_graceful=False)
        # Those of one of the two, and no other.
        wait_until(lambda: sum(map(alive, before)) == 2)
        killed.extend(pid for pid in before if not alive(pid))
        gate.unlink()

    killer = threading.Thread(target=kill)
    killer.start()
    jobs = [WithArm(str(tmp_path), number, str(gate)) for number in range(2)]
    found = ran(cluster, jobs, silent_about="" if told else lost.node_id)
    killer.join()
    assert [one.result for one in found] == [0, 1]
    assert sorted(len(one.placed.lost) for one in found if one.placed) == [0, 1]
    assert told or [one for one in found if one.placed and "its node has gone" in "".join(one.placed.lost)]
    assert {one.placed.node for one in found if one.placed} == {cluster.head_node.node_id}
    assert len(killed) == 2
    assert len(list(tmp_path.glob("started-*"))) == 3
    cluster.add_node(**ray_node())
    no_process_is_left(tmp_path)


def test_a_trial_sees_the_gpu_that_it_has_and_uses_its_part_of_the_processors(
    cluster: Any, ray_node: RayNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray is told of GPUs that are not there."""
    jobs = [Surroundings(f"job {number}") for number in range(3)]
    with monkeypatch.context() as patched:
        patched.setenv("CUDA_VISIBLE_DEVICES", "4,5")
        added = cluster.add_node(**ray_node(2, 2))
    try:
        found = [one.result for one in ran(cluster, jobs, holding=Holding.GPU)]
        assert {gpus for _, gpus, _ in found} <= {"4", "5"}
        parts = [ProcessorPart(number, 2).select_processors(os.sched_getaffinity(0)) for number in range(2)]
        assert all(processors in parts for processors, _, _ in found)
        found = [one.result for one in ran(cluster, jobs)]
        assert {gpus for _, gpus, _ in found} == {""}
        assert {processors for processors, _, _ in found} == {frozenset(os.sched_getaffinity(0))}
    finally:
        cluster.remove_node(added)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_driver_nothing_is_left(cluster: Any, tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "gate").touch()
    driver = subprocess.Popen(
        [sys.executable, str(HERE / "cluster_driver.py"), cluster.address, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: driver.poll() is not None or len(processes_of(tmp_path)) == 4)
        assert driver.poll() is None, driver.communicate()
        driver.send_signal(number)
        out, err = driver.communicate(timeout=SECONDS)
    finally:
        driver.kill()
    assert out == ""
    assert driver.returncode == (EXIT_INTERRUPTED if number == signal.SIGINT else -number), err
    no_process_is_left(tmp_path)
    if number != signal.SIGKILL:
        # What Ray kills leaves its folder.
        assert not list(tmp_path.glob("frx-trial-*"))
    # The places are free again.
    assert [one.result[0] for one in ran(cluster, (Doubled(1), Doubled(2)))] == [2, 4]


MODEL = """
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 4).eval(), (torch.randn(2, 4),)
"""
POLICY = "process_pairs: 2\nquads_per_pair: 3\nsteps_per_block: 1\nvoid_quads_allowed: 0\ntime_budget_seconds: 240\n"


def test_a_real_trial_runs_on_a_node_beside_one_that_comes_to_nothing(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "policy.yaml").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRX_LEDGER", str(tmp_path / "ledger.sqlite3"))
    arguments = ["--aa", "--inner", "eager", "--policy", "policy.yaml", "--engine", "ray", "--address", cluster.address]
    assert run(["trial", "model.py:build", "model.py:gone", *arguments, "--json"]) == 2
    captured = capsys.readouterr()
    assert "has no 'gone'" in captured.err
    real, gone = TrialMatrixDocument.model_validate_json(captured.out).trials
    assert (gone.target, gone.trial) == ("model.py:gone", None)
    assert "has no 'gone'" in (gone.error or "")
    assert real.trial is not None
    assert real.trial.verdict != "promote"
    assert [gate.name for gate in real.trial.gates] == list(Gate)
    assert real.trial.place is not None
    assert real.trial.place.node in {one.node_id for one in cluster.list_all_nodes()}
    assert real.trial.environment is not None
    # The environment of the node, which is this machine's, without what Ray sets.
    found = real.trial.environment.setup
    assert replace(found, allocation=Allocation.DEFAULT) == read_trial_environment(torch.device("cpu")).setup
    assert not (tmp_path / "ledger.sqlite3").exists()


TINY = HERE.parent / "runs" / "tune" / "tiny_workload.py"


def test_candidates_of_a_tune_run_beside_each_other_and_bring_their_files(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ("--ignore-load", "--warmup-steps", "1", "--measure-steps", "6", "--family", "custom", "--no-race")
    where = ("--engine", "ray", "--address", cluster.address, "--out", "runs")
    candidates = ("--candidate", "TINY_FAST=1", "--candidate", "TINY_OTHER=1")
    code = run(["tune", *quick, *where, *candidates, "--json", "--", sys.executable, "-S", str(TINY)])
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["status"] == "complete", captured.err
    assert code == (0 if document["winner"] else 1)
    (folder,) = Path("runs").iterdir()
    nodes = {one.node_id for one in cluster.list_all_nodes()}
    for name in ("baseline", "custom-TINY_FAST1", "custom-TINY_OTHER1"):
        assert (folder / name / "stdout.log").read_text() == "hello\n"
        assert (folder / name / "raw" / "trace.jsonl").is_file()
        assert json.loads((folder / name / "place.json").read_text())["node"] in nodes
    fates = {trial["configuration"]["label"]: trial["fate"] for trial in document["trials"] if trial["kind"] == "full"}
    assert fates["custom:TINY_OTHER=1"] != "promote"
    # What is finished is not measured again.
    before = (folder / "custom-TINY_FAST1" / "metrics.json").stat().st_mtime_ns
    again = ("--resume", str(folder), "--quiet")
    assert run(["tune", *quick, *where, *candidates, *again, "--", sys.executable, "-S", str(TINY)]) == code
    assert (folder / "custom-TINY_FAST1" / "metrics.json").stat().st_mtime_ns == before


def test_failing_tune_program_error_names_the_log(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    where = ("--engine", "ray", "--address", cluster.address, "--out", "runs")
    assert run(["tune", *where, "--", sys.executable, "-c", "raise SystemExit('no data')"]) == 2
    (folder,) = Path("runs").iterdir()
    assert f"(look at {folder}/baseline/stderr.log)" in capsys.readouterr().err
    assert "no data" in (folder / "baseline" / "stderr.log").read_text()

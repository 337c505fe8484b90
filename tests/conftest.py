"""What holds for all tests."""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import settings
from torch._inductor.utils import fresh_cache

from frx_graph import backend
from frx_graph.compiler import operator_times
from frx_graph.passes.rewrites.layout.anchor_calls import anchor_orders
from frx_graph.serialization.decisive_settings import decisive_settings
from frx_graph.serialization.torch_settings import put_settings, settings_in_force
from frx_graph.support.package_path import package_pythonpath

# No deadline, since a busy machine must not fail a test; the same examples on every run where CI is set.
settings.register_profile("frx", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("frx")


@pytest.fixture(autouse=True)
def _settings_of_torch_stay() -> Iterator[None]:
    """They are part of the environment that a decision holds in: those that a test leaves changed would have another
    test look in vain for what it has recorded. Torch's process-wide ones are put back, since torch itself does not:
    its older names for a precision set the newer ones, but not back. The configuration of its compilers has `patch`,
    and who forgets it fails."""
    before, told = settings_in_force(), decisive_settings()
    yield
    put_settings(before)
    assert decisive_settings() == told


@pytest.fixture
def channels_last_is_fastest(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What times say of each anchor, and nothing compiled before: weights are stored anew on every machine."""

    def seconds(subject: Any, *, prepared: bool) -> dict[str, dict[Any, float]]:
        orders = {anchor.op.node: anchor_orders(anchor) for anchor in subject.anchors}
        return {node: dict(zip(both, (1.0, 0.1), strict=True)) for node, both in orders.items()}

    monkeypatch.setattr(operator_times, "anchor_seconds", seconds)
    monkeypatch.setattr(operator_times, "bandwidth_of", lambda _facts: 1e10)
    torch._dynamo.reset()
    backend.clear()
    with fresh_cache():
        yield


@pytest.fixture(autouse=True)
def _signals_come_as_before() -> Iterator[None]:
    """Who leaves one of them ignored, blocked, or handled by something else fails, and not the next test that sends
    itself one. Ray's nodes and torch's loaders put handlers in and leave them."""
    before, blocked = _handlers(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    left = dict(_handlers() - before)
    assert {n: left[n] for n in left if not getattr(left[n], "__module__", "").startswith(("ray.", "torch."))} == {}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked


def _handlers() -> set[tuple[int, object]]:
    return {(number, signal.getsignal(number)) for number in signal.valid_signals()}


@pytest.fixture(autouse=True)
def _no_ledger_of_the_user(
    _settings_of_torch_stay: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What somebody has promoted on this machine is not applied in tests."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.getbasetemp() / "no-data"))
    monkeypatch.delenv("FRX_LEDGER", raising=False)


@pytest.fixture
def processes_of() -> Callable[[Path], list[int]]:
    """Finds the processes whose output goes to a folder, or below."""

    def running(folder: Path) -> list[int]:
        places = {p.pid: (p.info["environ"] or {}).get("FRX_OUTPUT_DIR", "") for p in psutil.process_iter(["environ"])}
        return [pid for pid, place in places.items() if place.startswith(str(folder.resolve()))]

    return running


@pytest.fixture(scope="module")
def ray_node() -> Callable[..., dict[str, Any]]:
    """What a node of Ray on this machine is begun with."""
    return lambda cpus=1, gpus=0: {
        "num_cpus": cpus,
        "num_gpus": gpus,
        "object_store_memory": 80 * 2**20,
        "include_dashboard": False,
    }


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, ray_node: Callable[..., dict[str, Any]]) -> Iterator[Any]:
    """Two nodes of Ray of one processor each; those find this package, and what lies beside the test."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("RAY_worker_niceness", "0")
        patched.setenv("PYTHONPATH", os.pathsep.join((str(request.path.parent), package_pythonpath()["PYTHONPATH"])))
        from ray.cluster_utils import Cluster

        made = Cluster(initialize_head=True, head_node_args=ray_node())
        made.add_node(**ray_node())
        yield made
        made.shutdown()


LAUNCH_SECONDS = 240.0


@pytest.fixture(scope="module")
def start_ranks() -> Iterator[Callable[..., Callable[..., list[Any]]]]:
    """Starts a script that forks ranks (`agreement_ranks.py` says how it is talked to), and gives a function that
    launches them. Whatever is left of them when the tests are over is ended with it."""
    started: list[subprocess.Popen[str]] = []

    def start(script: Path, *arguments: object) -> Callable[..., list[Any]]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, str(script), *map(str, arguments)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return functools.partial(launched, process)

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def launched(launcher: subprocess.Popen[str], folder: Path, scenario: str, world: int, store: str) -> list[Any]:
    """What each rank saw; None for one that died."""
    folder.mkdir()
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    launcher.stdin.write(json.dumps([scenario, world, store, str(folder)]) + "\n")
    launcher.stdin.flush()
    answered, _, _ = select.select([launcher.stdout], [], [], LAUNCH_SECONDS)
    output = folder / "output"
    print(output.read_text(errors="replace") if output.exists() else "")
    if not answered:
        os.killpg(launcher.pid, signal.SIGKILL)
        pytest.fail(f"{scenario} took longer than {LAUNCH_SECONDS} s")
    assert launcher.stdout.readline() == "done\n"
    files = [folder / f"{rank}.json" for rank in range(world)]
    return [json.loads(file.read_text()) if file.exists() else None for file in files]


@pytest.fixture
def nothing_compiled() -> Iterator[None]:
    """No graph of another test, nor of another run: what comes out of Inductor's cache was rewritten before."""
    torch._dynamo.reset()
    backend.clear()
    with fresh_cache():
        yield


@pytest.fixture(autouse=True)
def _rewrites_do_not_fail(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A rewritten graph that fails gives way to the graph as it was, which computes the same: a test that compares
    values would pass. So it fails here, unless it says, by the mark `gives_way`, that it plants such a failure; then
    one must have been seen."""
    seen: list[str] = []
    not_rewritten, roll_back = backend._Session.not_rewritten, backend._Session._roll_back

    def noted_failure(session: Any, error: Exception) -> None:
        seen.append(f"{type(error).__name__}: {error}")
        not_rewritten(session, error)

    def noted_rollback(session: Any, promotion: Any, reason: str) -> None:
        if "failed where the baseline does not" in reason:
            seen.append(reason)
        roll_back(session, promotion, reason)

    monkeypatch.setattr(backend._Session, "not_rewritten", noted_failure)
    monkeypatch.setattr(backend._Session, "_roll_back", noted_rollback)
    yield
    planted = request.node.get_closest_marker("gives_way") is not None
    assert bool(seen) is planted, f"what has given way: {seen}"

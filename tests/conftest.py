"""Fixtures and hooks for all tests. Torch is imported by the tests that need it, never here."""

from __future__ import annotations

import functools
import gc
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis_profiles  # noqa: F401  # loads the profile of this tier
import psutil
import pytest

from frx_graph.support.supervisor.process import extend_pythonpath

# A shell's background jobs ignore Ctrl-C, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Two workers on two cores: one thread for each, and one compiler. Inductor finds g++ in PATH, here behind ccache.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
_COMPILER_CACHE = str(Path(__file__).parent / "compiler_cache")
if _COMPILER_CACHE not in os.environ["PATH"]:
    _TOOLS = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    if shutil.which("ccache", path=_TOOLS) and shutil.which("g++"):
        os.environ["PATH"] = os.pathsep.join((_COMPILER_CACHE, _TOOLS))


def pytest_collection_finish() -> None:
    """Leave what collection made out of later garbage collections, which are many and would take most of the time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let the interpreter collect everything when it ends."""
    gc.unfreeze()


@pytest.fixture
def program_froze_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let memory be observed as in a program of a user, who rarely freezes objects: those of earlier tests are not
    collected in every step."""
    gc.freeze()
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)
    # Objects of earlier tests would count from the second observation on.
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
    yield
    gc.freeze()


LONGEST_UNMARKED_SECONDS = 30.0 if os.environ.get("CI") or os.environ.get("TORCH") else 5.0
"""Longer tests belong to a slower tier, so that `make test` keeps answering in minutes. CI may run on slow machines.
With another torch (`make tests TORCH=...`), the first compilation of each process prepares C++ headers."""
SLOWER_TIERS = ("integration", "nightly")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail an unmarked test that takes too long, by the clock and in processor time: a busy machine must not fail a
    test, nor a child of an earlier test that ends in this one."""
    began, used = time.monotonic(), _processor_seconds()
    yield
    seconds = min(time.monotonic() - began, _processor_seconds() - used)
    if seconds > LONGEST_UNMARKED_SECONDS and not any(map(item.get_closest_marker, SLOWER_TIERS)):
        pytest.fail(
            f"{seconds:.1f} s is longer than {LONGEST_UNMARKED_SECONDS:g} s: make it faster, or mark it `integration`",
            pytrace=False,
        )


def _processor_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


@pytest.fixture(autouse=True)
def _restore_torch_settings() -> Iterator[None]:
    """Put torch's process-wide settings back: they are part of the environment that a decision holds for, so a later
    test would not find what it recorded. Settings of torch's compilers have `patch`; a test that leaves them changed
    fails."""
    if "torch" not in sys.modules:
        yield
        return
    from frx_graph.serialization.decisive_settings import collect_decisive_settings
    from frx_graph.serialization.torch_settings import apply_torch_settings, read_torch_settings

    before, decisive = read_torch_settings(), collect_decisive_settings()
    yield
    apply_torch_settings(before)
    assert collect_decisive_settings() == decisive


@pytest.fixture
def onednn_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch alone call oneDNN, as where its library is not installed."""
    from frx_graph.compiler import inductor
    from frx_graph.passes.rewrites import onednn_regions

    for module in (inductor, onednn_regions):
        monkeypatch.setattr(module, "find_library", lambda: "oneDNN's library is not installed")


@pytest.fixture
def no_graph_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep graphs that are predicted to lose: the prices of small graphs are noise, and differ between machines."""
    from frx_graph.compiler import rewrite_pipeline

    monkeypatch.setattr(rewrite_pipeline, "_find_loser", lambda _done: None)


@pytest.fixture
def channels_last_is_fastest(monkeypatch: pytest.MonkeyPatch, nothing_compiled: None, no_graph_loses: None) -> None:
    """Make measured times favour channels-last for every convolution, on every machine."""
    from frx_graph.compiler import operator_times
    from frx_graph.passes.rewrites.layout.anchor_calls import list_anchor_orders

    def seconds(subject: Any, *, prepared: bool) -> dict[str, dict[Any, float]]:
        orders = {anchor.op.node: list_anchor_orders(anchor) for anchor in subject.anchors}
        return {node: dict(zip(both, (1.0, 0.1), strict=True)) for node, both in orders.items()}

    monkeypatch.setattr(operator_times, "time_anchors", seconds)
    monkeypatch.setattr(operator_times, "measure_bandwidth", lambda _facts: 1e10)


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
    _restore_torch_settings: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
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
    """Return the settings that a node of Ray starts with."""
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
        patched.setenv("PYTHONPATH", os.pathsep.join((str(request.path.parent), extend_pythonpath()["PYTHONPATH"])))
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
    """Forget compiled graphs, of other tests and of other runs: a graph from Inductor's cache was rewritten before."""
    import torch
    from torch._inductor.utils import fresh_cache

    from frx_graph import backend

    torch._dynamo.reset()
    backend.clear()
    with fresh_cache():
        yield


@pytest.fixture(autouse=True)
def _rewrites_do_not_fail(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test in which a rewritten graph fell back to the original one: both compute the same, so a comparison of
    values would pass. The mark `gives_way` says that a test plants such a failure; then one must have been seen."""
    planted = request.node.get_closest_marker("gives_way") is not None
    if "frx_graph.backend" not in sys.modules:
        assert not planted
        yield
        return
    from frx_graph import backend

    seen: list[str] = []
    not_rewritten, roll_back = backend._Session.warn_not_rewritten, backend._Session._roll_back

    def noted_failure(session: Any, error: Exception) -> None:
        seen.append(f"{type(error).__name__}: {error}")
        not_rewritten(session, error)

    def noted_rollback(session: Any, promotion: Any, reason: str) -> None:
        if "failed where the baseline does not" in reason:
            seen.append(reason)
        roll_back(session, promotion, reason)

    monkeypatch.setattr(backend._Session, "warn_not_rewritten", noted_failure)
    monkeypatch.setattr(backend._Session, "_roll_back", noted_rollback)
    yield
    assert bool(seen) is planted, f"fell back: {seen}"

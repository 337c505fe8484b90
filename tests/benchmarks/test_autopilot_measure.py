"""The process that the autopilot runs in: that it is the real network which is compiled, and that it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import autopilot_case
import autopilot_measure
import pytest
import torch
from autopilot_case import Asked, Found, graph_folder
from autopilot_measure import Job, measure
from torch import fx
from versus_arms import Inner

from frx_graph import backend
from frx_graph.errors import SerializationError
from frx_graph.options import BackendOptions
from frx_graph.trial_worker.graph_file import read_graph
from frx_graph.trials.policy import TrialPolicy

GRAPH = {"0" * 16: "it has a stream"}


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FRX_LEDGER", str(tmp_path / "ledger.sqlite3"))
    torch._dynamo.reset()
    backend.clear()
    yield
    torch._dynamo.reset()
    backend.clear()


def asked(folder: Path, *, train: bool = False) -> Asked:
    policy = {"minimum_speedup": 0.07}
    return Asked(
        model="conv_flatten_linear",
        train=train,
        batch=2,
        device="cpu",
        inner=Inner.EAGER,
        policy=policy,
        folder=folder,
    )


@pytest.mark.integration
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_each_graph_is_kept_under_the_signature_that_the_autopilot_has_for_it(
    fresh: None, train: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, float, bool]] = []

    def try_graph(
        dynamo: fx.GraphModule, inputs: Any, options: BackendOptions, policy: TrialPolicy, *, signature: str, **_: Any
    ) -> None:
        seen.append((signature, policy.minimum_speedup, torch.is_grad_enabled()))

    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", try_graph)
    found = autopilot_case.run(asked(tmp_path, train=train))
    assert found == Found(graphs={seen[0][0]: None}, warned=(), error=None)
    assert seen == [(seen[0][0], 0.07, train)]
    graph = read_graph(graph_folder(tmp_path, seen[0][0]))
    assert [value.shape[0] for value in graph.args if value.dim() == 4] == [2]


def test_failing_case_reports_its_error(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise SerializationError("an operator of the script")

    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", fails)
    monkeypatch.setattr(autopilot_case, "write_graph", fails)
    found = autopilot_case.run(asked(tmp_path))
    assert list(found.graphs.values()) == ["an operator of the script"]
    assert len(found.warned) == 1
    assert "an operator of the script" in found.warned[0]
    assert found.error is None
    broken = autopilot_case.run(asked(tmp_path).model_copy(update={"device": "nowhere"}))
    assert broken.error is not None
    assert "nowhere" in broken.error


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What runs in the place of the network's process; it can use `found`, to which its results go."""

    def write(text: str) -> None:
        file = tmp_path / "program.py"
        head = "import json, os, sys, time\nfrom pathlib import Path\n"
        head += "found = Path(json.loads(sys.argv[1])['folder']) / 'found.json'\n"
        file.write_text(head + text)
        monkeypatch.setattr(autopilot_measure, "_PROGRAM", file)

    return write


def job(limit_seconds: float = 600.0) -> Job:
    return Job("resnet18", False, 1, "cpu", Inner.EAGER, TrialPolicy(), limit_seconds)


def test_results_of_the_process_are_read(program: Callable[[str], None]) -> None:
    program(f"found.write_text({Found(graphs=GRAPH, warned=('frx: no',), error=None).model_dump_json()!r})")
    case = measure(job(), lambda _: None)
    assert (case.title, case.problems, case.failed) == ("resnet18, batch 1", ("frx: no",), False)
    assert [(graph.signature, graph.problem) for graph in case.graphs] == list(GRAPH.items())


def test_a_process_that_fails_is_a_case_that_failed(program: Callable[[str], None]) -> None:
    program("sys.exit(3)")
    case = measure(job(), lambda _: None)
    assert (case.problems, case.failed, case.graphs) == (("its process ended with code 3",), True, ())


@pytest.mark.integration
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_process_that_does_not_end_is_ended(
    program: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    monkeypatch.setattr(autopilot_measure, "_INTERRUPTED_SECONDS", 0.5 if stubborn else 60.0)
    note = tmp_path / "process"
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" if stubborn else ""
    program(f"{ignore}Path({str(note)!r}).write_text(str(os.getpid()))\ntime.sleep(600)")
    # Long enough for the program to say who it is.
    case = measure(job(limit_seconds=5.0), lambda _: None)
    assert (case.problems, case.failed) == (("it was not finished after 5 s",), True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)

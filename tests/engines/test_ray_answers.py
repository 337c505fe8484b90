"""What Ray's errors say about a job, without a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from frx_graph.engines.attempt import Ending
from frx_graph.engines.cluster import Node, Reservation, Running, Share
from frx_graph.engines.ray_cluster import RayCluster

ray = pytest.importorskip("ray", reason="needs the [ray] extra")
PLACE = Reservation(Node("a", "10.0.0.1", 4.0, 0.0), Share(4.0, 0.0, 1.0), None)


def cluster(error: Exception) -> RayCluster:
    """One that tells this of every task."""

    def get(_handle: object) -> Any:
        raise error

    told = SimpleNamespace(
        exceptions=ray.exceptions,
        get=get,
        remote=lambda **_: lambda function: function,
        get_runtime_context=lambda: SimpleNamespace(runtime_env={}),
    )
    return RayCluster(told)


def task_error(cause: Exception) -> Exception:
    error: Exception = ray.exceptions.RayTaskError("attempt", "", cause, proctitle="worker", pid=1, ip="10.0.0.1")
    return error


def test_a_node_that_cannot_be_set_up_is_unfit_and_others_may_do() -> None:
    said = "No space left\non device"
    answer = cluster(ray.exceptions.RuntimeEnvSetupError(said)).get_answer(Running(PLACE, None, "a1"))
    assert (answer.attempt, answer.ending, answer.hint) == ("a1", Ending.UNFIT, "see --working-dir")
    assert answer.text.startswith("it cannot be set up: ")
    assert "No space left on device" in answer.text


@pytest.mark.parametrize("cause", [ModuleNotFoundError("No module named 'frx_graph'"), PermissionError("python")])
def test_a_node_that_cannot_run_it_is_unfit(cause: Exception) -> None:
    answer = cluster(task_error(cause)).get_answer(Running(PLACE, None, "a1"))
    assert (answer.ending, answer.hint) == (Ending.UNFIT, "install frx-graph on all nodes")
    assert answer.text.startswith(f"it cannot run it: {type(cause).__name__}")


def test_cancelled_or_crashed_task_is_lost() -> None:
    for error in ray.exceptions.TaskCancelledError(), ray.exceptions.WorkerCrashedError():
        assert cluster(error).get_answer(Running(PLACE, None, "a1")).ending is Ending.LOST

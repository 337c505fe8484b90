"""Runs read on a real Ray cluster of two nodes of this machine: the same is found as here, with a node lost, too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from frx_graph.cli.main import run
from frx_graph.errors import EvidenceError
from frx_graph.fleet import ray_reading
from frx_graph.fleet.fleet import read_locally, summarize_fleet
from frx_graph.fleet.messages import Failure, ReadingTask, ReadRun
from frx_graph.reports.runs.fleet_document import FleetDocument
from frx_graph.version import __version__

pytest.importorskip("ray", reason="needs the [ray] extra")
pytest.importorskip("duckdb", reason="needs the [fleet] extra")
pytestmark = pytest.mark.integration


@pytest.fixture
def runs(recorded: Path, traced: Path, zipped: Callable[..., Path], tmp_path: Path) -> Path:
    """More than one task reads."""
    home = tmp_path / "runs"
    for number in range(3 * ray_reading.PLACES_OF_A_TASK):
        shutil.copytree(traced if number % 10 == 0 else recorded, home / f"run-{number}")
    zipped(home / "some.zip", recorded, traced)
    (home / "broken.zip").write_text("PK")
    return home


def test_a_cluster_finds_what_is_found_here(
    cluster: Any, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs.parent)
    assert run(["fleet", "runs", "--engine", "ray", "--address", cluster.address, "--json"]) == 1
    found = FleetDocument.model_validate(json.loads(capsys.readouterr().out))
    here = summarize_fleet("runs", partial(read_locally, workers=2), lambda _: None)
    assert found.bundles.read == 3 * ray_reading.PLACES_OF_A_TASK + 2
    assert found == here


def test_unreported_runs_of_a_lost_node_are_read_elsewhere(
    cluster: Any, ray_node: Callable[..., dict[str, Any]], runs: Path
) -> None:
    from frx_graph.engines.ray_cluster import connect_ray

    lost = cluster.add_node(**ray_node())
    with connect_ray(cluster.address) as connected:
        answers = ray_reading.read_on_cluster(connected.ray, str(runs))
        first = next(answers)
        cluster.remove_node(lost, allow_graceful=False)
        found = [first, *answers]
    assert sum(isinstance(one, ReadRun) for one in found) == 3 * ray_reading.PLACES_OF_A_TASK + 2
    assert [one.name for one in found if isinstance(one, Failure)] == ["broken.zip"]


def test_a_node_without_the_runs_or_with_other_code_is_an_error(tmp_path: Path) -> None:
    gone = ReadingTask(kind="folder", path=str(tmp_path / "gone"), name="gone")
    with pytest.raises(EvidenceError, match=r"has no .*gone") as raised:
        ray_reading.read_places_on_node(str(tmp_path), [gone], __version__)
    assert "shared file system" in str(raised.value.hint)
    with pytest.raises(EvidenceError, match=f"has frx-graph {__version__}, not 9"):
        ray_reading.read_places_on_node(str(tmp_path), [], "9")


def test_such_an_error_ends_all(cluster: Any, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from frx_graph.engines.ray_cluster import connect_ray

    monkeypatch.setattr(ray_reading, "__version__", "9")
    with connect_ray(cluster.address) as connected, pytest.raises(EvidenceError, match="not 9"):
        list(ray_reading.read_on_cluster(connected.ray, str(runs)))


def test_processes_are_counted_here_only(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fleet", str(runs), "--engine", "ray", "--workers", "2"]) == 2
    assert "--workers is for runs read on this machine" in capsys.readouterr().err
    assert run(["fleet", str(runs), "--address", "auto"]) == 2
    assert "--address is for a Ray cluster" in capsys.readouterr().err

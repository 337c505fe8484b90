"""Runs of a fleet, made small."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from written_runs import waiting_run

from frx_graph.analyze.run import analyze_files
from frx_graph.evidence.run.bundle import open_bundle
from frx_graph.fleet.reader import Reader
from frx_graph.reports.runs.run_document import format_summary

RESNET = Path(__file__).parents[1] / "data" / "traces" / "kineto_resnet50_two_steps.pt.trace.json.gz"


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with events, samples and a summary."""
    return _summarised(waiting_run(10).write(tmp_path_factory.mktemp("recorded") / "run-1"))


@pytest.fixture(scope="session")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with a profiler's trace that has layout findings."""
    folder = waiting_run(10).write(tmp_path_factory.mktemp("traced") / "run-2")
    (folder / "profiler").mkdir()
    shutil.copy(RESNET, folder / "profiler")
    return _summarised(folder)


def _summarised(folder: Path) -> Path:
    with open_bundle(folder) as bundle:
        text = format_summary(analyze_files(bundle))
    (folder / "derived").mkdir()
    (folder / "derived" / "summary.json").write_text(text)
    return folder


@pytest.fixture
def zipped() -> Callable[..., Path]:
    """Makes a zip of folders, each with its own name in it."""

    def write(path: Path, *folders: Path, root: str = "") -> Path:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for folder in folders:
                for file in sorted(folder.rglob("*")):
                    if file.is_file():
                        archive.write(file, f"{root}{file.relative_to(folder.parent)}")
        return path

    return write


@pytest.fixture
def readers() -> Iterator[Callable[..., Reader]]:
    """Makes readers, and ends them."""
    made: list[Reader] = []

    def make(*arguments: object, **settings: object) -> Reader:
        made.append(Reader(*arguments, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for reader in made:
        reader.close()


@pytest.fixture
def copies(recorded: Path) -> Callable[[Path, Sequence[str]], None]:
    """Copies of the recorded bundle, under other names."""

    def write(folder: Path, names: Sequence[str]) -> None:
        for name in names:
            shutil.copytree(recorded, folder / name)

    return write

"""All of it together: found, read by processes, added up."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest

from frx_graph.errors import EvidenceError, OptionError
from frx_graph.fleet.fleet import read_here, summarise
from frx_graph.reports.fleet_document import FleetDocument
from frx_graph.reports.fleet_report import render_fleet

pytest.importorskip("duckdb")

Zipped = Callable[..., Path]


def summarised(source: object, parquet: Path | None = None) -> FleetDocument:
    return summarise(str(source), partial(read_here, workers=2), lambda _: None, parquet)


def put(folder: Path, url: str) -> None:
    files = fsspec.filesystem("memory")
    files.makedirs(url, exist_ok=True)
    files.put(f"{folder}/", f"{url}/{folder.name}", recursive=True)


@pytest.fixture
def memory() -> Iterator[Any]:
    """The file system that is in memory, empty."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def test_a_folder_of_folders_and_zips(recorded: Path, traced: Path, zipped: Zipped, tmp_path: Path) -> None:
    home = tmp_path / "runs [2]*'"
    shutil.copytree(traced, home / "here" / "run-2")
    zipped(home / "run-1.zip", recorded)
    zipped(home / "again.zip", recorded, traced)
    (home / "broken.zip").write_text("PK")
    document = summarised(home, tmp_path / "kept [a]")
    assert document.bundles.model_dump() == {
        "read": 4,
        "analysed_anew": 0,
        "twice": 2,
        "problems": 1,
        "problems_listed": ({"place": "broken.zip", "reason": "is no zip archive, or the end of one is missing"},),
        "rows_left_out": 0,
    }
    assert (document.runs.runs, document.runs.with_trace, document.runs.steps) == (2, 1, 20)
    assert document.runs.seconds == pytest.approx(2.0)
    assert [(part.label, part.runs) for part in document.bottlenecks] == [("input_bound", 2)]
    costs = {part.label: part.cost for part in document.labels}
    assert costs["input_bound"].seconds == pytest.approx(1.2)
    assert costs["input_bound"].share == pytest.approx(0.6)
    assert (costs["underutilized_gpu"].seconds, costs["underutilized_gpu"].runs_unknown) == (None, 2)
    rules = {part.rule: part for part in document.rules}
    assert rules["FRX006"].runs == 2
    assert (rules["FRX006"].cost.seconds, rules["FRX006"].cost.runs_unknown) == (None, 2)
    assert rules["FRX006"].bytes_per_step is None
    assert rules["FRX004"].bytes_per_step == 128450560 / 2
    assert sorted(path.name for path in (tmp_path / "kept [a]").iterdir()) == [
        "advice.parquet",
        "findings.parquet",
        "labels.parquet",
        "problems.parquet",
        "runs.parquet",
    ]
    again = summarised(home)
    assert again == document


def test_a_zip_by_itself_and_a_run_by_itself(recorded: Path, traced: Path, zipped: Zipped, tmp_path: Path) -> None:
    assert summarised(zipped(tmp_path / "two.zip", recorded, traced)).runs.runs == 2
    assert summarised(recorded).runs.runs == 1


@pytest.mark.slow
def test_names_with_control_characters(recorded: Path, tmp_path: Path) -> None:
    """A thousand of them, half of which cannot be read."""
    summary = json.loads((recorded / "derived" / "summary.json").read_text())
    for scope in ("run", "steady_state"):
        summary[scope]["per_step"] = []
    for number in range(1000):
        name = b"run-%d\x1b[31m\n\t\xff\x7f" % number + "\u202e".encode()
        folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)) / "derived"
        folder.mkdir(parents=True)
        text = json.dumps({**summary, "run_id": f"\x1b]0;run {number}\x07"}) if number % 2 else "none"
        (folder / "summary.json").write_text(text)
    document = summarised(tmp_path)
    assert (document.bundles.read, document.bundles.problems, document.runs.runs) == (500, 500, 500)
    text = render_fleet(document, top=10, width=80, color=False)
    assert all(line.isprintable() for line in text.split("\n"))
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.slow
def test_a_store_that_is_elsewhere(
    recorded: Path, traced: Path, zipped: Zipped, memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(recorded, "/bucket/a")
    put(traced, "/bucket/b/c")
    fresh = tmp_path / "run-3"
    shutil.copytree(recorded, fresh)
    with (fresh / "raw" / "trace.jsonl").open("a") as file:
        file.write('{"event_type": "other", "timestamp_ns": 5}\n')
    put(fresh, "/bucket/a")
    memory.put(str(zipped(tmp_path / "z.zip", recorded)), "/bucket/z.zip")
    memory.pipe("/bucket/broken.zip", b"PK")
    opened = []
    real = type(memory).open

    def watched(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        opened.append(path)
        return real(self, path, *arguments, **options)

    monkeypatch.setattr(type(memory), "open", watched)
    document = summarised("memory://bucket")
    assert (document.bundles.read, document.bundles.analysed_anew, document.bundles.twice) == (4, 1, 1)
    assert [problem.place for problem in document.bundles.problems_listed] == ["broken.zip"]
    assert document.runs.with_trace == 1
    # Of runs with a summary of their files nothing else is fetched.
    assert sorted(path for path in opened if "/run-1/" in path or "/run-2/" in path) == [
        "/bucket/a/run-1/derived/summary.json",
        "/bucket/b/c/run-2/derived/summary.json",
    ]
    # A run that is fetched is as one that was here.
    local = tmp_path / "local"
    shutil.copytree(fresh, local / "run-3")
    memory.rm("/bucket/a/run-1", recursive=True)
    assert summarised(local).model_dump(exclude={"source"}) == summarised("memory://bucket/a").model_dump(
        exclude={"source"}
    )
    assert summarised("memory://bucket/z.zip").runs.runs == 1


def test_a_store_whose_files_lie(recorded: Path, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(recorded, "/bucket")
    real = type(memory).find

    def smaller(self: Any, path: str, **options: Any) -> Any:
        found = real(self, path, **options)
        return {name: {**info, "size": info["size"] - 1} for name, info in found.items()}

    monkeypatch.setattr(type(memory), "find", smaller)
    with pytest.raises(EvidenceError, match="has changed while it was fetched"):
        summarised("memory://bucket")


def test_a_file_url_is_a_path(recorded: Path) -> None:
    assert summarised(f"file://{recorded.parent}").runs.runs == summarised(recorded.parent).runs.runs == 1


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nowhere", "no such file or folder"),
        ("memory://nowhere", "there is nothing"),
        ("nosuchstore://bucket", "install its driver"),
        (".", "there is no run"),
        ("bad.zip", "no run can be read: bad.zip: is no zip archive"),
    ],
)
def test_where_there_is_no_run(
    source: str, said: str, memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if source == "bad.zip":
        (tmp_path / "bad.zip").write_text("no")
    with pytest.raises(EvidenceError, match=said) as caught:
        summarised(source)
    assert "\n" not in str(caught.value)


def test_tables_that_cannot_be_kept(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="choose another --parquet"):
        summarised(recorded, tmp_path / "file")

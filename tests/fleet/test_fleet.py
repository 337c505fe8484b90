"""All of it together: found, read by processes, added up."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest

from frx_graph.errors import EvidenceError, OptionError
from frx_graph.fleet.fleet import read_locally, summarize_fleet
from frx_graph.fleet.messages import Answer, Failure
from frx_graph.fleet.remote import RemoteRun, RemoteStore
from frx_graph.fleet.source import PART_BYTES
from frx_graph.reports.runs.fleet_document import FleetDocument
from frx_graph.reports.runs.fleet_report import render_fleet
from frx_graph.support.plain_text import clean_line

pytest.importorskip("duckdb")

Zipped = Callable[..., Path]


def summarised(source: object, parquet: Path | None = None) -> FleetDocument:
    return summarize_fleet(str(source), partial(read_locally, workers=2), lambda _: None, parquet)


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
        "problems_listed": ({"place": "broken.zip", "reason": "is not a zip archive, or its end is missing"},),
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


@pytest.mark.integration
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


@pytest.mark.integration
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


def test_store_with_changed_files_is_refused(recorded: Path, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(recorded, "/bucket")
    real = type(memory).find

    def smaller(self: Any, path: str, **options: Any) -> Any:
        found = real(self, path, **options)
        return {name: {**info, "size": info["size"] - 1} for name, info in found.items()}

    monkeypatch.setattr(type(memory), "find", smaller)
    with pytest.raises(EvidenceError, match="has changed while it was fetched"):
        summarised("memory://bucket")


@pytest.mark.parametrize(
    "key", ["runs/../raw/trace.jsonl", "../raw/trace.jsonl", "runs/./raw/trace.jsonl", "runs//raw/trace.jsonl"]
)
def test_a_name_that_leads_elsewhere_is_not_read(
    recorded: Path, memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """A key of an object store may be any text."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    put(recorded, "/bucket")
    found = {path: {**info, "size": info["size"]} for path, info in memory.find("/bucket", detail=True).items()}
    monkeypatch.setattr(type(memory), "find", lambda *_, **__: {**found, f"/bucket/{key}": {"size": 3}})
    before = {path.name for path in tmp_path.iterdir()}
    document = summarised("memory://bucket")
    assert document.runs.runs == 1
    (problem,) = document.bundles.problems_listed
    assert problem.place == key.removesuffix("/raw/trace.jsonl")
    assert "leads elsewhere" in problem.reason
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.integration
def test_names_that_no_file_here_can_have(recorded: Path, memory: Any, tmp_path: Path) -> None:
    """A run that is fetched lies under no name of its store's, and what cannot be fetched is told of its run alone."""
    fresh = tmp_path / "run-1"
    shutil.copytree(recorded, fresh)
    shutil.rmtree(fresh / "derived")
    long = "r" * 300
    put(fresh, "/bucket/fine")
    for name in sorted(path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file()):
        memory.pipe(f"/bucket/{long}/{name}", (fresh / name).read_bytes())
    memory.pipe(f"/bucket/odd/profiler/{long}.json", b"{}")
    memory.pipe("/bucket/odder/profiler/a\0b.json", b"{}")
    document = summarised("memory://bucket", tmp_path / "kept")
    assert (document.bundles.read, document.bundles.problems) == (2, 2)
    assert [problem.place for problem in document.bundles.problems_listed] == ["odd", "odder"]
    import duckdb

    ids = duckdb.sql(f"SELECT run_id FROM '{tmp_path}/kept/runs.parquet' ORDER BY run_id").fetchall()
    assert ids == [(clean_line(long),), ("run-1",)]


@pytest.mark.parametrize("error", [OSError(36, "File name too long"), ValueError("embedded null byte")])
def test_a_place_that_cannot_be_kept_ends_nothing(
    recorded: Path, memory: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    put(recorded, "/bucket")
    memory.pipe("/bucket/odd/raw/trace.jsonl", b"{}")
    real = RemoteStore._read_run

    def run(self: RemoteStore, place: RemoteRun, *given: Any) -> Any:
        if place.name == "odd":
            raise error
        yield from real(self, place, *given)

    monkeypatch.setattr(RemoteStore, "_read_run", run)
    document = summarised("memory://bucket")
    assert (document.runs.runs, document.bundles.problems) == (1, 1)
    assert "cannot be kept here" in document.bundles.problems_listed[0].reason


def test_an_archive_of_several_parts_that_cannot_be_read_counts_once(recorded: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded, tmp_path / "run-1")
    (tmp_path / "bad.zip").write_bytes(b"\0" * (PART_BYTES * 2 + 1))
    assert summarised(tmp_path).bundles.problems == 1


SECRET = "https://ada:geheim@host/runs?X-Amz-Signature=abcdef0123456789"


def test_a_url_is_shown_without_its_secrets(recorded: Path, tmp_path: Path) -> None:
    progress: list[str] = []

    def reading(source: str) -> Iterator[Answer]:
        assert source == SECRET
        yield from read_locally(str(recorded), workers=1)
        yield Failure("a", f"{SECRET} cannot be fetched: 403 for abcdef0123456789, ada:geheim")

    document = summarize_fleet(SECRET, reading, progress.append, tmp_path / "kept")
    shown = "https://***@host/runs?***"
    assert document.source == shown
    assert progress[0] == f"looking for runs in {shown}"
    import duckdb

    (reason,) = duckdb.sql(f"SELECT reason FROM '{tmp_path}/kept/problems.parquet'").fetchall()
    for text in (*progress, document.model_dump_json(), *reason):
        assert "geheim" not in text
        assert "abcdef" not in text


@pytest.mark.parametrize("error", [EvidenceError(f"no {SECRET}", f"try {SECRET}"), OSError(5, "no", SECRET), None])
def test_errors_are_without_its_secrets(error: Exception | None) -> None:
    def reading(_source: str) -> Iterator[Answer]:
        if error is not None:
            raise error
        yield from ()

    with pytest.raises(EvidenceError) as raised:
        summarize_fleet(SECRET, reading, lambda _: None)
    for text in (str(raised.value), raised.value.hint):
        assert "geheim" not in text
        assert "abcdef" not in text


def test_a_driver_is_quoted_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, **_: object) -> None:
        raise ValueError(f"cannot open {url}")

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    with pytest.raises(EvidenceError, match=r"cannot open https://\*\*\*@host") as raised:
        RemoteStore(SECRET)
    assert "geheim" not in str(raised.value)


def test_a_file_url_is_a_path(recorded: Path) -> None:
    assert summarised(f"file://{recorded.parent}").runs.runs == summarised(recorded.parent).runs.runs == 1


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nowhere", "no such file or folder"),
        ("memory://nowhere", "there is nothing"),
        ("nosuchstore://bucket", "install its driver"),
        (".", "there is no run"),
        ("bad.zip", "no run can be read: bad.zip: is not a zip archive"),
    ],
)
def test_source_without_a_run_is_refused(
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

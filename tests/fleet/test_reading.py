"""What becomes of folders and archives, good ones and hostile ones."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from frx_graph.fleet.messages import Failure, Fetch, ReadingTask
from frx_graph.fleet.reading import Begun, Outcome, read_runs
from frx_graph.fleet.rows import RunRows
from frx_graph.fleet.source import LocalSource

SUMMARY = Path("derived") / "summary.json"


def outcomes(path: Path, *, part: int = 0, parts: int = 1) -> list[Outcome]:
    kind = "folder" if path.is_dir() else "archive"
    return list(read_runs(ReadingTask(kind=kind, path=str(path), name=path.name, part=part, parts=parts)))


def rows(path: Path) -> list[RunRows]:
    return [outcome for outcome in outcomes(path) if isinstance(outcome, RunRows)]


def problem(path: Path) -> str:
    (found,) = [outcome for outcome in outcomes(path) if isinstance(outcome, Failure)]
    return found.reason


def test_a_summary_of_these_files_is_taken(recorded: Path, zipped: Callable[..., Path], tmp_path: Path) -> None:
    (folder,) = rows(recorded)
    (archived,) = rows(zipped(tmp_path / "run-1.zip", recorded))
    assert (folder.run.run_id, folder.run.anew) == ("run-1", False)
    assert (archived.run.run_id, archived.run.digest) == (folder.run.run_id, folder.run.digest)
    assert (archived.labels, archived.findings, archived.advice) == (folder.labels, folder.findings, folder.advice)


@pytest.mark.parametrize("what", ["none", "events", "damaged", "version"])
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_runs_with_an_unusable_summary_are_analysed_again(
    recorded: Path, zipped: Callable[..., Path], tmp_path: Path, kind: str, what: str
) -> None:
    folder = tmp_path / "run-1"
    shutil.copytree(recorded, folder)
    summary = json.loads((folder / SUMMARY).read_text())
    match what:
        case "none":
            shutil.rmtree(folder / "derived")
        case "events":
            with (folder / "raw" / "trace.jsonl").open("a") as file:
                file.write('{"event_type": "other", "timestamp_ns": 5}\n')
        case "damaged":
            (folder / SUMMARY).write_text("[" * 10_000)
        case "version":
            (folder / SUMMARY).write_text(json.dumps({**summary, "frx_version": "0.0.1"}))
    (found,) = rows(folder if kind == "folder" else zipped(tmp_path / "a.zip", folder))
    assert (found.run.anew, found.run.run_id, found.run.bottleneck) == (True, "run-1", "input_bound")


def test_an_archive_of_many(recorded: Path, traced: Path, zipped: Callable[..., Path], tmp_path: Path) -> None:
    inner = zipped(tmp_path / "inner.zip", traced)
    path = zipped(tmp_path / "many.zip", recorded, traced, root="runs/")
    with zipfile.ZipFile(path, "a") as archive:
        archive.write(inner, "old/inner.zip")
        archive.writestr("old/broken.zip", "PK")
        archive.writestr("read.me", "")
    found = rows(path)
    expected = ["many.zip/runs/run-1", "many.zip/runs/run-2", "many.zip/old/inner.zip/run-2"]
    assert [each.run.place for each in found] == expected
    (bad,) = [outcome for outcome in outcomes(path) if isinstance(outcome, Failure)]
    assert (bad.name, bad.reason) == ("many.zip/old/broken.zip", "is not a zip archive, or its end is missing")
    parts = [outcomes(path, part=part, parts=3) for part in range(3)]
    in_parts = [outcome.run.place for part in parts for outcome in part if isinstance(outcome, RunRows)]
    assert sorted(in_parts) == sorted(expected)


@pytest.mark.parametrize("what", ["no archive", "no run"])
def test_archive_wide_problem_is_reported_by_the_first_part(tmp_path: Path, what: str) -> None:
    path = tmp_path / "bad.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("read.me", "")
    if what == "no archive":
        path.write_text("no zip")
    told = [
        [outcome for outcome in outcomes(path, part=part, parts=3) if isinstance(outcome, Failure)] for part in range(3)
    ]
    assert [len(each) for each in told] == [1, 0, 0]


def test_problem_of_one_part_is_reported_by_that_part(
    recorded: Path, traced: Path, zipped: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = zipped(tmp_path / "many.zip", recorded, traced)

    def broken(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("frx_graph.fleet.reading.group_files", broken)
    (told,) = [outcome for outcome in outcomes(path, part=1, parts=2) if isinstance(outcome, Failure)]
    assert "no space left" in told.reason


def test_a_runs_id_where_its_folder_has_another_name(recorded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(recorded, folder)
    shutil.rmtree(folder / "derived")
    task = ReadingTask(kind="folder", path=str(folder), name="far/run-7", run_id="run-7")
    (found,) = [outcome for outcome in read_runs(task) if isinstance(outcome, RunRows)]
    assert (found.run.run_id, found.run.place, found.run.anew) == ("run-7", "far/run-7", True)


def test_archives_are_not_looked_into_without_end(recorded: Path, zipped: Callable[..., Path], tmp_path: Path) -> None:
    path = zipped(tmp_path / "0.zip", recorded)
    for depth in range(1, 4):
        with zipfile.ZipFile(tmp_path / f"{depth}.zip", "w") as archive:
            archive.write(path, path.name)
        path = tmp_path / f"{depth}.zip"
    assert rows(tmp_path / "1.zip")
    assert rows(path) == []
    assert "an archive in an archive in an archive" in problem(path)


@pytest.mark.parametrize("kind", ["nothing", "text", "escape", "bomb", "link"])
def test_hostile_archives_are_reported(recorded: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "bad.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        match kind:
            case "escape":
                archive.writestr("../raw/trace.jsonl", "{}")
            case "bomb":
                archive.writestr("raw/trace.jsonl", b"\0" * (100 << 20))
            case "link":
                link = zipfile.ZipInfo("raw/trace.jsonl")
                link.external_attr = 0o120777 << 16
                archive.writestr(link, "/etc/passwd")
            case _:
                archive.writestr("read.me", "")
    if kind == "text":
        path.write_text("no zip")
    said = {"nothing": "not a run", "text": "not a zip", "escape": "leave", "bomb": "expands", "link": "is a link"}[
        kind
    ]
    assert said in problem(path)
    assert str(tmp_path) not in problem(path)


def test_summary_with_a_wrong_checksum_is_reported_as_damaged(
    recorded: Path, zipped: Callable[..., Path], tmp_path: Path
) -> None:
    path = zipped(tmp_path / "run.zip", recorded)
    content = bytearray(path.read_bytes())
    # A wrong checksum in the directory: seen when the member was read to its end.
    with zipfile.ZipFile(path) as archive:
        crc = archive.getinfo("run-1/derived/summary.json").CRC
    at = content.rindex(crc.to_bytes(4, "little"))
    content[at] ^= 1
    path.write_bytes(content)
    assert "damaged" in problem(path)


def test_a_link_out_of_a_folder(recorded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(recorded, folder)
    (folder / SUMMARY).unlink()
    (folder / SUMMARY).symlink_to(recorded / SUMMARY)
    assert "links to a file outside the bundle" in problem(folder)


def test_a_summary_alone(recorded: Path, tmp_path: Path) -> None:
    sizes = {str(file.relative_to(recorded)): file.stat().st_size for file in recorded.rglob("*") if file.is_file()}

    def outcome(sizes: dict[str, int]) -> Outcome:
        task = ReadingTask(kind="summary", path=str(recorded / SUMMARY), name="far", sizes=sizes)
        begun, found = read_runs(task)
        assert begun == Begun("far")
        return found

    assert isinstance(outcome(sizes), RunRows)
    assert outcome({**sizes, "raw/trace.jsonl": 3}) == Fetch("far")
    assert outcome({**sizes, "profiler/more.json": 3}) == Fetch("far")


def test_folders_are_searched_once_and_links_not_followed(
    recorded: Path, copies: Callable[..., None], tmp_path: Path
) -> None:
    copies(tmp_path, ["a/run-1", "b\x1b[31m\n/run-2"])
    (tmp_path / "a" / "circle").symlink_to(tmp_path)
    (tmp_path / "many.zip").write_bytes(b"\0" * (40 << 20))
    places = [place for place in LocalSource(tmp_path).list_places() if isinstance(place, ReadingTask)]
    assert [(place.kind, place.name, place.part) for place in places] == [
        ("folder", "a/run-1", 0),
        ("folder", "b\x1b[31m\n/run-2", 0),
        ("archive", "many.zip", 0),
        ("archive", "many.zip", 1),
        ("archive", "many.zip", 2),
    ]
    (itself,) = LocalSource(recorded).list_places()
    assert itself == ReadingTask(kind="folder", path=str(recorded), name="run-1")

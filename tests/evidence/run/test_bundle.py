"""Bundles as they are opened: good ones whole, others refused with one line and nothing written."""

from __future__ import annotations

import io
import os
import stat
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.errors import EvidenceError
from frx_graph.evidence.run import bundle_layout
from frx_graph.evidence.run.bundle import open_bundle
from frx_graph.evidence.run.bundle_zip import MOST_BYTES, MOST_EXPANSION, MOST_MEMBERS, SMALLEST_EXPANDED

EVENTS = b'{"event_type": "step_start", "timestamp_ns": 1, "step_id": 0}\n' * 3
FILES = {
    "metadata.json": b"{}",
    "gpu_metrics.csv": b"timestamp\n",
    "raw/trace.jsonl": EVENTS,
    "profiler/profiler_trace.json": b'{"traceEvents": []}',
    "profiler/host_1.pt.trace.json.gz": b"\x1f\x8b",
    "optional_logs.txt": b"hello\n",
}


def archive(files: dict[str, bytes], prefix: str = "", method: int = zipfile.ZIP_DEFLATED) -> bytes:
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w", method) as made:
        for name, content in files.items():
            made.writestr(prefix + name, content)
    return kept.getvalue()


def entry(name: str, content: bytes = b"x", *, mode: int = stat.S_IFREG | 0o644) -> tuple[zipfile.ZipInfo, bytes]:
    member = zipfile.ZipInfo("placeholder")
    member.filename = name
    member.external_attr = mode << 16
    return member, content


def with_entry(member: zipfile.ZipInfo, content: bytes) -> bytes:
    kept = io.BytesIO(archive(FILES, "run-1/"))
    with zipfile.ZipFile(kept, "a") as made:
        made.writestr(member, content)
    return kept.getvalue()


def names_in(folder: str | Path) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that temporary files go to, which is empty after each test."""
    folder = tmp_path_factory.mktemp("temporary")
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    yield folder
    tempfile.tempdir = before
    assert names_in(folder) == []


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., str]:
    def check(content: bytes) -> str:
        path = tmp_path / "bundle.zip"
        path.write_bytes(content)
        with pytest.raises(EvidenceError) as caught, open_bundle(path):
            pytest.fail("it was opened")
        assert names_in(tmp_path) == ["bundle.zip"]
        text = str(caught.value)
        assert text.startswith(f"{path}: ")
        assert "\n" not in text
        return text.removeprefix(f"{path}: ")

    return check


@pytest.mark.parametrize(("prefix", "name"), [("run-abc/", "run-abc"), ("", "bundle"), ("mine/runs/run-1/", "run-1")])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_is_open_while_the_block_runs(tmp_path: Path, prefix: str, name: str, method: int) -> None:
    path = tmp_path / "bundle.zip"
    path.write_bytes(archive({**FILES, "notes.txt": b"mine", "raw/more/x.jsonl": b"x"}, prefix, method))
    with open_bundle(path) as bundle:
        assert bundle.name == name
        events = bundle.find(bundle_layout.EVENTS)
        assert events is not None
        assert events.read_bytes() == EVENTS
        assert bundle.find(bundle_layout.SUMMARY) is None
        assert [trace.name for trace in bundle.find_traces()] == ["profiler_trace.json", "host_1.pt.trace.json.gz"]
        # What nobody reads stays where it is.
        found = {str(found.relative_to(bundle.root)) for found in bundle.root.rglob("*") if found.is_file()}
        assert found == FILES.keys() - {"optional_logs.txt"}
        assert stat.S_IMODE(bundle.root.stat().st_mode) == 0o700
    assert not bundle.root.exists()


def test_an_archive_without_folders_may_have_the_trace_at_its_root(tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    path.write_bytes(archive({"profiler_trace.json": b"{}"}))
    with open_bundle(path) as bundle:
        assert [trace.name for trace in bundle.find_traces()] == ["profiler_trace.json"]


def test_a_folder_is_used_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "run-1"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "gpu_metrics.csv").unlink()
    (folder / "gpu_metrics.csv").symlink_to("optional_logs.txt")
    with open_bundle(folder) as bundle:
        assert bundle.name == "run-1"
        assert bundle.find(bundle_layout.EVENTS) == folder.resolve() / "raw" / "trace.jsonl"
        # A link that stays is no harm.
        assert bundle.find(bundle_layout.GPU_METRICS) == folder.resolve() / "optional_logs.txt"
        assert len(bundle.find_traces()) == 2


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "run-1"
    (folder / "raw").mkdir(parents=True)
    (folder / "raw" / "trace.jsonl").symlink_to(tmp_path / "secret")
    with pytest.raises(EvidenceError, match="links to a file outside the bundle"), open_bundle(folder):
        pass


def test_a_folder_that_is_a_link_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "trace.jsonl").write_bytes(EVENTS)
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "raw").symlink_to(tmp_path / "raw")
    with pytest.raises(EvidenceError, match="links to a file outside the bundle"), open_bundle(tmp_path / "run-1"):
        pass


@pytest.mark.parametrize("target", ["nowhere", "trace.jsonl"])
def test_a_link_to_nothing_or_to_itself_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "trace.jsonl").symlink_to(target)
    with pytest.raises(EvidenceError), open_bundle(tmp_path):
        pass


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    os.mkfifo(tmp_path / "raw" / "trace.jsonl")
    with pytest.raises(EvidenceError, match="not a regular file"), open_bundle(tmp_path):
        pass
    with pytest.raises(EvidenceError, match="not a regular file"), open_bundle(tmp_path / "raw" / "trace.jsonl"):
        pass


def test_a_folder_without_anything_to_analyse_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_text("{}")
    with pytest.raises(EvidenceError, match="holds nothing to analyse"), open_bundle(tmp_path):
        pass


def test_folder_of_runs_error_names_the_latest(tmp_path: Path) -> None:
    for age, name in enumerate(("run-b", "run-a", "run-c")):
        (tmp_path / name / "raw").mkdir(parents=True)
        (tmp_path / name / bundle_layout.EVENTS).write_bytes(EVENTS)
        os.utime(tmp_path / name, (10**9 - age, 10**9 - age))
    (tmp_path / "other").mkdir()
    with pytest.raises(EvidenceError) as raised, open_bundle(tmp_path):
        pass
    assert raised.value.message == f"{tmp_path} holds 3 runs, and is not a run itself"
    latest = tmp_path / "run-b"
    assert raised.value.hint == f"name one of them, such as {latest}, the latest; frx fleet {tmp_path} reads them all"


def test_a_folder_of_too_many_traces_is_refused(tmp_path: Path) -> None:
    (tmp_path / "profiler").mkdir()
    for number in range(MOST_MEMBERS):
        (tmp_path / "profiler" / f"{number}.json").touch()
    with open_bundle(tmp_path) as bundle:
        assert len(bundle.find_traces()) == MOST_MEMBERS
    (tmp_path / "profiler" / "one.json").touch()
    with pytest.raises(EvidenceError, match="holds more than 1024 traces"), open_bundle(tmp_path):
        pass


def test_missing_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="no such file or folder"), open_bundle(tmp_path / "no.zip"):
        pass


@pytest.mark.parametrize(
    "name",
    [
        "../x", "run-1/../../x", "/etc/x", "//x", "C:/x", "c:x", "run-1//x", "run-1/./x", ".", "..", "run-1/..",
        "run-1\\..\\x", "..\\x", "run-1/raw\\x", "run-1/a\0b", "run-1/\x1b[31m", "a\nb", "run-1/" + "x" * 256,
    ],
)  # fmt: skip
def test_a_member_that_would_leave_the_folder_is_refused(refused: Callable[..., str], name: str) -> None:
    why = refused(with_entry(*entry(name)))
    assert why.isprintable()
    assert why.startswith("a member")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK])
def test_a_link_and_a_device_are_refused(refused: Callable[..., str], kind: int) -> None:
    assert "is a link or another special file" in refused(
        with_entry(*entry("run-1/x", b"/etc/passwd", mode=kind | 0o777))
    )


def test_an_encrypted_member_is_refused(refused: Callable[..., str]) -> None:
    content = bytearray(archive(FILES))
    central = content.find(b"PK\1\2")
    content[central + 8] |= 1
    assert "is encrypted" in refused(bytes(content))


def test_another_compression_is_refused(refused: Callable[..., str]) -> None:
    assert "is compressed by method 14" in refused(archive(FILES, method=zipfile.ZIP_LZMA))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused(refused: Callable[..., str]) -> None:
    assert "two members of one name" in refused(with_entry(*entry("run-1/metadata.json")))
    assert "two members of one name" in refused(with_entry(*entry("run-1/metadata.json/", b"")))


def test_a_file_that_is_a_folder_too_is_refused(refused: Callable[..., str]) -> None:
    assert "a file that is a folder" in refused(with_entry(*entry("run-1/metadata.json/x")))


def test_one_member_less_than_too_many_is_read_and_one_more_is_refused(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    more = {f"profiler/{number}.json": b"{}" for number in range(MOST_MEMBERS - len(FILES))}
    path = tmp_path / "good.zip"
    path.write_bytes(archive({**FILES, **more}))
    with open_bundle(path) as bundle:
        assert len(bundle.find_traces()) == len(more) + 2
    path.unlink()
    assert "1025 members" in refused(archive({**FILES, **more, "x": b""}))


def many_members(count: int, said: int) -> bytes:
    """An archive's directory of so many members, each of them the same empty one."""
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 33, 0, 0, 0, 1, 0) + b"a"
    one = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 33, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, said, said, len(one) * count, len(local), 0)
    return local + one * count + end


@pytest.mark.parametrize("said", [1, 1024, 0xFFFF, 1_000_000 % 0x10000])
def test_a_million_members_are_refused_before_they_are_read(tmp_path: Path, said: int) -> None:
    path = tmp_path / "million.zip"
    path.write_bytes(many_members(1_000_000, said))
    program = (
        "import resource, sys, time; from pathlib import Path\n"
        "from frx_graph.evidence.run.bundle import open_bundle\n"
        "from frx_graph.errors import EvidenceError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    with open_bundle(Path(sys.argv[1])): pass\n"
        "except EvidenceError as error: print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    why, grown = ran.stdout.splitlines()
    assert "members in 47000000 bytes" in why
    assert int(grown) < 8 << 10, "KiB: the list of a million members takes some 500 MB"


def test_a_directory_that_hides_members_is_refused(refused: Callable[..., str]) -> None:
    assert "its directory has 500 members, and says 1" in refused(many_members(500, 1))


def test_members_that_share_their_bytes_are_refused(refused: Callable[..., str]) -> None:
    assert "two members of one name" in refused(many_members(2, 2))
    # The first member is long, the second begins within it.
    content = bytearray(archive({"raw/trace.jsonl": bytes(200), "metadata.json": b"x"}, method=zipfile.ZIP_STORED))
    second = content.rfind(b"PK\1\2")
    inner = archive({"metadata.json": b"x"}, method=zipfile.ZIP_STORED)
    local = inner[: inner.find(b"PK\1\2")]
    at = content.find(bytes(200)) + 10
    content[at : at + len(local)] = local
    content[second + 42 : second + 46] = struct.pack("<L", at)
    assert "overlap" in refused(bytes(content))


def test_a_member_that_reaches_into_the_directory_is_refused(refused: Callable[..., str]) -> None:
    content = bytearray(archive({"raw/trace.jsonl": b"x" * 100}, method=zipfile.ZIP_STORED))
    central = content.find(b"PK\1\2")
    content[central + 20 : central + 28] = struct.pack("<2L", 130, 130)
    assert "overlap with its directory" in refused(bytes(content))


def test_zip_bomb_is_refused(refused: Callable[..., str]) -> None:
    assert "more than 500 times" in refused(archive({**FILES, "raw/trace.jsonl": bytes(1_000_000)}))
    assert "more than 500 times" in refused(archive({**FILES, "bomb": bytes(1_000_000)}))
    content = bytearray(archive({"raw/trace.jsonl": b"x"}))
    central = content.find(b"PK\1\2")
    content[central + 24 : central + 28] = struct.pack("<L", 0xFFFFFFF0)
    assert "more than 500 times" in refused(bytes(content))


def test_expansion_is_refused_from_one_byte_more(refused: Callable[..., str], tmp_path: Path) -> None:
    """By what the headers say: `x` that is said to be of so many bytes is damaged, which comes later."""

    def said(expanded: int, kept: int) -> bytes:
        content = bytearray(archive({"raw/trace.jsonl": b"x" * kept}, method=zipfile.ZIP_STORED))
        central = content.find(b"PK\1\2")
        content[central + 24 : central + 28] = struct.pack("<L", expanded)
        return bytes(content)

    assert "more than 500 times" in refused(said(MOST_EXPANSION * 200 + 1, 200))
    assert "more than 500 times" not in refused(said(MOST_EXPANSION * 200, 200))
    assert "more than 500 times" not in refused(said(SMALLEST_EXPANDED - 1, 1))


def test_more_than_two_gigabytes_are_refused(refused: Callable[..., str]) -> None:
    content = bytearray(archive({f"profiler/{n}.json": b"x" * (3 << 20) for n in range(3)}, method=zipfile.ZIP_STORED))
    at = content.find(b"PK\1\2")
    for _ in range(2):
        content[at + 24 : at + 28] = struct.pack("<L", MOST_BYTES // 2)
        at = content.find(b"PK\1\2", at + 1)
    assert "more than 2 GiB" in refused(bytes(content))


def test_wrong_declared_size_is_refused(refused: Callable[..., str]) -> None:
    """Larger or smaller than what comes out: neither is written further than it says, nor believed."""
    for said in (10, 100_000):
        content = bytearray(archive({"raw/trace.jsonl": os.urandom(5000)}))
        central = content.find(b"PK\1\2")
        content[central + 24 : central + 28] = struct.pack("<L", said)
        refused(bytes(content))


def test_a_checksum_that_is_wrong_is_refused(refused: Callable[..., str]) -> None:
    content = bytearray(archive({"raw/trace.jsonl": EVENTS}, method=zipfile.ZIP_STORED))
    content[content.find(b"step_start")] ^= 1
    assert "Bad CRC-32" in refused(bytes(content))


def test_zip64_is_refused(refused: Callable[..., str]) -> None:
    """Also where the older end of the directory looks harmless: `zipfile` would go by the newer one."""
    content = archive(FILES)
    at = content.rfind(b"PK\5\6")
    newer = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1_000_000, 1_000_000, 47_000_000, 0)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, at, 1)
    assert "is a zip64 archive" in refused(content[:at] + newer + locator + content[at:])


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\5\6", b"\0" * 100, b"not a zip\n" * 1000, b"\x1f\x8b" * 40])
def test_non_zip_is_refused(refused: Callable[..., str], content: bytes) -> None:
    assert "is not a zip archive" in refused(content)


def test_an_empty_zip_and_one_without_a_run_are_refused(refused: Callable[..., str]) -> None:
    assert "holds nothing to analyse" in refused(archive({}))
    assert "holds nothing to analyse" in refused(archive({"readme.md": b"x", "run-1/metadata.json": b"{}"}))


def test_two_runs_in_one_zip_are_refused(refused: Callable[..., str]) -> None:
    for folder in ("", "runs/"):
        two = {f"{folder}run-{number}/raw/trace.jsonl": b"" for number in (1, 2)}
        assert "holds 2 runs" in refused(archive(two))


def test_what_comes_before_the_archive_or_behind_it_is_refused(refused: Callable[..., str]) -> None:
    assert "is damaged" in refused(b"#!/bin/sh\n" + archive(FILES))
    refused(archive(FILES) + b"more")


def test_zip_comment_is_harmless(tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    path.write_bytes(archive(FILES))
    with zipfile.ZipFile(path, "a") as made:
        made.comment = b"of a run"
    with open_bundle(path) as bundle:
        assert bundle.find(bundle_layout.EVENTS) is not None


GOOD = archive(FILES, "run-1/")


@given(st.integers(0, len(GOOD) - 1))
def test_a_zip_that_is_cut_off_anywhere_is_refused(length: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bundle.zip")
        path.write_bytes(GOOD[:length])
        with pytest.raises(EvidenceError) as caught, open_bundle(path):
            pass
        assert "\n" not in str(caught.value)
        assert names_in(folder) == ["bundle.zip"]
        assert names_in(tempfile.gettempdir()) == [Path(folder).name]


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_zip_that_is_damaged_anywhere_opens_or_is_refused(changes: list[tuple[int, int]]) -> None:
    content = bytearray(GOOD)
    for at, value in changes:
        content[at] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bundle.zip")
        path.write_bytes(content)
        try:
            with open_bundle(path) as bundle:
                written = [found for found in bundle.root.rglob("*") if found.is_file()]
                assert all(found.stat().st_size < 1000 for found in written)
        except EvidenceError as error:
            assert "\n" not in str(error)
        assert names_in(folder) == ["bundle.zip"]
        assert names_in(tempfile.gettempdir()) == [Path(folder).name]

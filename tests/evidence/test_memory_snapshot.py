"""Snapshots of CUDA's caching allocator. The fields are those that `torch.cuda.memory._snapshot` describes."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

from frx_graph.analyzers.memory import MemoryProblem, analyze_memory
from frx_graph.cli.main import run
from frx_graph.errors import EvidenceError
from frx_graph.evidence import memory_snapshot
from frx_graph.evidence.file_kind import FileKind, detect_file_kind
from frx_graph.evidence.memory_snapshot import decode_pickle, is_gzipped_snapshot, read_memory_snapshot

MIB = 1 << 20
FRAMES = [
    {"filename": "/usr/lib/python3/site-packages/torch/nn/modules/conv.py", "line": 5, "name": "forward"},
    {"filename": "/home/user/model.py", "line": 12, "name": "forward"},
]


def block(size: int, state: str = "active_allocated", frames: Any = FRAMES) -> dict[str, Any]:
    return {"size": size, "requested_size": size, "address": 0, "state": state, "frames": frames}


def segment(*blocks: dict[str, Any], device: int = 0, **more: Any) -> dict[str, Any]:
    return {"device": device, "total_size": sum(one["size"] for one in blocks), "blocks": list(blocks), **more}


def event(action: str, size: int = MIB, **more: Any) -> dict[str, Any]:
    return {"action": action, "size": size, "time_us": 1, "frames": FRAMES, **more}


def written(folder: Path, segments: list[Any], traces: list[Any] | None = None, protocol: int = 4) -> Path:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": traces or []}, protocol))
    return path


def test_fragmented_memory(tmp_path: Path) -> None:
    pieces = [piece for _ in range(10) for piece in (block(MIB), block(MIB, "inactive"))]
    path = written(tmp_path, [segment(*pieces)])
    assert detect_file_kind(path) is FileKind.MEMORY
    found = analyze_memory(read_memory_snapshot(path))
    (device,) = found.devices
    assert (device.reserved, device.allocated, device.free, device.largest_free) == (20 * MIB, 10 * MIB, 10 * MIB, MIB)
    assert [one.kind for one in found.findings] == [MemoryProblem.FRAGMENTED]
    assert "expandable_segments" in found.findings[0].fix
    (site,) = found.sites
    assert (str(site.site), site.live_bytes, site.live_blocks) == ("/home/user/model.py:12", 10 * MIB, 10)
    assert device.allocations is None


@pytest.mark.parametrize("free", [[10 * MIB], [6 * MIB, 4 * MIB]])
def test_free_memory_in_one_piece_is_not_fragmented(tmp_path: Path, free: list[int]) -> None:
    path = written(tmp_path, [segment(block(10 * MIB), *(block(size, "inactive") for size in free))])
    assert analyze_memory(read_memory_snapshot(path)).findings == ()


def test_expandable_segments_are_not_advised_twice(tmp_path: Path) -> None:
    pieces = [piece for _ in range(10) for piece in (block(MIB), block(MIB, "inactive"))]
    (found,) = analyze_memory(read_memory_snapshot(written(tmp_path, [segment(*pieces, is_expandable=True)]))).findings
    assert "expandable_segments" not in found.fix


def test_segments_that_are_wholly_free_are_not_fragmented(tmp_path: Path) -> None:
    free = [segment(block(20 * MIB, "inactive")) for _ in range(250)]
    (device,) = (found := analyze_memory(read_memory_snapshot(written(tmp_path, [segment(block(MIB)), *free])))).devices
    assert found.findings == ()
    assert (device.free, device.split_free) == (5000 * MIB, 0)


@pytest.mark.parametrize("state", ["active_pending_free", "active_awaiting_free"])
def test_blocks_that_await_other_streams(tmp_path: Path, state: str) -> None:
    (found,) = analyze_memory(
        read_memory_snapshot(written(tmp_path, [segment(block(MIB), block(MIB, state))]))
    ).findings
    assert found.kind is MemoryProblem.AWAITING


def test_unknown_states_devices_and_sizes_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [block(MIB), block(MIB, "new"), {"size": MIB}, {"state": "inactive"}]
    segments = [{"device": 0, "total_size": 4 * MIB, "blocks": blocks}, {"total_size": 5, "blocks": []}]
    path = written(tmp_path, [*segments, {"device": 1, "blocks": []}], [[{"action": "alloc"}, {"size": 1}]])
    found = analyze_memory(read_memory_snapshot(path))
    (device,) = found.devices
    assert (device.device, device.allocated, device.free, device.awaiting_free) == (0, MIB, 0, 0)
    assert (found.unreadable, found.findings) == (7, ())
    assert run(["analyze", str(path)]) == 0
    assert "left out: 7 entries that cannot be read" in capsys.readouterr().out


def test_memory_that_is_only_taken_is_no_churn(tmp_path: Path) -> None:
    for action in ("segment_alloc", "segment_free"):
        path = written(tmp_path, [segment(block(MIB))], [[event(action), event("alloc")] * 6])
        assert analyze_memory(read_memory_snapshot(path)).findings == ()


def test_a_report_shows_few_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(written(tmp_path, [segment(block(MIB), device=one) for one in range(20_000)]))]) == 0
    said = capsys.readouterr().out
    shown = said.count("DEVICE ")
    assert shown < 20
    assert f"{20_000 - shown} more devices" in said


@pytest.mark.parametrize(
    ("file", "is_users"),
    [
        ("/home/user/torch/model.py", True),
        ("/opt/x/lib/python3.12/dist-packages/torch/nn/modules/conv.py", False),
        ("C:\\x\\site-packages\\torch\\nn\\modules\\conv.py", False),
        ("/opt/x/site-packages/torchvision/models/resnet.py", True),
    ],
)
def test_only_torchs_own_package_is_passed_over(tmp_path: Path, file: str, is_users: bool) -> None:
    frames = [{"filename": file, "line": 3, "name": "f"}]
    found = read_memory_snapshot(written(tmp_path, [segment(block(MIB, frames=frames))]))
    assert (found.segments[0].blocks[0].site is not None) is is_users


def test_churn_counts_in_the_second_half_of_the_history(tmp_path: Path) -> None:
    warm_up = [event("segment_alloc") for _ in range(10)] + [event("alloc") for _ in range(90)]
    for late, expected in (([], []), ([event("segment_free"), event("segment_alloc")] * 2, [MemoryProblem.CHURN])):
        path = written(tmp_path, [segment(block(MIB))], [[*warm_up, *([event("alloc")] * 50), *late]])
        assert [one.kind for one in analyze_memory(read_memory_snapshot(path)).findings] == expected


def test_out_of_memory_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pieces = [piece for _ in range(10) for piece in (block(MIB), block(MIB, "inactive"))]
    traces = [[event("alloc"), event("oom", 64 * MIB, device_free=3 * MIB)]]
    path = written(tmp_path, [segment(*pieces), segment(block(MIB), device=1)], traces)
    first, second = analyze_memory(read_memory_snapshot(path)).findings
    assert (first.kind, second.kind) == (MemoryProblem.OUT_OF_MEMORY, MemoryProblem.FRAGMENTED)
    assert "67.1 MB, with 3.15 MB left" in first.evidence
    assert run(["analyze", str(path)]) == 1
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert "[HIGH] out_of_memory, device 0" in said
    assert "DEVICE 1" in said


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("echo evil > evil",)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_pickle_that_names_a_function_is_refused(tmp_path: Path, protocol: int, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EvidenceError, match=r"it holds (STACK_)?GLOBAL"):
        read_memory_snapshot(written(tmp_path, [Evil()], protocol=protocol))
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "content",
    [b"\x80\x04", b"\x80\x04N.", pickle.dumps([1]), pickle.dumps({"segments": 3}), b"\x80\x04" + b"\xff" * 50],
)
def test_other_pickles_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content)
    with pytest.raises(EvidenceError, match=r"snapshot by torch\.cuda\.memory"):
        read_memory_snapshot(path)


def test_unusual_values_are_unknown(tmp_path: Path) -> None:
    odd: list[Any] = [3, {}, segment(block(MIB, frames=3)), {"blocks": 7, "total_size": -4, "device": "x"}]
    odd.append(segment(block(MIB, frames=[3, {"filename": 7, "line": True}, {"filename": "a.py", "line": 1 << 70}])))
    found = read_memory_snapshot(written(tmp_path, odd, [[3, event("alloc", frames=None)], "x", None]))
    assert [len(one.blocks) for one in found.segments] == [1, 1]
    assert (found.unreadable, len(found.history[0])) == (4, 1)
    assert analyze_memory(found).sites == ()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_are_decoded_as_pickle_does(protocol: int) -> None:
    shared = ["é\udcff", "x" * 300, (), (1,), (0, 0), (1, 2, 3), (1, 2, 3, 4)]
    numbers = [0, 255, 256, -1, 1 << 16, -(1 << 31), 1 << 31, 1 << 47, -(1 << 63), 0.5, True, False, None]
    value = {
        "shared": [shared] * 2000,
        "numbers": numbers,
        "many": {str(n): [n] for n in range(3000)},
        "one": {"a": []},
    }
    assert decode_pickle(pickle.dumps(value, protocol)) == value


def in_a_block(state: bytes) -> bytes:
    """Return the pickle of a snapshot with a block that has this state."""
    return b"\x80\x04}\x8c\x08segments]}\x8c\x06blocks]}\x8c\x05state" + state + b"sasas."


LAUGHS = b"".join(b"\x94h%c\x86" % one for one in range(40))


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04}K\x01" + LAUGHS + b"K\x01s.",
        b"\x80\x04}r" + struct.pack("<I", 0x0FFFFFFF) + b".",
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 36) + b".",
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"x",
        b"\x80\x04" + b"(" * 1000 + b"l.",
        b"\x80\x04" + b"(" * 1000 + b".",
        b"\x80\x04j\0",
        b"\x80\x04\x85.",
        b"\x80\x04u.",
        in_a_block(b"\x8b" + struct.pack("<I", 9000) + b"\x01" * 9000),
    ],
)
def test_bombs_are_refused_at_once(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content)
    with pytest.raises(EvidenceError, match=r"snapshot by torch\.cuda\.memory"):
        read_memory_snapshot(path)


@pytest.mark.parametrize("state", [b"\x8c\x03lol" + LAUGHS, b"]" * 100_000 + b"a" * 99_999])
def test_values_of_an_unexpected_type_are_never_written_out(tmp_path: Path, state: bytes) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(in_a_block(state))
    assert read_memory_snapshot(path).unreadable == 1


def test_entries_that_are_shared_count_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_snapshot, "_MOST", 1000)
    with pytest.raises(EvidenceError, match=r"more than 1,000 entries"):
        read_memory_snapshot(written(tmp_path, [segment(*[block(MIB)] * 40)] * 30))


def test_long_lists_of_frames_and_long_texts_are_read_once(tmp_path: Path) -> None:
    long = "x" * (1 << 20) + ".py"
    frames = [{"filename": long, "line": one + 1, "name": long} for one in range(10_000)]
    found = read_memory_snapshot(written(tmp_path, [segment(*(block(1, frames=frames) for _ in range(10_000)))]))
    assert {one.site for one in found.segments[0].blocks} == {None}


def test_gzipped_snapshots_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, [segment(block(MIB))])
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert is_gzipped_snapshot(path.read_bytes()[:100])
    assert read_memory_snapshot(path).segments[0].size == MIB
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(EvidenceError, match=r"gzip data is truncated"):
        read_memory_snapshot(path)


def test_other_gzip_files_are_no_snapshots() -> None:
    assert not is_gzipped_snapshot(gzip.compress(b'{"traceEvents": []}'))
    assert not is_gzipped_snapshot(b"\x1f\x8bnot gzip")


@pytest.mark.parametrize("zipped", [False, True])
def test_large_snapshots_are_refused(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "snapshot.pickle"
    if zipped:
        path.write_bytes(gzip.compress(b"\x80\x04" + bytes(130 << 20), 1))
    else:
        with path.open("wb") as file:
            file.truncate(130 << 20)
    with pytest.raises(EvidenceError, match=r"larger than 128 MiB"):
        read_memory_snapshot(path)


@pytest.mark.parametrize("protocol", [0, 1])
def test_pickles_that_torch_does_not_write_are_named(tmp_path: Path, protocol: int) -> None:
    path = written(tmp_path, [segment(block(MIB))], protocol=protocol)
    assert detect_file_kind(path) is FileKind.MEMORY
    with pytest.raises(EvidenceError, match=r"not a pickle of protocol 2 or newer"):
        read_memory_snapshot(path)

"""Snapshots of CUDA's caching allocator. The fields are those that `torch.cuda.memory._snapshot` describes."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from frx_graph.analyzers.memory import MemoryProblem, analyze_memory
from frx_graph.cli.main import run
from frx_graph.errors import EvidenceError
from frx_graph.evidence.file_kind import FileKind, detect_file_kind
from frx_graph.evidence.memory_snapshot import read_memory_snapshot

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
    with pytest.raises(EvidenceError, match=r"it names posix.system"):
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
    assert [len(one.blocks) for one in found.segments] == [0, 1, 0, 1]
    assert analyze_memory(found).sites == ()

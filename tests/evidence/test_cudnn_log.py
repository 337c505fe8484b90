"""Logs of cuDNN's frontend, with the fields that `Graph::serialize` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from frx_graph.analyze.compiler_logs import analyze_cudnn_log
from frx_graph.cli.main import run
from frx_graph.errors import EvidenceError
from frx_graph.evidence.cudnn_log import read_cudnn_log
from frx_graph.evidence.file_kind import FileKind, detect_file_kind
from frx_graph.records import Severity

PLAIN, LAST = [65536, 1024, 32, 1], [65536, 1, 2048, 64]


def tensor(strides: list[int], dtype: str = "HALF", dim: tuple[int, ...] = (8, 64, 32, 32)) -> dict[str, Any]:
    return {
        "dim": list(dim),
        "stride": strides,
        "data_type": dtype,
        "is_virtual": False,
        "uid": 1,
        "uid_assigned": True,
    }


def convolution(x: dict[str, Any], y: dict[str, Any], tag: str = "CONV_FPROP", **more: Any) -> str:
    ports = {"CONV_FPROP": ("X", "Y"), "CONV_DGRAD": ("DY", "DX")}.get(tag, ("A", "B"))
    node = {"tag": tag, "name": "conv", "inputs": {ports[0]: 1, "W": "w"}, "outputs": {ports[1]: 3}}
    tensors = {"1": x, "w": tensor([576, 9, 3, 1], dim=(64, 64, 3, 3)), "3": y}
    found = {"context": {"io_data_type": "HALF"}, "cudnn_frontend_version": 11200, "nodes": [node], "tensors": tensors}
    return json.dumps(found | more)


def written(folder: Path, *lines: str) -> Path:
    path = folder / "cudnn.log"
    path.write_text("[cudnn_frontend] INFO: Validating nodes\n" + "".join(f"{line}\n" for line in lines))
    return path


def test_convolutions_in_plain_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(
        tmp_path,
        convolution(tensor(PLAIN), tensor(PLAIN)),
        convolution(tensor(PLAIN), tensor(PLAIN)),
        convolution(tensor(LAST), tensor(LAST)),
        convolution(tensor(PLAIN, "FLOAT"), tensor(LAST, "FLOAT"), "CONV_DGRAD"),
        convolution(tensor(PLAIN), tensor(PLAIN), "MATMUL"),
    )
    assert detect_file_kind(path) is FileKind.CUDNN_LOG
    found = read_cudnn_log(path)
    assert (found.graphs, found.rebuilt, found.unreadable) == (5, 1, 0)
    half, single = analyze_cudnn_log(path).findings
    assert (half.rule, half.severity, half.count_per_step) == ("FRX004", Severity.MEDIUM, None)
    assert half.evidence[-1].text == "in 2 graphs, each with 2.10 MB of such images"
    assert (single.severity, single.evidence[-1].text.partition(",")[0]) == (Severity.LOW, "in 1 graph")
    assert run(["analyze", str(path)]) == 1
    assert "had been built before" in " ".join(capsys.readouterr().out.split())
    assert run(["analyze", str(path), "--json", "--exit-zero"]) == 0
    first = json.loads(capsys.readouterr().out)["findings"][0]
    assert first["title"] == "CONV_FPROP on HALF tensors in plain layout, 8×64×32×32"


@pytest.mark.parametrize("dim", [(8, 1, 32, 32), (8, 64, 1, 1)])
def test_layouts_that_are_the_same_are_not_plain(tmp_path: Path, dim: tuple[int, ...]) -> None:
    _, c, h, w = dim
    image = tensor([c * h * w, h * w, w, 1], dim=dim)
    assert analyze_cudnn_log(written(tmp_path, convolution(image, image))).findings == ()


@pytest.mark.parametrize(
    "line",
    [
        '{"nodes": 3, "tensors": {}}',
        '{"nodes": [3, {"tag": 7}, {"tag": "CONV_FPROP", "inputs": []}], "tensors": {}}',
        '{"nodes": [{"tag": "CONV_FPROP", "inputs": {"X": 1}}], "tensors": {"1": {"dim": [1, 2], "stride": [1]}}}',
        '{"nodes": [{"tag": "CONV_FPROP", "inputs": {"X": 1}}], "tensors": {"1": {"dim": [-1], "stride": [true]}}}',
        '{"nodes": [], "tensors": {}, "context": ' + "[" * 100_000,
    ],
)
def test_unusual_graphs_are_passed_over(tmp_path: Path, line: str) -> None:
    path = written(tmp_path, convolution(tensor(LAST), tensor(LAST)), line)
    assert analyze_cudnn_log(path).findings == ()


def test_a_log_without_graphs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="has no graph"):
        read_cudnn_log(written(tmp_path))

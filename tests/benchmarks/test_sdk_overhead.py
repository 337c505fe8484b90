"""The judgement of what telling of a run costs, and that the benchmark works."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from sdk_overhead import StepCost, broken_bounds, main, network

SHORT = StepCost("python", 200_000, 100, 200e3, 300e3, 210e3, 310e3, 19_999.0, 1e9)
LONG = StepCost("products", 5_000_000, 100, 5e6, 6e6, 5.01e6, 6e6, 19_999.0, 1e9)


def test_bounds() -> None:
    assert broken_bounds([SHORT, LONG]) == []
    assert broken_bounds([replace(SHORT, added_ns=20_000.0)]) == ["0.2 ms of python: 20.0 µs longer (bound 20)"]
    slow = replace(LONG, without_median_ns=1.9e6)
    assert broken_bounds([slow]) == ["5 ms of products: 1.05% longer (bound 1%)"]


def test_network_has_as_many_parameters_as_resnet_50() -> None:
    assert len(list(network().parameters())) == 161


def test_quick_run_writes_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("FRX_")]:
        monkeypatch.delenv(name)
    assert main(["--quick", "--json", str(tmp_path / "costs.json")]) == 0
    figures = json.loads((tmp_path / "costs.json").read_text())
    assert [cost["steps"] for cost in figures["costs"]] == [100, 100, 20, 20]
    assert all(cost["with_p99_ns"] >= cost["with_median_ns"] > 0 for cost in figures["costs"])
    assert figures["broken"] == []
    assert "added µs" in capsys.readouterr().out

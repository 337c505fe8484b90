"""Samples of a program's processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from frx_graph.errors import EvidenceError
from frx_graph.evidence.run.host_samples import HostSample, read_host_samples
from frx_graph.runs.collect.sampling import HOST_HEADER

AT = 1_767_225_600 * 10**9


def written(folder: Path, rows: str) -> Path:
    path = folder / "host_metrics.csv"
    path.write_bytes(HOST_HEADER + rows.encode())
    return path


def test_rows_as_collect_writes_them(tmp_path: Path) -> None:
    rows = "2026-01-01T00:00:00.000000+00:00, 2, [N/A], 100.5\n2026-01-01T00:00:01.000000+00:00, 3, 187.5, 1024.0\n"
    first, second = read_host_samples(written(tmp_path, rows))
    assert first == HostSample(at_ns=AT, processes=2, memory=round(100.5 * 2**20))
    assert second == HostSample(at_ns=AT + 10**9, processes=3, busy_pct=187.5, memory=2**30)


@pytest.mark.parametrize("rows", ["", "2026-01-01T00:00:00+00:00, 1, 5.0, 3.0"])
def test_a_header_and_a_torn_row_are_no_samples(tmp_path: Path, rows: str) -> None:
    assert read_host_samples(written(tmp_path, rows)) == ()


@pytest.mark.parametrize("value", ["-5", "1e400", "nan", "99999999999999", "x" * 100])
def test_impossible_values_are_unknown(tmp_path: Path, value: str) -> None:
    (sample,) = read_host_samples(written(tmp_path, f"2026-01-01T00:00:00+00:00, {value}, {value}, -1\n"))
    assert sample.busy_pct is None
    assert sample.memory is None


def test_an_unknown_unit_is_named(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"host_metrics.csv:2: memory.rss is in 'lb'"):
        read_host_samples(written(tmp_path, "2026-01-01T00:00:00+00:00, 1, 5, 3 lb\n"))

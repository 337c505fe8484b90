"""Whether a binary report is whole, told before anything else reads it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ncu_reports import A40, ReportLaunch, report

from frx_graph.errors import EvidenceError
from frx_graph.evidence.ncu.report_blocks import MAGIC, count_results

WHOLE = report(*(ReportLaunch(values={**A40, "gpu__time_duration.sum": 1000.0}) for _ in range(3)))


def test_launches_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "whole.ncu-rep"
    path.write_bytes(WHOLE)
    assert count_results(path) == 3
    # Another block behind it.
    path.write_bytes(WHOLE + WHOLE[10:])
    assert count_results(path) == 6


def test_truncated_report_is_not_accepted_as_complete(tmp_path: Path) -> None:
    path = tmp_path / "cut.ncu-rep"
    for size in range(len(WHOLE)):
        path.write_bytes(WHOLE[:size])
        if size == len(MAGIC) + 4 + 2:
            assert count_results(path) == 0
        else:
            with pytest.raises(EvidenceError, match="is not an Nsight Compute report" if size < 4 else r"byte \d+: "):
                count_results(path)


@pytest.mark.integration
@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(4, len(WHOLE)), st.binary(max_size=9), st.integers(0, 40)), max_size=4))
def test_damage_is_refused_or_counted(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, bytes, int]]
) -> None:
    data = WHOLE
    for at, piece, cut in damage:
        data = data[:at] + piece + data[at + cut :]
    path = tmp_path_factory.getbasetemp() / "damaged.ncu-rep"
    path.write_bytes(data)
    try:
        assert count_results(path) >= 0
    except EvidenceError as error:
        assert str(path) in str(error)


def test_any_bytes_are_refused(tmp_path: Path) -> None:
    draw = random.Random(0)
    path = tmp_path / "bytes.ncu-rep"
    for _ in range(500):
        path.write_bytes(MAGIC + b"\x02\0\0\0\x08\x07" + draw.randbytes(draw.randrange(5, 300)))
        with pytest.raises(EvidenceError):
            count_results(path)

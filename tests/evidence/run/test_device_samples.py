"""Samples as they are read: whose units, and what is not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.errors import EvidenceError
from frx_graph.evidence.run.device_samples import read_device_samples
from frx_graph.evidence.run.events import GpuSample

MIB = 2**20
OURS = "timestamp, index, utilization.gpu [%], utilization.memory [%], memory.used [MiB], memory.total [MiB]\n"
AT = "2026-01-02T03:04:05.000006+00:00"
AT_NS = (int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()) * 10**6 + 6) * 1000


@pytest.fixture
def samples(tmp_path: Path) -> Callable[[str], tuple[GpuSample, ...]]:
    def read(text: str) -> tuple[GpuSample, ...]:
        path = tmp_path / "gpu_metrics.csv"
        path.write_text(text)
        return read_device_samples(path)

    return read


def test_our_own(samples: Callable[[str], tuple[GpuSample, ...]]) -> None:
    assert samples(f"{OURS}{AT}, 1, 55, 7, 1024, 81559\n") == (
        GpuSample(
            at_ns=AT_NS,
            device=1,
            busy_pct=55,
            memory_busy_pct=7,
            memory_used=1024 * MIB,
            memory_total=81559 * MIB,
        ),
    )


def test_nvidia_smi_output_is_parsed(samples: Callable[[str], tuple[GpuSample, ...]]) -> None:
    """With units behind values, other columns, another order, and times of the machine's own zone."""
    (sample,) = samples(
        "memory.total [MiB], timestamp, name, utilization.gpu [%], clocks.current.sm [MHz], memory.used [MiB]\n"
        "16384 MiB, 2026/01/02 03:04:05.123, NVIDIA L4, 40 %, [N/A], 512 MiB\n"
    )
    local = datetime(2026, 1, 2, 3, 4, 5, 123000).astimezone()
    assert sample == GpuSample(
        at_ns=int(local.timestamp()) * 10**9 + 123 * 10**6,
        busy_pct=40,
        memory_used=512 * MIB,
        memory_total=16384 * MIB,
    )


@pytest.mark.parametrize("missing", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "", "nan", "-1", "1e400"])
def test_missing_values_are_none(samples: Callable[[str], tuple[GpuSample, ...]], missing: str) -> None:
    cells = ", ".join([missing] * 5)
    assert samples(f"{OURS}{AT}, {cells}\n") == (GpuSample(at_ns=AT_NS),)


def test_zero_is_zero_and_more_than_all_is_nothing(samples: Callable[[str], tuple[GpuSample, ...]]) -> None:
    first, second = samples(f"{OURS}{AT}, 0, 0, 100, 0, 1\n{AT}, 0, 101, 100.5, 0, 1\n")
    assert (first.busy_pct, first.memory_busy_pct, first.memory_used) == (0, 100, 0)
    assert (second.busy_pct, second.memory_busy_pct) == (None, None)


def test_units_are_converted_and_unknown_ones_refused(samples: Callable[[str], tuple[GpuSample, ...]]) -> None:
    (sample,) = samples(f"timestamp, memory.used [GiB], memory.total\n{AT}, 1.5, 2048 KiB\n")
    assert (sample.memory_used, sample.memory_total) == (1536 * MIB, 2 * MIB)
    with pytest.raises(EvidenceError, match=r"csv:1: memory.used is in 'MB', expected B or KiB or MiB or GiB"):
        samples(f"timestamp, memory.used [MB]\n{AT}, 1\n")
    with pytest.raises(EvidenceError, match=r"csv:2: memory.used is in 'MB'"):
        samples(f"timestamp, memory.used [MiB]\n{AT}, 1 MB\n")


def test_a_header_alone_has_no_samples(samples: Callable[[str], tuple[GpuSample, ...]]) -> None:
    assert samples(OURS) == ()
    # A run that was killed before its first sample was whole.
    assert samples(f"{OURS}2026-01-0") == ()


def test_the_last_row_of_a_run_that_was_killed_is_left_out(samples: Callable[[str], tuple[GpuSample, ...]]) -> None:
    """Half of 1024 is not 10."""
    (sample,) = samples(f"{OURS}{AT}, 0, 5, 5, 1024, 2048\n{AT}, 0, 5, 5, 10")
    assert sample.memory_used == 1024 * MIB


def test_rows_without_a_time_are_left_out_and_refused_where_all_are(
    samples: Callable[[str], tuple[GpuSample, ...]],
) -> None:
    assert len(samples(f"{OURS}when, 0, 5\n\n{AT}, 0, 5\n")) == 1
    with pytest.raises(EvidenceError, match="none of 2 rows has a time"):
        samples(f"{OURS}when, 0, 5\nwhen, 0, 6\n")


@pytest.mark.parametrize("text", ["", "hello\n", "index, utilization.gpu [%]\n0, 5\n", "\0\n", '"\n'])
def test_a_file_without_times_is_refused(samples: Callable[[str], tuple[GpuSample, ...]], text: str) -> None:
    with pytest.raises(EvidenceError, match="has no column timestamp"):
        samples(text)


def test_non_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in ((tmp_path / "pipe", "not a regular file"), (tmp_path / "none", "no such file")):
        with pytest.raises(EvidenceError, match=why):
            read_device_samples(path)


@given(st.binary(max_size=300))
def test_whatever_is_in_a_file_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    for start in (b"", f"{OURS}{AT}, 0, ".encode()):
        path.write_bytes(start + content)
        try:
            read_device_samples(path)
        except EvidenceError as error:
            assert "\n" not in str(error)

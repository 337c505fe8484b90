"""Times that cannot be right are left out and named; healthy traces stay as they are."""

from __future__ import annotations

import pytest

from frx_graph.evidence.trace.events import ActivityKind, DeviceActivity, HostSpan, HostThread
from frx_graph.evidence.trace.impossible_times import find_impossible, find_unset

MAIN = HostThread("1", "1")
EPOCH_NS = 1_700_000_000_000_000_000


def kernel(name: str, start_us: float, us: float, stream: str = "7") -> DeviceActivity:
    return DeviceActivity(name, int(1e3 * start_us), int(1e3 * us), kind=ActivityKind.KERNEL, device=0, stream=stream)


def alternate(count: int = 10) -> list[DeviceActivity]:
    """Kernels of 999 and 9 us in turn, one after the other."""
    found = []
    for number in range(count):
        found += [kernel("gemm", 1010 * number, 999), kernel("add", 1010 * number + 1000, 9)]
    return found


def names(found: tuple) -> list[tuple[str, str]]:
    return [(one.event.name, one.reason) for one in found]


def test_a_healthy_stream_has_none() -> None:
    assert find_impossible(alternate(), ()) == ()


@pytest.mark.parametrize("place", [1, 3, 9])
def test_a_kernel_that_outlasts_later_ones_of_its_stream(place: int) -> None:
    trace = alternate()
    trace[place] = kernel("add", trace[place].start_ns / 1e3, 300_000)
    ((name, reason),) = names(find_impossible(trace, ()))
    assert name == "add"
    assert reason == f"overlaps {len(trace) - place - 1} later events on the same stream"


def test_a_last_kernel_that_ends_long_after_everything_else() -> None:
    trace = alternate()
    trace[-1] = kernel("add", trace[-1].start_ns / 1e3, 300_000)
    assert names(find_impossible(trace, ())) == [("add", "ends long after everything else")]
    waiting = HostSpan("cudaDeviceSynchronize", 0, trace[-1].end_ns, MAIN)
    assert find_impossible(trace, ([waiting],)) == ()


def test_a_kernel_that_is_alone_with_its_name_is_compared_with_its_stream() -> None:
    trace = [kernel("gemm", 0, 990), kernel("add", 1000, 3e6), kernel("gemm", 1010, 990), kernel("gemm", 2001, 990)]
    assert names(find_impossible(trace, ())) == [("add", "overlaps 2 later events on the same stream")]


def test_kernels_that_overlap_without_being_out_of_line_stay() -> None:
    # As in a CUDA graph with two branches, which Kineto puts on one stream.
    trace = [kernel("gemm", 1000 * number, 900) for number in range(10)]
    trace += [kernel("add", 1000 * number + 100 * part, 90) for number in range(10) for part in range(1, 6)]
    assert find_impossible(trace, ()) == ()


def test_a_long_kernel_on_a_stream_of_its_own_stays() -> None:
    trace = [*alternate(), kernel("ncclDevKernel_AllReduce", 0, 10_000, stream="20")]
    assert find_impossible(trace, ()) == ()


def test_a_time_of_zero_among_times_of_today() -> None:
    trace = [kernel("gemm", EPOCH_NS / 1e3 + number, 1) for number in range(3)]
    assert names(find_unset([*trace, kernel("add", 0, 9)])) == [("add", "begins at 0, long before all others")]
    assert find_unset(alternate()) == ()
    assert find_unset([]) == ()

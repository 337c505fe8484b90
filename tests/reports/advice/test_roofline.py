from __future__ import annotations

import dataclasses
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.advice import Environment, GraphSummary, PeakFlops, RooflinePoint
from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.reports.advice.roofline import Roof, build_roof, place_points
from frx_graph.reports.advice.roofline_plot import draw_roofline

ROOF = Roof(10e9, (("float32", 100e9),))
SITE = CallSite("net.py", 1, "forward")


def _point(flops, bytes, seconds=None, dtype="float32", operator="aten.mm"):
    return RooflinePoint(operator, SITE, Phase.FORWARD, dtype, 1, flops, bytes, seconds)


def _placed(*points):
    return place_points([GraphSummary("0/0", "f", False, 1, (), points)], ROOF)


def test_memory_and_arithmetic_meet_at_the_ridge():
    assert ROOF.get_ridge("float32") == 10.0
    low, high = _placed(_point(9_000, 1000), _point(10_000, 1000))
    assert {low.bound, high.bound} == {"memory", "arithmetic"}
    assert ROOF.get_attainable(5.0, "float32") == 50e9
    assert ROOF.get_attainable(50.0, "float32") == 100e9


def test_timed_points_know_their_distance_to_the_roof():
    (placed,) = _placed(_point(1_000_000, 1_000_000, 1e-3))
    assert placed.achieved == pytest.approx(1e9)
    assert placed.roof_share == pytest.approx(10.0)
    assert placed.height == placed.achieved


TRACED = Environment("1", "2", "3", "Linux", "cpu", "a CPU", "eager", 2)
RATES = st.floats(min_value=1.0, max_value=1e24)
COUNTS = st.integers(min_value=0, max_value=2**62)
DTYPES = st.sampled_from(["float32", "bfloat16", "torch.float32", "int64"])
POINTS = st.builds(_point, COUNTS, COUNTS, st.none() | st.floats(min_value=0.0), DTYPES)
CALIBRATED = st.builds(
    lambda bandwidth, peaks: dataclasses.replace(
        TRACED, bandwidth_bytes_per_s=bandwidth, peak_flops=tuple(PeakFlops(*peak) for peak in peaks.items())
    ),
    st.none() | RATES,
    st.dictionaries(DTYPES, RATES),
)


@given(CALIBRATED, st.lists(POINTS, max_size=6))
def test_no_timed_operator_is_above_the_roof(environment: Environment, points: list[RooflinePoint]) -> None:
    graphs = [GraphSummary("0/0", "f", False, 1, (), tuple(points))]
    roof = build_roof(environment, graphs)
    calibrated = build_roof(environment)
    assert (roof.bandwidth or 0) >= (calibrated.bandwidth or 0)
    assert all(raised >= dict(calibrated.peaks)[dtype] for dtype, raised in roof.peaks)
    assert bool(roof.raised) is (roof != calibrated)
    for placed in [*place_points(graphs, roof), *place_points(graphs, calibrated)]:
        assert placed.roof_share is None or 0.0 <= placed.roof_share <= 100.0
        if placed.achieved is not None and placed.attainable is not None:
            assert placed.achieved <= placed.attainable * (1 + 1e-12)


def test_the_roof_names_the_operators_that_raise_it() -> None:
    graph = [
        GraphSummary("0/0", "f", False, 1, (), (_point(300e9, 1e9, 1.0), _point(5e9, 20e9, 1.0, operator="aten.add")))
    ]
    environment = dataclasses.replace(TRACED, bandwidth_bytes_per_s=10e9, peak_flops=(PeakFlops("float32", 100e9),))
    roof = build_roof(environment, graph)
    assert roof == Roof(20e9, (("float32", 300e9),), ("float32 by aten.mm", "bandwidth by aten.add"))
    assert [placed.roof_share for placed in place_points(graph, roof)] == [100.0, 100.0]


def test_untimed_points_are_drawn_at_the_roof():
    (placed,) = _placed(_point(1_000_000, 1_000_000))
    assert (placed.achieved, placed.roof_share) == (None, None)
    assert placed.height == placed.attainable == 10e9


def test_unknown_peaks_leave_the_bound_open():
    (placed,) = _placed(_point(1_000, 10, dtype="torch.int64"))
    assert (placed.dtype, placed.bound, placed.attainable) == ("int64", None, 1e12)


def test_copies_have_no_place_and_the_largest_come_first():
    assert [p.point.bytes for p in _placed(_point(0, 50), _point(5, 0), _point(5, 10), _point(5, 20))] == [20, 10]


def test_roof_leaves_out_what_is_not_a_number(hostile, failed, advice):
    assert build_roof(hostile.environment) == Roof(None, (("float32", 1e9),))
    assert build_roof(failed.environment) == Roof(None, ())
    assert build_roof(dataclasses.replace(advice.environment, bandwidth_bytes_per_s=0.0)).bandwidth is None


def test_plot_fills_timed_circles_only(advice):
    roof = build_roof(advice.environment)
    picture = draw_roofline(roof, place_points(advice.graphs, roof), 1000.0, 460.0)
    circles = [e.attrib for e in ElementTree.fromstring(picture).iter("circle")]
    assert [c["class"] for c in circles] == [
        "point timed dt-float32",
        "point predicted dt-float32",
        "point timed dt-bfloat16",
    ]
    assert all(78 <= float(c["cx"]) <= 986 and 16 <= float(c["cy"]) <= 416 for c in circles)
    assert float(circles[0]["r"]) > float(circles[1]["r"]) > float(circles[2]["r"])
    assert re.findall(r'class="rank [a-z-]+" text-anchor="middle">(\d+)<', picture) == ["1", "2", "3"]
    assert "23.1 GB/s" in picture
    assert "float32 140 GFLOP/s" in picture


def test_without_a_roof_only_timed_points_can_be_drawn():
    bare = Roof(None, ())
    graph = [GraphSummary("0/0", "f", False, 1, (), (_point(10, 10), _point(20, 10, 1e-6)))]
    points = place_points(graph, bare)
    assert draw_roofline(bare, points, 360.0, 360.0).count("<circle") == 1
    assert draw_roofline(bare, points[:1], 360.0, 360.0) is None
    assert draw_roofline(ROOF, (), 360.0, 360.0) is None


def test_extreme_intensities_keep_the_plot_readable():
    points = _placed(_point(1, 10**12), _point(10**15, 1), _point(5, 10))
    picture = draw_roofline(ROOF, points, 360.0, 360.0)
    assert picture.count("<circle") == 2
    ElementTree.fromstring(picture)

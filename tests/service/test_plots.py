"""The service's own pictures: where marks stand, for any numbers."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.reports.kernels.kernel_document import GpuPart, KernelPart
from frx_graph.reports.runs.run_document import SummaryPart
from frx_graph.reports.runs.trace_document import LayoutPart, SitePart
from frx_graph.service.plots import draw_kernel_roofline, draw_layout_bars, draw_step_bars, draw_trial


def kernel(flops_per_byte: float | None, ridge: float | None, mfu: float | None, seconds: float | None = 1.0):
    gpu = GpuPart.model_construct(
        flops_per_byte=flops_per_byte, ridge_flops_per_byte=ridge, mfu_pct=mfu, name="H100", known_by="x"
    )
    return KernelPart.model_construct(kernel_name="<k>", gpu=gpu, seconds=seconds)


def circles(picture) -> list[tuple[float, float]]:
    root = ElementTree.fromstring(str(picture))
    return [(float(each.get("cx")), float(each.get("cy"))) for each in root.iter("circle")]


def roof(picture) -> list[tuple[float, float]]:
    (found,) = re.findall(r'<polyline points="([^"]+)" class="roof"/>', str(picture))
    return [tuple(map(float, point.split(","))) for point in found.split()]


def test_kernel_at_the_roof_is_drawn_on_it():
    picture = draw_kernel_roofline(
        [kernel(1.0, 10.0, 10.0), kernel(10.0, 10.0, 100.0), kernel(100.0, 10.0, 100.0)], 500, 300
    )
    (left, ridge, right), points = roof(picture), circles(picture)
    slope = (ridge[1] - left[1]) / (ridge[0] - left[0])
    assert points[0][1] == pytest.approx(left[1] + slope * (points[0][0] - left[0]), abs=0.1)
    assert points[1] == pytest.approx(ridge, abs=0.1)
    assert points[2][1] == pytest.approx(right[1], abs=0.1)


def test_a_kernel_above_the_peak_raises_the_roof():
    picture = draw_kernel_roofline([kernel(10.0, 1.0, 213.0), kernel(10.0, 1.0, 106.5)], 500, 300)
    assert "213" not in str(picture)
    assert "&lt;k&gt;: 10 FLOP/byte, 100.0 % of the peak" in str(picture)
    assert "&lt;k&gt;: 10 FLOP/byte, 50.0 % of the peak" in str(picture)


@pytest.mark.parametrize(
    "given_", [(None, 1.0, 1.0), (1.0, None, 1.0), (1.0, 1.0, None), (0.0, 1.0, 1.0), (1.0, 1.0, 0.0)]
)
def test_a_kernel_whose_place_is_not_known_is_not_drawn(given_):
    assert draw_kernel_roofline([kernel(*given_)], 500, 300) is None
    assert draw_kernel_roofline([KernelPart.model_construct(kernel_name="k", gpu=None, seconds=None)], 500, 300) is None


positive = st.floats(min_value=0.0, max_value=1e300, allow_subnormal=True)


@given(st.lists(st.tuples(positive, positive, positive, st.none() | positive), min_size=1, max_size=6))
def test_any_kernel_is_drawn_within_the_picture(given_):
    picture = draw_kernel_roofline([kernel(*one) for one in given_], 500, 300)
    if picture is not None:
        for x, y in circles(picture):
            assert 0 <= x <= 500
            assert 0 <= y <= 300


def trial(ratios, low, high):
    quads = [
        {"pair": index // 3, "number": index, "log_ratio": ratio, "void": index == 1}
        for index, ratio in enumerate(ratios)
    ]

    stats = None if low is None else SimpleNamespace(ci_low=low, ci_high=high)
    return SimpleNamespace(samples=[SimpleNamespace(**quad) for quad in quads], stats=stats)


def test_samples_are_higher_the_faster_the_candidate_was():
    picture = draw_trial(trial([0.0, 0.1, -0.1, 0.05], 1.01, 1.05), 500, 300)
    heights = [y for _, y in circles(picture)]
    assert heights[1] < heights[3] < heights[0] < heights[2]
    assert str(picture).count('class="sample void"') == 1
    band = next(each for each in ElementTree.fromstring(str(picture)).iter("rect"))
    even = next(each for each in ElementTree.fromstring(str(picture)).iter("line") if each.get("class") == "even")
    assert float(band.get("y")) + float(band.get("height")) < float(even.get("y1"))


def test_without_samples_there_is_no_picture():
    assert draw_trial(trial([], None, None), 500, 300) is None
    assert draw_trial(trial([math.nan], None, None), 500, 300) is None


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12), st.none() | st.floats(0.1, 2), st.none() | st.floats(2, 9))
def test_any_sample_is_drawn_within_the_picture(ratios, low, high):
    for x, y in circles(draw_trial(trial(ratios, low, high), 500, 300)):
        assert 60 <= x <= 500
        assert 0 <= y <= 300


def layout(name: str, size: int | None, time: float) -> LayoutPart:
    site = SitePart(file=f"/x/{name}.py", line=3, function="f", module_path="")
    return LayoutPart.model_construct(operator="aten::copy_", site=site, bytes=size, total_ms=time)


def widths(picture) -> list[float]:
    return [float(each.get("width")) for each in ElementTree.fromstring(str(picture)).iter("rect")]


def test_bars_are_as_long_as_their_bytes_and_as_their_times_where_bytes_are_not_known():
    by_bytes = widths(draw_layout_bars([layout("a", 100, 1.0), layout("b", 50, 9.0)]))
    assert by_bytes[0] == pytest.approx(2 * by_bytes[1], rel=0.01)
    by_time = widths(draw_layout_bars([layout("a", None, 1.0), layout("b", 50, 4.0)]))
    assert by_time[1] == pytest.approx(4 * by_time[0], rel=0.01)
    assert draw_layout_bars([]) == ""


def test_a_part_that_was_not_recorded_has_no_bar():
    shares = dict.fromkeys(
        ("loader_wait_share", "h2d_share", "d2h_share", "forward_share", "backward_share", "optimizer_share",
         "sync_share", "other_share", "unexplained_share")
    )  # fmt: skip
    summary = SummaryPart.model_construct(**{**shares, "loader_wait_share": 0.5, "forward_share": 0.25})
    picture = draw_step_bars(summary)
    assert "waiting for input: 50.0 %; forward: 25.0 %" in picture
    assert len(widths(picture)) == 2
    assert draw_step_bars(SummaryPart.model_construct(**shares)) == ""

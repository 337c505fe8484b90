from __future__ import annotations

import dataclasses
import itertools
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.advice import GraphSummary, LayoutSpan
from frx_graph.capture.captured_graph import Phase
from frx_graph.reports.advice.layout_map import BAND, NARROWEST_BLOCK, draw_layout_map, get_layout_class


def _graph(*spans):
    return GraphSummary("0/0", "forward of Net", False, len(spans), spans)


def _span(module="model.a", bytes=100, copy_bytes=0, layout="plain", phase=Phase.FORWARD):
    return LayoutSpan(module, phase, layout, 1, bytes, 1 if copy_bytes else 0, copy_bytes)


def _blocks(picture):
    """Layout rectangles as (class, x, y, width) and copy rectangles as (x, width, height)."""
    rects = [e.attrib for e in ElementTree.fromstring(picture).iter("rect")]
    layouts = [(r["class"], float(r["x"]), float(r["y"]), float(r["width"])) for r in rects if r["class"] != "copied"]
    copies = [(float(r["x"]), float(r["width"]), float(r["height"])) for r in rects if r["class"] == "copied"]
    return layouts, copies


def test_width_is_bytes_and_the_filled_part_is_the_copies_share():
    picture = draw_layout_map(_graph(_span(bytes=300), _span("model.b", 100, 50, "channels_last")), 400.0)
    (first, second), ((x, width, height),) = _blocks(picture)
    assert first[0] == "lay-plain"
    assert second[0] == "lay-channels-last"
    assert first[3] + second[3] == pytest.approx(400.0)
    assert first[3] - NARROWEST_BLOCK == pytest.approx(3 * (second[3] - NARROWEST_BLOCK))
    assert (x, width) == (second[1], second[3])
    assert height == pytest.approx(BAND / 2)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.booleans()), min_size=1, max_size=60), st.sampled_from([360, 1000]))
def test_any_graph_stays_inside_its_picture(sizes, width):
    spans = [_span(f"model.m{i}", size, size // 2 if copies else 0) for i, (size, copies) in enumerate(sizes)]
    picture = draw_layout_map(_graph(*spans), float(width))
    if not any(size for size, _ in sizes):
        assert picture is None
        return
    layouts, copies = _blocks(picture)
    assert all(x >= 0 and x + w <= width + 0.02 for _, x, _, w in layouts)
    assert all(0 < height <= BAND + 0.01 for _, _, height in copies)
    rows = {}
    for _, x, y, w in layouts:
        rows.setdefault(y, []).append((x, w))
    for members in rows.values():
        for (x, w), (following, _) in itertools.pairwise(members):
            assert x + w == pytest.approx(following, abs=0.03)


def test_phases_have_their_own_bands(advice):
    text = draw_layout_map(advice.graphs[0], 1000.0)
    assert "forward: 78.0 MB moved, 21.8 MB of it by layout copies" in text
    assert "backward: 42.0 MB moved, 10.0 MB of it by layout copies" in text


def test_shared_beginnings_of_module_paths_are_left_out():
    picture = draw_layout_map(_graph(_span("model.encoder.left"), _span("model.encoder.right")), 1000.0)
    labels = re.findall(r'class="map-label">([^<]+)<', picture)
    assert labels == ["left", "right"]


def test_hostile_names(hostile):
    picture = draw_layout_map(hostile.graphs[0], 360.0)
    ElementTree.fromstring(picture)
    assert "<script>" not in picture
    assert get_layout_class("x'\"><script>") == "lay-other"
    assert get_layout_class("-") == "lay-none"


def test_nothing_to_draw():
    assert draw_layout_map(_graph(), 360.0) is None
    assert draw_layout_map(dataclasses.replace(_graph(), spans=(_span(bytes=0),)), 360.0) is None

from __future__ import annotations

import dataclasses
from xml.etree import ElementTree

from frx_graph.records import CopyKind
from frx_graph.reports.advice.copy_sites import draw_copy_bar, group_by_cause, group_by_site


def test_one_entry_a_line_largest_first(advice):
    sites = group_by_site(advice.copies)
    assert [(each.site.line, each.bytes, each.count) for each in sites] == [
        (142, 12_845_056, 4),
        (88, 4_816_896, 12),
        (97, 75_264, 1),
    ]
    assert sites == group_by_site(reversed(advice.copies))
    assert group_by_site(()) == ()


def test_bar_is_stacked_by_kind(advice):
    copy = advice.copies[0]
    explicit = dataclasses.replace(copy, kind=CopyKind.EXPLICIT, bytes=copy.bytes // 2)
    (site,) = group_by_site([explicit, copy])
    assert [kind for kind, _ in site.by_kind] == [CopyKind.REORDER, CopyKind.EXPLICIT]
    first, second = ElementTree.fromstring(draw_copy_bar(site, 2 * site.bytes)).iter("rect")
    assert (float(first.attrib["width"]), float(second.attrib["x"])) == (33.33, 33.33)
    assert float(second.attrib["width"]) == 16.67
    assert ElementTree.fromstring(draw_copy_bar(site, 0)).find("rect").attrib["width"] == "0"


def test_copies_that_differ_in_place_only_are_one_row(advice):
    copy = advice.copies[0]
    twin = dataclasses.replace(copy, node="other", value="relu_9")
    different = dataclasses.replace(copy, cause="another", bytes=10**9)
    rows = group_by_cause([copy, twin, different])
    assert [(row.cause, row.count, row.bytes) for row in rows] == [
        ("another", 2, 10**9),
        (copy.cause, 4, 2 * copy.bytes),
    ]
    assert rows[1].values == ("relu_3", "relu_9")
    assert rows[1].nodes == ("convolution_4", "other")

"""The table of counts, and the targets that are counted."""

from __future__ import annotations

from page_faults import NETWORKS, counted, table, workload

from frx_graph.advisor.target import load_target
from frx_graph.measure.page_faults import PageFaults


def test_a_row_has_the_processes_in_order_of_size() -> None:
    found = [
        counted("convnet", allocation, PageFaults((faults,) * 3, 4096))
        for allocation, faults in (("default", 2272), ("default", 4), ("pooled", 0), ("pooled", 0))
    ]
    *_, row = table(found).splitlines()
    assert [cell.strip() for cell in row.strip("|").split("|")] == ["convnet", "4 · 2,272", "8.9", "0 · 0", "0.0"]


def test_the_example_is_a_target() -> None:
    assert "convnet" in NETWORKS
    made = workload("convnet")
    assert load_target(made.target, dict(made.shape)).name == made.target
    assert workload("resnet18").shape == (("batch", 1),)

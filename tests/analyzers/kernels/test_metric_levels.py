"""How a kernel's headline metrics are told to be."""

from __future__ import annotations

import pytest

from frx_graph.analyzers.kernels.metric_levels import Level, grade_metrics


def levels(kernel: str, **values: float) -> dict[str, Level]:
    return {metric.name: metric.level for metric in grade_metrics(kernel, values)}


@pytest.mark.parametrize(
    ("value", "level"),
    [(59.0, Level.GOOD), (60.0, Level.DOUBTFUL), (80.0, Level.BAD)],
)
def test_high_values_are_bad_of_some(value: float, level: Level) -> None:
    assert levels("copy", dram_throughput=value)["dram_throughput"] is level


@pytest.mark.parametrize(("value", "level"), [(51.0, Level.GOOD), (50.0, Level.DOUBTFUL), (10.0, Level.BAD)])
def test_low_values_are_bad_of_others(value: float, level: Level) -> None:
    assert levels("copy", l2_hit_rate=value)["l2_hit_rate"] is level


def test_missing_metrics_are_unmeasured() -> None:
    found = levels("gemm")
    assert set(found.values()) == {Level.UNMEASURED}
    assert list(found)[:2] == ["compute_throughput", "memory_throughput"]


def test_the_tensor_pipe_is_that_of_matrix_products() -> None:
    assert levels("sgemm", tensor_pipe=0.0)["tensor_pipe"] is Level.BAD
    assert "tensor_pipe" not in levels("stencil", tensor_pipe=0.0)
    assert levels("mine", tensor_pipe=40.0, tensor_instructions=8.0)["tensor_pipe"] is Level.GOOD

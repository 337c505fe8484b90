"""The framework's part of idle time: what input, copies and waits explain is none of it."""

from __future__ import annotations

from typing import Any

import pytest

from frx_graph.analyzers.run.abstraction_tax import AbstractionTax, TaxSeverity


def tax(run: Any) -> AbstractionTax | None:
    found: AbstractionTax | None = run.analyse().run.tax
    return found


def profiled(
    run: Any, busy: float | None = 10, small: float | None = 0.9, kernels: int | None = 900, **step: Any
) -> None:
    for _ in range(5):
        run.step(100, **step)
    run.sample(busy)
    run.profiled(kernels, 4.0, small)


def test_idle_time_of_fragmented_work(run: Any) -> None:
    profiled(run)
    found = tax(run)
    assert found is not None
    assert (found.score, found.severity, found.sampled) == (pytest.approx(81), TaxSeverity.HIGH, True)
    assert [(one.name, one.inferred) for one in found.contributors] == [("Kernel launch fragmentation", False)]


@pytest.mark.parametrize("stall", ["wait", "h2d", "sync"])
def test_time_explained_by_stalls_is_subtracted(run: Any, stall: str) -> None:
    profiled(run, **{stall: 85})
    found = tax(run)
    assert found is not None
    assert (found.score, found.severity) == (pytest.approx(4.5), TaxSeverity.LOW)
    assert found.explained == pytest.approx(0.85)
    assert not found.contributors


def test_a_run_that_waits_for_input_pays_no_tax(run: Any) -> None:
    profiled(run, busy=5, wait=96)
    found = tax(run)
    assert found is not None
    assert found.score == 0


@pytest.mark.parametrize(
    "missing", [{"busy": None}, {"small": None}, {"kernels": None}, {"kernels": 29}], ids=lambda one: next(iter(one))
)
def test_without_the_data_there_is_none(run: Any, missing: dict[str, Any]) -> None:
    profiled(run, **missing)
    assert tax(run) is None


@pytest.mark.parametrize(
    ("busy", "severity"),
    [(80.0, TaxSeverity.MEDIUM), (80.1, TaxSeverity.LOW), (50.0, TaxSeverity.HIGH), (50.1, TaxSeverity.MEDIUM)],
)
def test_bands(run: Any, busy: float, severity: TaxSeverity) -> None:
    profiled(run, busy=busy, small=1.0)
    found = tax(run)
    assert found is not None
    assert found.severity is severity

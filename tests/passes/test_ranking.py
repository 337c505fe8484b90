"""The order of findings: severity, then what a fix is expected to save."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from frx_graph.capture.call_site import CallSite
from frx_graph.passes.ranking import expected_saving_pct, rank
from frx_graph.records import Effort, Finding, Risk, Saving, Severity


def finding(
    severity: Severity = Severity.LOW, saving: Saving | None = None, confidence: float = 0.5, line: int = 1
) -> Finding:
    return Finding(
        rule="FRX002",
        title="t",
        severity=severity,
        site=CallSite("/net.py", line, "forward"),
        nodes=(),
        count_per_step=1,
        bytes_per_step=None,
        saving=saving or Saving(),
        effort=Effort.LOCAL,
        risk=Risk.LOW,
        fix="f",
        confidence=confidence,
    )


@pytest.mark.parametrize(
    ("saving", "confidence", "expected"),
    [
        (Saving(predicted_pct_min=2.0, predicted_pct_max=6.0), 0.5, 2.0),
        (Saving(predicted_pct_min=0.0, predicted_pct_max=0.0), 0.95, 0.0),
        (Saving(predicted_pct_min=2.0, predicted_pct_max=6.0, measured_pct=3.0), 0.5, 3.0),
        (Saving(), 0.95, 0.0),
    ],
)
def test_the_expected_saving(saving: Saving, confidence: float, expected: float) -> None:
    assert expected_saving_pct(finding(saving=saving, confidence=confidence)) == expected


def test_a_sure_saving_stands_before_a_larger_doubtful_one() -> None:
    sure = finding(saving=Saving(predicted_pct_min=8.0, predicted_pct_max=8.0), confidence=0.95, line=2)
    doubtful = finding(saving=Saving(predicted_pct_min=0.0, predicted_pct_max=12.0), confidence=0.5, line=1)
    assert rank([doubtful, sure]) == (sure, doubtful)


def test_severity_comes_first_and_the_order_does_not_depend_on_the_input() -> None:
    high = finding(Severity.HIGH, line=9)
    medium = finding(Severity.MEDIUM, Saving(predicted_pct_min=9.0, predicted_pct_max=9.0))
    ordered = (high, medium, *(finding(Severity.INFO, line=line) for line in range(1, 5)))
    shuffled = list(ordered)
    random.Random(3).shuffle(shuffled)
    assert rank(shuffled) == ordered


def test_bytes_decide_between_findings_of_which_no_share_is_known() -> None:
    small, large = replace(finding(line=1), bytes_per_step=10), replace(finding(line=2), bytes_per_step=20)
    assert rank([small, large]) == (large, small)

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frx_graph.capture.call_site import UNKNOWN_SITE, CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.passes.copies.copy_findings import Remedy, build_copy_finding, format_value, group_copies
from frx_graph.records import Basis, Copy, CopyKind, Effort, OperandRole, Risk, Severity


class Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1).contiguous()


COPY = Copy(
    node="clone",
    site=CallSite("model.py", 10, "forward", "model.blocks.0"),
    operator="aten.clone",
    kind=CopyKind.EXPLICIT,
    role=OperandRole.INPUT,
    value="transpose",
    bytes=96,
    count=1,
    phase=Phase.FORWARD,
    basis=Basis.PREDICTED,
    cause="asked for",
)


@pytest.fixture
def with_copies(analyse: Any) -> Any:
    return lambda *copies: analyse(Plain(), torch.randn(3, 4), copies=copies, step_bytes=1920)


def test_copies_of_a_line_are_one_group_whatever_their_module_and_phase(with_copies: Any) -> None:
    other = replace(COPY, node="clone_1", site=replace(COPY.site, module_path="model.blocks.1"), bytes=32, count=2)
    backward = replace(COPY, node="clone_2", phase=Phase.BACKWARD)
    elsewhere = replace(COPY, node="clone_3", site=replace(COPY.site, line=11))
    first, second = group_copies(with_copies(COPY, other, elsewhere, backward), "FRX002")
    assert (first.count, first.bytes, first.count_in_phase(Phase.BACKWARD)) == (4, 224, 1)
    assert first.nodes == ("clone", "clone_1", "clone_2")
    assert first.modules == ("model.blocks.0", "model.blocks.1")
    assert first.site == CallSite("model.py", 10, "forward", "model.blocks.*")
    assert first.largest is COPY
    assert second.copies == (elsewhere,)


def test_a_rule_gets_its_own_copies_only(with_copies: Any) -> None:
    hidden = replace(COPY, kind=CopyKind.OPERATOR)
    weight = replace(COPY, kind=CopyKind.REORDER, role=OperandRole.WEIGHT)
    analysis = with_copies(COPY, hidden, weight)
    claimed = {rule: [g.copies for g in group_copies(analysis, rule)] for rule in ("FRX001", "FRX002", "FRX007")}
    assert claimed == {"FRX001": [(hidden,)], "FRX002": [(COPY,)], "FRX007": [(weight,)]}


def test_copies_of_no_known_line_stay_apart_by_module(with_copies: Any) -> None:
    sites = [replace(UNKNOWN_SITE, module_path=f"model.{index}") for index in (0, 1, 0)]
    groups = group_copies(with_copies(*(replace(COPY, site=site) for site in sites)), "FRX002")
    assert [(group.site.module_path, group.count) for group in groups] == [("model.0", 2), ("model.1", 1)]


def test_a_finding_carries_the_whole_group_and_the_share_that_a_fix_saves(with_copies: Any) -> None:
    analysis = with_copies(COPY, replace(COPY, phase=Phase.BACKWARD))
    (group,) = group_copies(analysis, "FRX002")
    finding = build_copy_finding(
        group,
        analysis,
        rule="FRX002",
        title="t",
        remedy=Remedy("f", Effort.LOCAL, Risk.LOW),
        possible_bytes=96,
    )
    assert (finding.count_per_step, finding.bytes_per_step, finding.copies) == (2, 96, group.copies)
    assert (finding.saving.predicted_pct_min, finding.saving.predicted_pct_max) == (0.0, 5.0)
    assert finding.severity is Severity.MEDIUM
    assert finding.evidence[0].text == "2 copies per step move 192 B, 1 of them in the backward"


def test_values_are_written_with_what_matters_of_their_layout(analyse: Any) -> None:
    facts = analyse(Plain(), torch.randn(3, 4)).facts
    assert format_value(facts.values["transpose"]) == "(4, 3) fp32, strides (1, 4), permuted"

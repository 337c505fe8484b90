"""The street as a whole: every graph of a step counts, and what is not known is said."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import frx_graph


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).transpose(1, 2).contiguous()
        torch._dynamo.graph_break()
        return y.transpose(1, 2).contiguous()


def test_every_version_of_a_frame_that_a_step_runs_counts() -> None:
    model = nn.Sequential(Block(8), Block(16), Block(32)).eval()
    advice = frx_graph.advise(model, (torch.randn(2, 6, 8),), observe=True).advice
    assert advice.observed is not None
    assert sum(copy.count for copy in advice.copies) == len(advice.observed) == 6
    assert sum(copy.bytes for copy in advice.copies) == sum(copy.bytes for copy in advice.observed)


def test_savings_are_shares_of_the_whole_step() -> None:
    """The copies that cancel across a graph break stand in two graphs of which each is a part of one step."""
    model = nn.Sequential(Block(8), Block(16), Block(32)).eval()
    report = frx_graph.advise(model, (torch.randn(2, 6, 8),), measure=False)
    savings = [f.saving.predicted_pct_max for f in report.advice.findings if f.copies]
    assert len(report.advice.graphs) > 1
    assert sum(saved for saved in savings if saved is not None) <= 100.0
    copied = sum(c.bytes for f in report.advice.findings for c in f.copies)
    assert report.totals.bandwidth_overhead_pct is not None
    whole = 100.0 * copied / report.totals.bandwidth_overhead_pct
    for found in report.advice.findings:
        if found.saving.predicted_pct_max and found.bytes_per_step:
            assert found.bytes_per_step / whole == pytest.approx(found.saving.predicted_pct_max / 100.0)


def test_a_graph_break_is_said() -> None:
    report = frx_graph.advise(Block(4).eval(), (torch.randn(2, 6, 4),))
    assert any(refusal.subject == "graph break" for refusal in report.refusals)


def test_what_a_higher_order_operator_does_inside_is_said_to_be_unknown() -> None:
    def choose(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.t().contiguous(), lambda y: y.t().contiguous() * 2, (x,))

    report = frx_graph.advise(choose, (torch.ones(3, 4),), observe=True)
    # torch 2.13 cannot run `cond` under a dispatch mode: then the report has to say so.
    if report.advice.observed is None:
        assert any(refusal.subject == "observation" for refusal in report.refusals)
    else:
        assert len(report.advice.observed) == 1
    assert any("not known" in refusal.reason and "cond" in refusal.subject for refusal in report.refusals)


def test_a_root_module_of_torchs_own_is_named_by_its_path_predicted_and_observed() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU()).eval()
    advice = frx_graph.advise(model, (torch.randn(2, 4, 9, 9),), observe=True).advice
    assert advice.observed
    for site in (*(f.site for f in advice.findings), *(copy.site for copy in advice.observed)):
        assert (site.line, site.module_path, site.function) == (0, "model.0", "Conv2d.forward")
    bare = frx_graph.advise(nn.Conv2d(4, 8, 3).eval(), (torch.randn(2, 4, 9, 9),)).advice
    assert {(f.site.module_path, f.site.function) for f in bare.findings} == {("model", "Conv2d.forward")}

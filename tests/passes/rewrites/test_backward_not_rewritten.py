"""A forward that was rewritten saves in another order; its backward must be right also where it is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frx_graph.capture.captured_graph import Phase
from frx_graph.compiler import rewrite_pipeline
from frx_graph.compiler.eager import EagerPlan
from frx_graph.compiler.plans import make_current_plan
from frx_graph.errors import RewriteError
from frx_graph.passes.rewrites import propagate_layout
from frx_graph.passes.rewrites.layout import assignment
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate, Refusal


@pytest.fixture
def no_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite_pipeline, "REWRITES", (propagate_layout.REWRITE,))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1))


@pytest.mark.usefixtures("no_backward")
def test_gradients_keep_their_strides(rewrite: Any) -> None:
    # The fixture compares them: the 1x1 weight's would be (8, 1, 8, 8).
    graph = rewrite(model(), torch.randn(2, 4, 6, 5), train=True).graph(Phase.BACKWARD)
    saved = [tuple(n.meta["val"].stride()) for n in graph.after.find_nodes(op="placeholder") if n.name == "relu"]
    assert saved == [(96, 1, 24, 8)]
    assert not graph.done.applied


@pytest.mark.usefixtures("no_backward")
def test_what_cannot_run_on_them_gets_them_as_they_were(rewrite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own, failed = assignment.relayout, list[bool]()

    def relayout(graph: Any, demands: Any, **how: Any) -> tuple[str, ...]:
        if how["given"]:
            failed.append(True)
            raise RewriteError("planted")
        return own(graph, demands, **how)

    monkeypatch.setattr(assignment, "relayout", relayout)
    graph = rewrite(model(), torch.randn(2, 4, 6, 5), train=True).graph(Phase.BACKWARD)
    assert failed
    assert graph.done.conversions
    (call, *_) = [n for n in graph.after.nodes if str(n.target) == "aten.convolution_backward.default"]
    assert call.args[1].meta["val"].stride() == (96, 12, 3, 1)


class Doubled(torch.autograd.Function):
    """Its backward, `reading` what was saved, depends on how that lies."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, reading: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.reading = reading
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        read = x.view(x.shape[0], x.shape[1], -1) if ctx.reading == "view" else torch.as_strided(x, (2, 3), (1, 2))
        return gradient * read.sum(), None


@pytest.mark.parametrize(("reading", "laid_out"), [("view", True), ("as_strided", False)])
def test_a_saved_slice_with_gaps_is_read_as_it_was(rewrite: Any, reading: str, laid_out: bool) -> None:
    class Sliced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(Doubled.apply(self.first(x)[:, 4:], reading))

    found = rewrite(Sliced(), torch.randn(2, 4, 6, 5, requires_grad=True), train=True)
    assert found.graph(Phase.FORWARD).done.applied
    applied = {candidate.rewrite for candidate in found.graph(Phase.BACKWARD).done.applied}
    assert ("backward_layout" in applied) is laid_out


def test_program_still_runs_after_an_internal_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its forward has saved in channels-last, and its backward views what was saved."""

    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(Doubled.apply(self.first(x), "view"))

    def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
        if subject.phase is Phase.BACKWARD:
            raise LookupError("planted")
        yield from propagate_layout.propose(subject)

    planted = Rewrite(propagate_layout.NAME, propose, propagate_layout.REWRITE.apply)
    monkeypatch.setattr(rewrite_pipeline, "REWRITES", (planted,))
    failures: list[Exception] = []
    # In double precision, where orders of summing do not show.
    program, image = Viewing().double(), torch.randn(2, 4, 6, 5).double()
    expected = torch.autograd.grad(program(image).square().sum(), list(program.parameters()))
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=EagerPlan(make_current_plan("all"), lambda _done: None, failures.append))
    found = torch.autograd.grad(compiled(image).square().sum(), list(program.parameters()))
    assert [str(failure) for failure in failures] == ["planted"]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride()

"""The street as a whole: every graph of a step counts, and what is not known is said."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import frx_graph
from frx_graph.advice import Advice
from frx_graph.advisor import advisor
from frx_graph.capture.captured_graph import Phase
from frx_graph.capture.model import capture_model
from frx_graph.errors import CaptureError
from frx_graph.measure.inductor import inductor_backend
from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.measure.page_faults import AllocationCost, PageFaults
from frx_graph.records import Copy, Refusal
from frx_graph.support.torch_internals import BackendCompilerFailed


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).transpose(1, 2).contiguous()
        torch._dynamo.graph_break()
        return y.transpose(1, 2).contiguous()


class Even(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).transpose(1, 2).contiguous()
        torch._dynamo.graph_break()
        return y.transpose(1, 2).contiguous() + 1


def test_each_call_of_a_graph_receives_its_own_gradient() -> None:
    """The last block's gradient is expanded from the loss, the others' are not."""

    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Even() for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x.sum()

    advice = frx_graph.advise(Blocks(), (torch.randn(8, 32, 64, requires_grad=True),), train=True, observe=True).advice
    assert advice.observed is not None
    assert _places(advice.copies) == _places(advice.observed)
    assert Phase.BACKWARD in {copy.phase for copy in advice.observed}
    assert len({graph.graph_id for graph in advice.graphs}) == len(advice.graphs)
    assert advice.findings
    assert {finding.graph_id for finding in advice.findings} <= {graph.graph_id for graph in advice.graphs}


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


def test_graph_break_is_reported() -> None:
    report = frx_graph.advise(Block(4).eval(), (torch.randn(2, 6, 4),))
    assert any(refusal.subject == "graph break" for refusal in report.refusals)


def test_contents_of_a_higher_order_operator_are_reported_as_unknown() -> None:
    def choose(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.t().contiguous(), lambda y: y.t().contiguous() * 2, (x,))

    report = frx_graph.advise(choose, (torch.ones(3, 4),), observe=True)
    # torch 2.13 cannot run `cond` under a dispatch mode: then the report has to say so.
    if report.advice.observed is None:
        assert any(refusal.subject == "observation" for refusal in report.refusals)
    else:
        assert len(report.advice.observed) == 1
    assert any("unknown" in refusal.reason and "cond" in refusal.subject for refusal in report.refusals)


@pytest.mark.integration
def test_a_root_module_of_torchs_own_is_named_by_its_path_predicted_and_observed() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU()).eval()
    advice = frx_graph.advise(model, (torch.randn(2, 4, 9, 9),), observe=True).advice
    assert advice.observed
    for site in (*(f.site for f in advice.findings), *(copy.site for copy in advice.observed)):
        assert (site.line, site.module_path, site.function) == (0, "model.0", "Conv2d.forward")
    bare = frx_graph.advise(nn.Conv2d(4, 8, 3).eval(), (torch.randn(2, 4, 9, 9),)).advice
    assert {(f.site.module_path, f.site.function) for f in bare.findings} == {("model", "Conv2d.forward")}


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **how: Any) -> None:
        super().__init__()
        self.recurrent = kind(16, 32, **how)
        self.head = nn.Linear(64 if how.get("bidirectional") else 32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0])


def _places(copies: Iterable[Copy]) -> Counter[tuple[object, ...]]:
    places: Counter[tuple[object, ...]] = Counter()
    for copy in copies:
        key = (*copy.site.location, copy.operator, copy.kind, copy.role, copy.phase)
        places[*key, "count"] += copy.count
        places[*key, "bytes"] += copy.bytes
    return places


@pytest.mark.integration
@pytest.mark.parametrize("how", [{"batch_first": True}, {"num_layers": 2, "bidirectional": True}])
@pytest.mark.parametrize(
    ("kind", "train"), [(nn.LSTM, False), (nn.GRU, False), (nn.GRU, True), (nn.RNN, False), (nn.RNN, True)]
)
def test_recurrent_layers_copy_what_eager_shows(kind: type[nn.RNNBase], train: bool, how: dict[str, Any]) -> None:
    model = Recurrent(kind, **how).train(train)
    advice = frx_graph.advise(model, (torch.randn(12, 4, 16),), train=train, observe=True).advice
    assert advice.observed is not None
    assert bool(advice.observed) or "batch_first" not in how
    assert _places(advice.copies) == _places(advice.observed)
    assert not any("break" in refusal.subject for refusal in advice.refusals)


@pytest.mark.integration
def test_fused_recurrent_backward_is_reported_as_unknown() -> None:
    advice = frx_graph.advise(Recurrent(nn.LSTM), (torch.randn(12, 4, 16),), train=True, observe=True).advice
    assert advice.observed is not None
    forward = [_places(c for c in copies if c.phase is Phase.FORWARD) for copies in (advice.copies, advice.observed)]
    assert forward[0] == forward[1]
    if any(op.startswith("aten.mkldnn_rnn") for op in (copy.operator for copy in advice.observed)):
        assert any("mkldnn_rnn_layer_backward" in refusal.subject for refusal in advice.refusals)


def test_what_is_compiled_still_leaves_its_graph_at_a_recurrent_layer() -> None:
    model, args = Recurrent(nn.GRU).eval(), (torch.randn(12, 4, 16),)
    inside = capture_model(model, args)
    assert any(node.target is torch.ops.aten.sigmoid_.default for node in inside.graphs[0].aten.graph.nodes)
    # torch 2.13 gives up on the whole function, 2.15 only on the layer.
    with contextlib.suppress(CaptureError):
        compiled = capture_model(model, args, as_eager=False)
        nodes = [node for graph in compiled.graphs for node in graph.aten.graph.nodes]
        assert not any(node.target is torch.ops.aten.sigmoid_.default for node in nodes)


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inside(x, x, x, need_weights=False)[0]
        return y * 2


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("inside", [False, True], ids=["bare", "inside"])
def test_attention_layer_copies_what_its_native_operator_copies(inside: bool, train: bool) -> None:
    x = torch.randn(2, 32, 64)
    model = SelfAttention() if inside else nn.MultiheadAttention(64, 4, batch_first=True)
    args = (x,) if inside else (x, x, x)
    advice = frx_graph.advise(model.train(train), args, train=train, observe=True).advice
    assert advice.observed
    assert _places(advice.copies) == _places(advice.observed)
    assert any(copy.operator == "aten._native_multi_head_attention" for copy in advice.copies) is not train
    assert any("nn.MultiheadAttention" in finding.fix for finding in advice.findings) is not train
    assert not any("channels-last" in finding.fix for finding in advice.findings)


def test_what_is_compiled_takes_attention_apart() -> None:
    native = torch.ops.aten._native_multi_head_attention.default
    for as_eager in (True, False, True):
        capture = capture_model(SelfAttention().eval(), (torch.randn(2, 32, 64),), as_eager=as_eager)
        targets = [node.target for graph in capture.graphs for node in graph.aten.graph.nodes]
        assert (native in targets) is as_eager


class Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous() * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.transpose(1, 2).contiguous() * 2


class Turning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = Turned.apply(x * 3)
        x = Turned.apply(x)
        y: Tensor = self.inside(Turned.apply(x))
        return y


def test_the_backward_of_a_custom_function_belongs_to_its_own_line() -> None:
    args = (torch.randn(4, 16, 8, requires_grad=True),)
    advice = frx_graph.advise(Turning(), args, train=True, observe=True).advice
    assert advice.observed is not None
    assert _places(advice.copies) == _places(advice.observed)
    own = inspect.getsourcelines(Turned.backward)[1] + 2
    assert [c.site.line for c in advice.observed if c.phase is Phase.BACKWARD] == [own, own, own]


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.inside = nn.Linear(8, 8)
        self.reentrant = reentrant

    def _part(self, x: Tensor) -> Tensor:
        return self.inside(x).transpose(1, 2).contiguous().relu()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(self._part, self.first(x), use_reentrant=self.reentrant)
        return y * 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_recompute_is_observed_at_its_line_but_not_predicted(reentrant: bool) -> None:
    model = Checkpointed(reentrant=reentrant)
    advice = frx_graph.advise(model, (torch.randn(4, 8, 8),), train=True, observe=True).advice
    assert advice.observed is not None
    assert all(copy.site.line for copy in advice.observed)
    start = inspect.getsourcelines(Checkpointed._part)[1]
    clones = [(c.site.line, c.phase) for c in advice.observed if c.operator == "aten.clone"]
    assert clones == [(start + 1, Phase.FORWARD), (start + 1, Phase.BACKWARD)]
    (refusal,) = (r for r in advice.refusals if r.subject == "activation checkpoint")
    assert refusal.site is not None
    assert refusal.site.function == "forward"
    assert refusal.site.line == inspect.getsourcelines(Checkpointed.forward)[1] + 1


def test_a_checkpoint_in_inference_computes_nothing_again() -> None:
    advice = frx_graph.advise(Checkpointed(reentrant=False).eval(), (torch.randn(4, 8, 8),)).advice
    assert not any(refusal.subject == "activation checkpoint" for refusal in advice.refusals)


def test_a_torch_without_the_hook_into_inductor_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor_backend, "has_post_fusion_pass", lambda: False)
    model, args = nn.Linear(4, 4).eval(), (torch.randn(2, 4),)
    advice = frx_graph.advise(model, args, inner="inductor", observe=True, measure=False).advice
    assert advice.observed is None
    assert any(r.subject == "observation" and "Inductor's schedule" in r.reason for r in advice.refusals)


def test_an_operator_faster_than_the_calibration_raises_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = DeviceProfile("cpu", "a CPU", 1e10, {torch.float32: 1e3}, 64, {torch.float32: "aten.mm"}, under_load=True)
    monkeypatch.setattr(advisor, "get_device_profile", lambda *_args, **_kwargs: slow)
    model = nn.Conv2d(8, 8, 3).eval()
    environment = frx_graph.advise(model, (torch.randn(1, 8, 32, 32),)).advice.environment
    (peak,) = environment.peak_flops
    assert (peak.dtype, peak.kernel) == ("float32", "aten.convolution")
    assert peak.flops_per_s > 1e3
    assert environment.calibrated_under_load


def test_step_that_cannot_be_observed_is_reported_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BackendCompilerFailed("inductor", InvalidCxxCompiler("gcc"), None)

    monkeypatch.setattr("frx_graph.advisor.advisor.observe_step", fail)
    report = frx_graph.advise(nn.Linear(8, 8).eval(), (torch.randn(2, 8),), observe=True, measure=False)
    reasons = [refusal.reason for refusal in report.advice.refusals if refusal.subject == "observation"]
    assert reasons == ["the step could not be observed: Inductor finds no C++ compiler (install g++, or set CXX)"]


class InvalidCxxCompiler(RuntimeError):
    """Has the name of Inductor's error."""


def advise_with_cost(cost: AllocationCost | Refusal) -> Advice:
    model, x = Block(4).eval(), torch.randn(2, 6, 4)
    return frx_graph.advise(model, (x,), measure=False, cost_allocations=lambda: cost).advice


def test_page_faults_are_a_finding_of_the_whole_program() -> None:
    advice = advise_with_cost(AllocationCost(PageFaults((4000,), 4096), saved_pct=(20.0,)))
    (found,) = (finding for finding in advice.findings if finding.rule == "FRX018")
    assert (found.count_per_step, found.saving.measured_pct) == (4000, 20.0)
    assert advice.timings.measure_s is not None


def test_page_faults_that_are_unknown_are_listed_with_the_reason() -> None:
    unknown = Refusal("page faults", "not counted: the C library is not glibc")
    advice = advise_with_cost(unknown)
    assert unknown in advice.refusals
    assert "FRX018" not in {finding.rule for finding in advice.findings}

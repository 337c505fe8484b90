"""Capture of live models: graphs, sites, phases, inputs; breaks, recompiles, failures; state left as it was."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.variables import torch as dynamo_torch
from torch.nn.modules import activation

from frx_graph.capture.captured_graph import CapturedGraph, InputKind, Phase
from frx_graph.capture.model import capture_model, use_eager_paths
from frx_graph.errors import CaptureError, TargetError
from frx_graph.facts.build import build_graph_facts


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y).relu_()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), nn.ReLU())
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x).mean((2, 3)))


def _targets(graph: CapturedGraph, phase: Phase) -> list[str]:
    facts = build_graph_facts(graph)
    return [op.operator for op in facts.ops if op.phase is phase]


def _line_of(function: object, text: str) -> int:
    lines, start = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return start + next(i for i, line in enumerate(lines) if text in line)


def test_inference_captures_eagers_own_operators_with_site_and_module_path() -> None:
    graph = capture_model(Net().eval(), (torch.randn(2, 3, 8, 8),)).graphs[0]
    facts = build_graph_facts(graph)
    convolution = next(op for op in facts.ops if op.operator == "aten.convolution")
    assert convolution.site.file == __file__
    assert convolution.site.line == _line_of(Block.forward, "self.conv(x)")
    assert convolution.site.function == "forward"
    assert convolution.site.module_path == "model.blocks.0.conv"
    assert "aten.relu_" in _targets(graph, Phase.FORWARD)
    assert not graph.train
    assert all(phase is Phase.FORWARD for phase in graph.phases.values())


def test_training_captures_the_backward_at_the_forwards_sites() -> None:
    graph = capture_model(Net(), (torch.randn(2, 3, 8, 8),), train=True).graphs[0]
    facts = build_graph_facts(graph)
    backward = [op for op in facts.ops if op.operator == "aten.convolution_backward"]
    assert len(backward) == 1
    assert backward[0].phase is Phase.BACKWARD
    assert backward[0].site.line == _line_of(Block.forward, "self.conv(x)")
    assert backward[0].site.module_path == "model.blocks.0.conv"


def test_inputs_are_named_as_the_program_names_them() -> None:
    graph = capture_model(Net(), (torch.randn(2, 3, 8, 8),), train=True).graphs[0]
    kinds = {entry.path: entry.kind for entry in graph.inputs}
    assert kinds["model.blocks.0.conv.weight"] is InputKind.PARAMETER
    assert kinds["model.blocks.0.norm.running_mean"] is InputKind.BUFFER
    assert kinds["x"] is InputKind.ARGUMENT


def test_state_and_randomness_are_left_as_they_were() -> None:
    net = Net().train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    capture_model(net, (torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)),), train=True)
    assert torch.equal(torch.rand(3), expected)
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(p.grad is None for p in net.parameters())


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Net()

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return self.inner(y)


def test_a_graph_break_is_reported_with_its_site_and_paths_stay_whole() -> None:
    capture = capture_model(Broken(), (torch.randn(2, 3, 8, 8),))
    assert len(capture.graphs) == 2
    assert len(capture.breaks) == 1
    assert capture.breaks[0].site.line == _line_of(Broken.forward, "graph_break()")
    sites = {site.module_path for graph in capture.graphs for site in graph.sites.values()}
    assert "model.inner.blocks.0.conv" in sites


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([Cut(), Cut()])

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return x


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        torch._dynamo.graph_break()
        return y.relu()


def test_a_graph_that_begins_inside_a_submodule_is_named_from_the_root() -> None:
    capture = capture_model(Deep(), (torch.randn(2, 3, 9, 9),))
    convolutions = [
        op.site.module_path
        for graph in capture.graphs
        for op in build_graph_facts(graph).ops
        if op.operator == "aten.convolution"
    ]
    assert sorted(set(convolutions)) == ["model.stages.0.conv", "model.stages.1.conv"]


def test_a_model_that_raises_is_the_targets_error() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ValueError("bad shape\nsecond line")

    with pytest.raises(TargetError, match="ValueError: bad shape"):
        capture_model(fails, (torch.ones(1),))


def test_a_model_without_tensor_operations_is_not_clean_but_uncaptured() -> None:
    with pytest.raises(CaptureError, match="nothing of"):
        capture_model(lambda x: 3, (torch.ones(1),))


def test_a_callable_object_is_captured() -> None:
    class Transposer:
        def __call__(self, x: Tensor) -> Tensor:
            return x.t().contiguous()

    graph = capture_model(Transposer(), (torch.ones(3, 4),)).graphs[0]
    assert _targets(graph, Phase.FORWARD) == ["aten.t", "aten.clone"]


def test_autocast_is_captured_as_it_runs() -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.linear(x)

    facts = build_graph_facts(capture_model(Cast(), (torch.randn(4, 8),)).graphs[0])
    product = next(op for op in facts.ops if op.operator == "aten.addmm")
    assert facts.values[product.outputs[0]].dtype is torch.bfloat16


def test_ambient_autocast_is_captured_too() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        facts = build_graph_facts(capture_model(nn.Linear(8, 8), (torch.randn(4, 8),)).graphs[0])
    product = next(op for op in facts.ops if op.operator == "aten.addmm")
    assert facts.values[product.outputs[0]].dtype is torch.bfloat16


def test_mutation_views_and_ties_are_facts() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 6)
            self.head = nn.Linear(6, 10, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("count", torch.zeros(4))

        def forward(self, tokens: Tensor) -> Tensor:
            self.count.add_(1)
            return self.head(self.embed(tokens))

    facts = build_graph_facts(capture_model(Tied(), (torch.arange(4),), train=True).graphs[0])
    by_path = {value.path: value for value in facts.values.values() if value.path}
    assert [path for path in by_path if path.endswith("weight")] == ["model.embed.weight"]
    assert by_path["model.count"].mutated
    assert not by_path["model.embed.weight"].mutated
    transpose = next(op for op in facts.ops if op.operator == "aten.t")
    assert transpose.view
    assert facts.values[transpose.outputs[0]].storage == by_path["model.embed.weight"].storage
    assert facts.values[facts.outputs[0]].user_visible


@pytest.mark.integration
def test_sizes_that_change_between_captures_stay_static() -> None:
    net = nn.Linear(8, 8)
    for batch in (2, 3, 4):
        facts = build_graph_facts(capture_model(net, (torch.randn(batch, 8),)).graphs[0])
        assert all(value.dynamic_dims == () for value in facts.values.values())


def test_dynamic_shapes_are_marked_and_add_no_guards() -> None:
    x = torch.randn(6, 8)
    torch._dynamo.mark_dynamic(x, 0)
    facts = build_graph_facts(capture_model(nn.Linear(8, 8), (x,)).graphs[0])
    argument = next(v for v in facts.values.values() if v.kind is InputKind.ARGUMENT)
    assert argument.dynamic_dims == (0,)
    assert argument.shape == (6, 8)
    # `mark_dynamic` raises if anything had specialised the dimension while tracing.


def test_repeated_captures_leave_the_users_own_compilation_alone() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)

    for _ in range(10):
        assert capture_model(Small(), (torch.randn(2, 4),)).recompiles == ()
    compiled: list[object] = []

    def counting(graph: torch.fx.GraphModule, _inputs: object) -> object:
        compiled.append(graph)
        return graph.forward

    torch.compile(Small(), backend=counting)(torch.randn(2, 4))  # type: ignore[arg-type]
    assert len(compiled) == 1


def test_a_backward_that_is_still_to_come_works_after_a_capture() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).train()
    x = torch.randn(2, 3, 6, 6)
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    loss = model(x).square().sum()
    capture_model(model, (x,), train=True)
    loss.backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_inputs_that_the_model_writes_to_are_put_back() -> None:
    def writes(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    x = torch.zeros(3)
    capture_model(writes, (x,))
    assert torch.equal(x, torch.zeros(3))


def test_train_inside_inference_mode_still_has_a_backward() -> None:
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    with torch.inference_mode():
        (graph,) = capture_model(model, (x,), train=True).graphs
    assert graph.train


def test_uncapturable_model_error_gives_the_reason() -> None:
    with pytest.raises(CaptureError, match="recurrent"):
        capture_model(torch.jit.script(nn.Linear(3, 3)), (torch.randn(2, 3),))


def eager_answers() -> tuple[object, object]:
    return dynamo_torch.tracing_state_functions()[activation._is_make_fx_tracing], torch._dynamo.config.allow_rnn


def test_dynamos_answers_are_put_back_also_after_an_error() -> None:
    before = eager_answers()
    with pytest.raises(ZeroDivisionError), use_eager_paths():
        assert eager_answers() == (False, True)
        raise ZeroDivisionError
    assert eager_answers() == before


def test_a_torch_without_the_table_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    before = eager_answers()
    with monkeypatch.context() as patched:
        patched.delattr(dynamo_torch, "tracing_state_functions")
        with use_eager_paths():
            assert torch._dynamo.config.allow_rnn
    assert eager_answers() == before

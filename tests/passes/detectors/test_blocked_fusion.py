"""What stops fusion: each reason's smallest case and its nearest miss. The bytes are worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import GraphBreak, Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts, ValueRef
from frx_graph.passes.analysis import Analysis, CompileEvents
from frx_graph.passes.detectors.blocked_fusion import DETECTOR
from frx_graph.records import Effort, Finding, Severity

X = torch.randn(16, 32)
N = X.nbytes
IMAGE = torch.randn(2, 8, 6, 6)


class Function(nn.Module):
    def __init__(self, function, *modules: nn.Module):
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(modules)

    def forward(self, *args):
        return self.function(*self.parts, *args)


@pytest.fixture
def found(analyse):
    def detect(model, *args: Tensor, step_bytes: int = 1, train: bool = False, **fields) -> list[Finding]:
        return list(DETECTOR.detect(analyse(model, *args, step_bytes=step_bytes, train=train, **fields)))

    return detect


def reason(finding: Finding) -> str:
    return finding.evidence[0].text.partition(":")[0]


@pytest.mark.parametrize("then", [torch.relu, functional.gelu, functional.silu, lambda x: x + IMAGE])
def test_a_convolution_writes_before_its_epilogue_reads(found, then):
    (finding,) = found(Function(lambda conv, x: then(conv(x)), nn.Conv2d(8, 8, 3, padding=1)), IMAGE)

    assert reason(finding) == "library epilogue"
    assert finding.bytes_per_step == 2 * IMAGE.nbytes
    assert "TORCHINDUCTOR_FREEZING" in finding.fix
    assert finding.effort is Effort.ONE_LINE


def test_freezing_is_for_inference(found):
    conv = nn.Conv2d(8, 8, 3, padding=1)

    assert found(Function(lambda conv, x: torch.relu(conv(x)).sum(), conv), IMAGE, train=True) == []


@pytest.mark.parametrize(
    "model",
    [
        Function(lambda conv, x: torch.tan(conv(x)), nn.Conv2d(8, 8, 3, padding=1)),
        Function(lambda conv, x: torch.relu(conv(x.flatten(2))), nn.Conv1d(8, 8, 3, padding=1)),
        Function(lambda linear, x: torch.relu(linear(x)), nn.Linear(6, 6)),
        nn.Conv2d(8, 8, 3),
    ],
    ids=["not in oneDNN", "one dimension", "fp32 linear", "nothing behind"],
)
def test_what_freezing_does_not_fold_in_is_not_advised(found, model):
    assert found(model, IMAGE) == []


def test_a_half_precision_linear_takes_what_needs_no_broadcast(found):
    linear, x, bias = nn.Linear(32, 32).bfloat16(), X.bfloat16(), torch.randn(32).bfloat16()

    assert [reason(f) for f in found(Function(lambda m, x: torch.relu(m(x)), linear), x)] == ["library epilogue"]
    assert found(Function(lambda m, x, b: m(x) + b, linear), x, bias) == []


def test_two_convolutions_cannot_share_one_epilogue(found):
    convs = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    (finding,) = found(Function(lambda a, b, x: torch.relu(a(x) + b(x)), *convs), IMAGE)

    assert finding.bytes_per_step == 2 * IMAGE.nbytes


def test_products_of_one_operand(found):
    linears = [nn.Linear(32, 8) for _ in range(3)]

    (finding,) = found(Function(lambda q, k, v, x: (q(x), k(x), v(x)), *linears), X)

    assert reason(finding) == "separate products"
    assert finding.title == "3 products of the same operand"
    assert finding.bytes_per_step == 2 * N
    assert len(finding.nodes) == 3


def test_products_of_different_operands(found):
    linears = [nn.Linear(32, 8) for _ in range(2)]

    assert found(Function(lambda q, k, x, y: (q(x), k(y)), *linears), X, X.clone()) == []


def test_products_with_computed_factors_cannot_be_stacked(found):
    assert found(Function(lambda x, v, w: (x @ v, x @ w)), X, torch.randn(32, 4), torch.randn(32, 4)) == []


def test_a_reduction_across_rows_makes_two_passes(found):
    (finding,) = found(Function(lambda x: x / x.sum()), X)

    assert reason(finding) == "reduction barrier"
    assert finding.bytes_per_step == N


def test_what_both_passes_need_is_written_between(found):
    (finding,) = found(Function(lambda x: (lambda y: y / y.sum())(torch.exp(x))), X)

    assert finding.bytes_per_step == 2 * N


def test_a_reduction_along_rows_is_one_pass(found):
    assert found(Function(lambda x: x / x.sum(1, keepdim=True)), X) == []


def test_a_reduction_whose_result_goes_elsewhere(found):
    assert found(Function(lambda x, y: y * x.sum()), X, torch.randn(4, 4)) == []


def test_a_result_read_in_part(found):
    norm = nn.LayerNorm(32)
    x = torch.randn(4, 16, 32)

    (finding,) = found(Function(lambda norm, x: norm(x)[:, :4] * 2, norm), x)

    assert reason(finding) == "shape"
    assert finding.title == "layer_norm computed in full and read in part"
    assert finding.bytes_per_step == 2 * x.nbytes * 3 // 4


@pytest.mark.parametrize(
    "function",
    [
        lambda norm, x: norm(x) * 2,
        lambda norm, x: norm(x)[:, :9] * 2,
        lambda norm, x: norm(x[:, :4]) * 2,
    ],
    ids=["all", "more than half", "part first"],
)
def test_a_result_that_is_needed(found, function):
    assert found(Function(function, nn.LayerNorm(32)), torch.randn(4, 16, 32)) == []


def test_inductor_computes_no_more_of_a_pointwise_result_than_is_read(found):
    model = Function(lambda x: torch.exp(x)[:4] * 2)

    assert [reason(f) for f in found(model, X)] == ["shape"]
    assert found(model, X, inner="inductor") == []


def test_a_scatter_between_pointwise_operators(found):
    index = torch.arange(16)

    (finding,) = found(Function(lambda x, i: torch.relu(x).index_add(0, i, torch.sin(x)).cos()), X, index)

    assert reason(finding) == "data-dependent index"
    assert finding.bytes_per_step == 2 * 3 * N


def test_a_gather_fuses(found):
    assert found(Function(lambda x, i: torch.relu(x)[i].cos()), X, torch.arange(16)) == []


@torch.library.custom_op("frx_test_blocked::opaque", mutates_args=())
def opaque(x: Tensor) -> Tensor:
    return x.clone()


opaque.register_fake(torch.empty_like)


def test_a_custom_operator_between_pointwise_operators(found):
    (finding,) = found(Function(lambda x: opaque(torch.relu(x)).sin()), X)

    assert reason(finding) == "opaque operator"
    assert finding.bytes_per_step == 4 * N
    assert len(finding.nodes) == 3


def test_a_custom_operator_that_nothing_would_fuse_with(found):
    assert found(Function(lambda x: opaque(x) @ x.t()), X) == []


def test_small_shares_are_left_out(found):
    model = Function(lambda x: opaque(torch.relu(x)).sin())

    assert len(found(model, X, step_bytes=200 * N)) == 1
    assert found(model, X, step_bytes=201 * N) == []


def test_every_run_of_the_graph_counts(analyse):
    analysis = analyse(Function(lambda x: opaque(torch.relu(x)).sin()), X, step_bytes=12 * N)

    (finding,) = DETECTOR.detect(replace(analysis, facts=replace(analysis.facts, calls=3)))

    assert (finding.count_per_step, finding.bytes_per_step) == (3, 12 * N)
    assert "3 times per step" in finding.evidence[0].text


def test_a_graph_break_costs_what_crosses_it(found, analyse):
    model = Function(lambda x: torch.relu(x))
    line = analyse(model, X).facts.ops[0].site

    def break_at(offset: int) -> CompileEvents:
        site = CallSite(line.file, line.line + offset, line.function)
        return CompileEvents(breaks=(GraphBreak("Tensor.item() call\nwith its trace", site),))

    (finding,) = found(model, X, events=break_at(1), step_bytes=10**9)

    assert reason(finding) == "graph break"
    assert "Tensor.item() call" in finding.evidence[0].text
    assert "trace" not in finding.evidence[0].text
    assert (finding.bytes_per_step, finding.severity) == (2 * N, Severity.LOW)
    assert finding.site.line == line.line + 1
    assert found(model, X, events=break_at(-1)) == []


def test_a_break_behind_a_product_splits_nothing_fusible(found, analyse):
    model = Function(lambda x, w: x @ w)
    site = analyse(model, X, torch.randn(32, 4)).facts.ops[0].site

    assert found(model, X, torch.randn(32, 4), events=CompileEvents(breaks=(GraphBreak("print", site),))) == []


def test_several_reasons_at_one_line_are_one_finding(found):
    linears = nn.Conv2d(8, 8, 1), nn.LayerNorm(6)

    findings = found(Function(lambda conv, norm, x: torch.relu(conv(x)) + norm(x)[:1], *linears), IMAGE)

    assert len(findings) == 1
    assert [reason(findings[0]), findings[0].evidence[1].text.partition(":")[0]] == ["library epilogue", "shape"]


def value(name: str, device: str, producer: str | None, users: tuple[str, ...], storage: int) -> ValueFacts:
    return ValueFacts(name, (16, 32), (32, 1), torch.float32, torch.device(device), storage, producer, users)


def test_a_device_change_between_pointwise_operators():
    site = CallSite("model.py", 3, "forward", "model")

    def op(node: str, operator: str, source: str, **fields) -> OpFacts:
        return OpFacts(
            node,
            f"{operator}.default",
            operator,
            (ValueRef(source),),
            {},
            (source,),
            (node,),
            (),
            Phase.FORWARD,
            site,
            **fields,
        )

    facts = GraphFacts(
        graph_id="0/0",
        origin="model",
        train=False,
        values={
            "x": value("x", "cuda", None, ("a",), 0),
            "a": value("a", "cuda", "a", ("b",), 1),
            "b": value("b", "cpu", "b", ("c",), 2),
            "c": value("c", "cpu", "c", (), 3),
        },
        ops=(
            op("a", "aten.relu", "x", pointwise=True),
            op("b", "aten._to_copy", "a"),
            op("c", "aten.sin", "b", pointwise=True),
        ),
        inputs=("x",),
        outputs=("c",),
    )

    (finding,) = DETECTOR.detect(Analysis(facts=facts, copies=(), step_bytes=10**9))

    assert reason(finding) == "device change"
    assert finding.bytes_per_step == 4 * N
    assert finding.severity is Severity.LOW


def test_empty_tensors_are_not_read_in_part(found):
    assert found(Function(lambda linear, x: linear(x).sum(), nn.Linear(8, 4)), torch.randn(0, 8), train=True) == []

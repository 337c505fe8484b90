from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from frx_graph.capture.captured_graph import Phase
from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.measure.operators.operator_measurement import LayoutTimes
from frx_graph.passes.detectors.memory_bound_region import DETECTOR
from frx_graph.records import Finding, Refusal, Severity

# Ridge points of 10 FLOP per byte in fp32 and 40 in bf16.
DEVICE = DeviceProfile(
    device="cpu",
    name="test device",
    bandwidth_bytes_per_s=1e9,
    peak_flops={torch.float32: 1e10, torch.bfloat16: 4e10},
    preferred_alignment_bytes=64,
)
FP32_ONLY = replace(DEVICE, peak_flops={torch.float32: 1e10})
X = torch.randn(64, 32)
N = X.nbytes


class Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x).sin().add(1)


class Layers(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(32, 32) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for linear in self.linears:
            x = torch.relu(linear(x)) + x
        return x


def test_a_chain_is_found_with_what_one_kernel_saves(analyse):
    (finding,) = DETECTOR.detect(analyse(Chain(), X, device=DEVICE, step_bytes=6 * N))

    assert (finding.rule, finding.severity, finding.count_per_step) == ("FRX005", Severity.HIGH, 1)
    assert finding.bytes_per_step == 4 * N
    assert finding.saving.predicted_pct_max == pytest.approx(100 * 4 / 6)
    assert len(finding.nodes) == 3
    assert finding.site.line == Chain.forward.__code__.co_firstlineno + 1
    assert finding.copies == ()


def test_the_roofline_is_worked_out(analyse):
    (finding,) = DETECTOR.detect(analyse(Chain(), X, device=DEVICE, step_bytes=6 * N))

    # 3 operations an element over 24 bytes an element; 1.25% of a peak that takes 10 operations a byte.
    assert "0.12 FLOP per byte, below the ridge point of 10: at most 1.2% of" in finding.evidence[0].text
    assert f"in {1e3 * 6 * N / 1e9:.3g} ms" in finding.evidence[0].text


def test_all_instances_of_a_line_are_one_finding(analyse):
    (finding,) = DETECTOR.detect(analyse(Layers(3), X, device=FP32_ONLY, step_bytes=100 * N))

    assert finding.count_per_step == 3
    assert finding.bytes_per_step == 3 * 2 * N


def test_every_run_of_the_graph_counts(analyse):
    analysis = analyse(Chain(), X, device=DEVICE, step_bytes=18 * N)

    (finding,) = DETECTOR.detect(replace(analysis, facts=replace(analysis.facts, calls=3)))

    assert (finding.count_per_step, finding.bytes_per_step) == (3, 12 * N)
    assert f"in {1e3 * 18 * N / 1e9:.3g} ms" in finding.evidence[0].text


def test_a_share_that_does_not_matter_is_not_reported(analyse):
    assert list(DETECTOR.detect(analyse(Chain(), X, device=DEVICE, step_bytes=301 * N))) == []
    assert len(list(DETECTOR.detect(analyse(Chain(), X, device=DEVICE, step_bytes=300 * N)))) == 1


def test_a_share_that_fusion_does_not_reduce_is_not_reported(analyse):
    class Kept(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = torch.relu(x)
            return y, y.sin()

    assert list(DETECTOR.detect(analyse(Kept(), X, device=DEVICE, step_bytes=101 * N))) == []
    assert len(list(DETECTOR.detect(analyse(Kept(), X, device=DEVICE, step_bytes=100 * N)))) == 1


def test_one_operator_has_nothing_to_fuse_with(analyse):
    assert list(DETECTOR.detect(analyse(nn.ReLU(), X, device=DEVICE, step_bytes=2 * N))) == []


def test_inductor_has_fused_already(analyse):
    assert list(DETECTOR.detect(analyse(Chain(), X, device=DEVICE, step_bytes=6 * N, inner="inductor"))) == []


def test_a_device_without_a_ridge_to_be_under(analyse):
    slow = replace(DEVICE, peak_flops={torch.float32: 1e7})

    assert list(DETECTOR.detect(analyse(Chain(), X, device=slow, step_bytes=6 * N))) == []


def test_an_unmeasured_device_is_refused(analyse):
    (refusal,) = DETECTOR.detect(analyse(Chain(), X, step_bytes=6 * N))

    assert isinstance(refusal, Refusal)
    assert "not measured" in refusal.reason


@pytest.mark.parametrize(("rows", "found"), [(1, True), (64, False)])
def test_a_product_with_few_rows_waits_for_its_weights(analyse, rows, found):
    model = nn.Linear(256, 256)
    traffic = 4 * (rows * 256 + 256 * 256 + 256 + rows * 256)

    findings = list(DETECTOR.detect(analyse(model, torch.randn(rows, 256), device=DEVICE, step_bytes=traffic)))

    assert bool(findings) is found
    for finding in findings:
        assert finding.bytes_per_step == traffic // 2
        assert "a larger batch" in finding.fix


@pytest.mark.parametrize(("gb_per_s", "found"), [(0.5, True), (2.0, True), (30.0, False)])
def test_an_operator_that_was_timed_bounds_its_own_least_time(analyse, gb_per_s, found):
    """Bandwidth is 1 GB/s: an operator that is faster than that reads from a cache."""
    model, x = nn.Linear(256, 256), torch.randn(1, 256)
    traffic = 4 * (256 + 256 * 256 + 256 + 256)
    (node,) = (op.node for op in analyse(model, x).facts.ops if "addmm" in op.operator)
    times = {node: LayoutTimes(traffic / gb_per_s / 1e9, None)}
    findings = list(DETECTOR.detect(analyse(model, x, device=DEVICE, step_bytes=traffic, layout_times=times)))
    assert bool(findings) is found
    for finding in findings:
        assert f"in {1e3 * traffic / max(gb_per_s, 1.0) / 1e9:.3g} ms" in finding.evidence[0].text


def test_bf16_is_not_offered_where_it_is_slow(analyse):
    emulated = replace(DEVICE, peak_flops={torch.float32: 1e10, torch.bfloat16: 1e8})

    assert list(DETECTOR.detect(analyse(nn.Linear(256, 256), torch.randn(1, 256), device=emulated, step_bytes=1))) == []


def test_the_backward_is_looked_at_too(analyse):
    class Gated(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (torch.sigmoid(x) * torch.tanh(x)).sum()

    analysis = analyse(Gated(), X.clone().requires_grad_(), train=True, device=DEVICE, step_bytes=20 * N)
    findings = [finding for finding in DETECTOR.detect(analysis) if isinstance(finding, Finding)]

    phases = {analysis.facts.op_by_node[node].phase for finding in findings for node in finding.nodes}
    assert phases == {Phase.FORWARD, Phase.BACKWARD}


class Selected(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        first, second = x.unbind()  # the split line
        y = first.sigmoid() @ second.sigmoid()
        return y.mean()  # the mean's line


def test_the_place_is_not_that_of_a_sum_of_gradients(analyse):
    x = torch.randn(2, 64, 64, requires_grad=True)
    analysis = analyse(Selected(), x, train=True, device=DEVICE, step_bytes=1)
    findings = [finding for finding in DETECTOR.detect(analysis) if isinstance(finding, Finding)]

    for finding in findings:
        at = {analysis.facts.op_by_node[node].operator: analysis.facts.op_by_node[node].site for node in finding.nodes}
        others = [site.line for operator, site in at.items() if operator != "aten.add"]
        assert finding.site.line in others


def test_products_of_an_attention_are_another_rules_to_end(analyse):
    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.softmax(q @ k.transpose(-2, -1) / 4, -1) @ v

    heads = [torch.randn(2, 4, 64, 16) for _ in range(3)]
    findings = DETECTOR.detect(analyse(Attention(), *heads, device=DEVICE, step_bytes=1))
    assert not any("bf16" in finding.fix for finding in findings if isinstance(finding, Finding))


@pytest.mark.parametrize("train", [False, True])
def test_other_products_on_the_line_of_an_attention_are_found(analyse, train):
    tokens, width = 256, 32

    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Parameter(torch.randn(width, width) / 6) for _ in range(3))
            self.o = nn.Parameter(torch.randn(width, 4) / 6)

        def forward(self, x: Tensor) -> Tensor:
            return (torch.softmax((x @ self.q) @ (x @ self.k).mT / 6, -1) @ (x @ self.v)) @ self.o

    analysis = analyse(Projected(), torch.randn(tokens, width), train=train, device=DEVICE, step_bytes=1)
    values = analysis.facts.values
    products = {op.node: (*op.inputs, *op.outputs) for op in analysis.facts.ops if op.operator == "aten.mm"}
    of_scores = {node for node, names in products.items() if any(values[n].numel == tokens**2 for n in names)}

    findings = DETECTOR.detect(analysis)
    found = {node for one in findings if isinstance(one, Finding) and "bf16" in one.fix for node in one.nodes}

    assert len(of_scores) == (6 if train else 2)
    assert found == products.keys() - of_scores


def test_the_scores_of_an_attention_are_another_rules_to_end(analyse):
    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.softmax(q @ k.transpose(-2, -1) / 4, -1) @ v

    heads = [torch.randn(2, 4, 64, 16) for _ in range(3)]
    (finding,) = DETECTOR.detect(analyse(Attention(), *heads, device=FP32_ONLY, step_bytes=1))

    assert "FRX012" in finding.evidence[0].text

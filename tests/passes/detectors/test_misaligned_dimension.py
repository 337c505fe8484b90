"""Dimensions that do not fit: what was measured to cost on a CPU, what NVIDIA documents for tensor cores."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.passes.analysis import Analysis, PrecisionSettings
from frx_graph.passes.costs.product_dimensions import Dimension, find_misaligned_on_cuda
from frx_graph.passes.detectors.misaligned_dimension import DETECTOR
from frx_graph.records import Finding, Refusal, Severity

CPU = DeviceProfile("cpu", "a CPU with AVX-512", 1e10, {torch.float32: 1e11}, 64)
GPU = DeviceProfile("cuda", "a GPU", 1e12, {torch.float32: 1e13, torch.bfloat16: 1e14}, 16)
IEEE = PrecisionSettings("highest", matmul_tf32=False, cudnn_tf32=False, autocast=False)
TF32 = PrecisionSettings("high", matmul_tf32=True, cudnn_tf32=True, autocast=False)


def on_cuda(analysis: Analysis, precision: PrecisionSettings = IEEE) -> Analysis:
    """The same graph as if it had been captured on a GPU."""
    values = {name: replace(value, device=torch.device("cuda")) for name, value in analysis.facts.values.items()}
    return replace(analysis, facts=replace(analysis.facts, values=values), device=GPU, precision=precision)


@pytest.fixture
def on_cpu(analyse):
    def detect(model: nn.Module, *args: Tensor, device: DeviceProfile = CPU, **fields) -> list[Finding]:
        return list(DETECTOR.detect(analyse(model, *args, device=device, **fields)))

    return detect


@pytest.fixture
def on_gpu(analyse):
    def detect(model: nn.Module, *args: Tensor, precision: PrecisionSettings = IEEE, **fields) -> list[Finding]:
        return list(DETECTOR.detect(on_cuda(analyse(model, *args, **fields), precision)))

    return detect


def image(channels: int, channels_last: bool = False) -> Tensor:
    x = torch.randn(2, channels, 8, 8)
    return x.to(memory_format=torch.channels_last) if channels_last else x


def test_output_channels_are_padded_to_whole_vectors(on_cpu):
    (finding,) = on_cpu(nn.Conv2d(64, 65, 3), image(64))

    assert finding.title == "convolution with output channels 65"
    # 80 computed for 65: 23% more than needed.
    assert "23.1% more FLOPs" in finding.evidence[1].text
    assert "80 output channels take the time that 65 take now, 64 take 20% less" in finding.fix
    assert (finding.severity, finding.bytes_per_step) == (Severity.MEDIUM, None)


def test_both_channel_counts_multiply(on_cpu):
    (finding,) = on_cpu(nn.Conv2d(72, 72, 3), image(72))

    assert f"{100 * (80 * 80 / 72 / 72 - 1):.1f}% more FLOPs" in finding.evidence[1].text


@pytest.mark.parametrize(
    ("model", "channels", "channels_last"),
    [
        (nn.Conv2d(64, 80, 3), 64, False),
        (nn.Conv2d(65, 64, 3), 65, True),
        (nn.Conv2d(65, 65, 1), 65, False),
        (nn.Conv2d(72, 72, 3, groups=4), 72, False),
        (nn.Conv2d(3, 64, 3), 3, False),
        (nn.Conv2d(64, 2, 3), 64, False),
    ],
    ids=["aligned", "input, channels-last", "1x1, plain", "grouped", "colours", "small head"],
)
def test_what_costs_nothing_on_a_cpu(on_cpu, model, channels, channels_last):
    if channels_last:
        model = model.to(memory_format=torch.channels_last)

    assert on_cpu(model, image(channels, channels_last)) == []


def test_matrix_products_lose_nothing_on_a_cpu(on_cpu):
    assert on_cpu(nn.Linear(65, 65), torch.randn(64, 65)) == []


def test_the_vector_is_the_devices(on_cpu):
    avx2 = replace(CPU, preferred_alignment_bytes=32)

    assert len(on_cpu(nn.Conv2d(64, 72, 3), image(64))) == 1
    assert on_cpu(nn.Conv2d(64, 72, 3), image(64), device=avx2) == []


def test_other_processors_were_not_measured(on_cpu):
    assert on_cpu(nn.Conv2d(64, 65, 3), image(64), device=replace(CPU, preferred_alignment_bytes=16)) == []


def test_a_small_share_of_the_arithmetic_is_left_out(on_cpu):
    model = nn.Sequential(nn.Conv2d(16, 17, 3, padding=1), nn.Flatten(), nn.Linear(17 * 64, 8192))

    assert on_cpu(model, image(16)) == []


def test_a_vocabulary_off_the_tensor_core_tile(on_gpu):
    (finding,) = on_gpu(nn.Linear(64, 1001, bias=False).bfloat16(), torch.randn(128, 64).bfloat16())

    assert finding.title == "mm with columns 1001"
    assert "columns from 1001 to 1008" in finding.fix
    assert f"{100 * 7 / 1001:.2g}% more FLOPs" in finding.fix
    assert "multiples of 8" in finding.evidence[1].text
    assert "not measured" in finding.evidence[1].source


@pytest.mark.parametrize(
    ("shape", "dtype", "precision", "found"),
    [
        ((128, 64, 1000), torch.bfloat16, IEEE, 0),
        ((128, 64, 1001), torch.float32, IEEE, 0),
        ((128, 64, 1001), torch.float32, TF32, 1),
        ((128, 64, 1004), torch.float32, TF32, 0),
        ((128, 64, 1004), torch.bfloat16, IEEE, 1),
        ((1, 64, 1001), torch.bfloat16, IEEE, 0),
        ((127, 64, 1000), torch.bfloat16, IEEE, 0),
        ((128, 64, 5), torch.bfloat16, IEEE, 0),
    ],
    ids=["aligned", "no tensor cores", "TF32", "TF32 aligned", "bf16", "one row", "odd rows", "few classes"],
)
def test_which_products_run_on_tensor_cores(on_gpu, shape, dtype, precision, found):
    rows, inner, columns = shape
    model = nn.Linear(inner, columns, bias=False).to(dtype)

    assert len(on_gpu(model, torch.randn(rows, inner, dtype=dtype), precision=precision)) == found


def test_forward_and_backward_of_a_line_are_one_finding(on_gpu):
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 1001, bias=False).bfloat16()

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).square().sum()

    (finding,) = on_gpu(Head(), torch.randn(128, 64, requires_grad=True, dtype=torch.bfloat16), train=True)

    assert finding.count_per_step == 3


def test_a_transposed_operand_is_contiguous_along_its_rows(analyse):
    class Gram(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.t() @ x

    analysis = on_cuda(analyse(Gram(), torch.randn(128, 50).bfloat16()))
    product = next(op for op in analysis.facts.ops if op.operator == "aten.mm")

    assert find_misaligned_on_cuda(product, analysis.facts, 16, IEEE) == (
        Dimension("rows", 50, 48, 56),
        Dimension("columns", 50, 48, 56),
    )


def test_convolution_channels_on_a_gpu(on_gpu):
    conv = nn.Conv2d(64, 100, 3).bfloat16()

    (finding,) = on_gpu(conv, image(64).bfloat16())

    assert "output channels from 100 to 104" in finding.fix
    assert on_gpu(nn.Conv2d(3, 64, 3).bfloat16(), image(3).bfloat16()) == []


def test_an_unmeasured_device_is_refused(analyse):
    (refusal,) = DETECTOR.detect(analyse(nn.Conv2d(64, 65, 3), image(64)))

    assert isinstance(refusal, Refusal)

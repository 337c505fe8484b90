"""fp32 on a device with faster formats: when the switch is worth a finding, and the settings under which it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.passes.analysis import PrecisionSettings
from frx_graph.passes.detectors.unused_precision import DETECTOR
from frx_graph.records import Finding, Refusal, Severity

DEVICE = DeviceProfile("cpu", "test device", 1e12, {torch.float32: 1e9, torch.bfloat16: 4e9, torch.float16: 1e8}, 64)
IEEE = PrecisionSettings("highest", matmul_tf32=False, cudnn_tf32=False, autocast=False)
MODEL = nn.Linear(64, 32, bias=False)
X = torch.randn(16, 64)


class Function(nn.Module):
    def __init__(self, function, *modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(modules)

    def forward(self, *args: Tensor) -> Tensor:
        return self.function(*self.parts, *args)


@pytest.fixture
def found(analyse):
    def detect(
        model: nn.Module,
        *args: Tensor,
        device: DeviceProfile = DEVICE,
        precision: PrecisionSettings | None = IEEE,
        on: str = "cpu",
        **fields,
    ) -> list[Finding]:
        analysis = analyse(model, *args, device=device, precision=precision, **fields)
        values = {name: replace(value, device=torch.device(on)) for name, value in analysis.facts.values.items()}
        return list(DETECTOR.detect(replace(analysis, facts=replace(analysis.facts, values=values))))

    return detect


def test_fp32_products_where_bf16_is_faster(found):
    (finding,) = found(MODEL, X)

    assert finding.title == "100% of the FLOPs in fp32, where bf16 is 4.0 times as fast"
    assert (finding.severity, finding.bytes_per_step) == (Severity.HIGH, None)
    flops = 2 * 16 * 64 * 32
    assert (
        f"at least {1e3 * flops / 1e9:.3g} ms now, and at least {1e3 * flops / 4e9:.3g} ms with"
        in finding.evidence[1].text
    )
    assert finding.fix == 'run the model under `torch.autocast("cpu", dtype=torch.bfloat16)`'


@pytest.mark.parametrize(
    "fields",
    [
        {"device": replace(DEVICE, peak_flops={torch.float32: 1e9, torch.bfloat16: 1.4e9})},
        {"device": replace(DEVICE, peak_flops={torch.float32: 1e9})},
        {"precision": replace(IEEE, autocast=True)},
        {"precision": replace(IEEE, float32_matmul_precision="medium")},
        {"on": "cuda", "precision": replace(IEEE, matmul_tf32=True)},
    ],
    ids=["not much faster", "no bf16", "autocast", "medium precision", "TF32"],
)
def test_settings_and_devices_with_nothing_to_gain(found, fields):
    assert found(MODEL, X, **fields) == []


def test_a_bf16_model(found):
    assert found(nn.Linear(64, 32).bfloat16(), X.bfloat16()) == []


def test_autocast_inside_the_model_is_seen_in_the_graph(found):
    def narrowed(linear: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return linear(x)

    assert found(Function(narrowed, nn.Linear(64, 32)), X) == []


def test_only_the_share_in_fp32_counts(found):
    half = nn.Linear(64, 32).bfloat16()

    (finding,) = found(Function(lambda a, b, x: a(x) + b(x.bfloat16()).float(), MODEL, half), X)

    assert finding.title.startswith("50% of the FLOPs")
    assert finding.count_per_step == 1


def test_heaviest_operator_is_the_site(found):
    def program(small: nn.Module, large: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        first = small(x)
        return first, large(x)

    (finding,) = found(Function(program, nn.Linear(64, 8), MODEL), X)

    assert finding.site.line == program.__code__.co_firstlineno + 2


def test_a_step_that_waits_for_memory_gains_little(found):
    slow_memory = replace(DEVICE, bandwidth_bytes_per_s=1e6)
    model = Function(lambda linear, x, y: (linear(x), y.sin().cos().tan()), MODEL)

    assert found(model, X, torch.randn(256, 1024), device=slow_memory) == []


def test_convolutions_have_a_switch_of_their_own_on_cuda(found):
    conv, image = nn.Conv2d(8, 8, 3), torch.randn(2, 8, 8, 8)

    (finding,) = found(conv, image, on="cuda", precision=replace(IEEE, matmul_tf32=True))

    assert "set_float32_matmul_precision" in finding.fix
    assert found(conv, image, on="cuda", precision=replace(IEEE, cudnn_tf32=True)) == []


@pytest.mark.parametrize(("train", "scaled"), [(True, True), (False, False)])
def test_fp16_training_needs_a_scaler(found, train, scaled):
    older = replace(DEVICE, peak_flops={torch.float32: 1e9, torch.float16: 8e9})

    (finding,) = found(MODEL, X, device=older, train=train)

    assert "where fp16 is 8.0 times as fast" in finding.title
    assert ("GradScaler" in finding.fix) is scaled


def test_attention_counts_too(found):
    attention = Function(nn.functional.scaled_dot_product_attention)

    assert len(found(attention, *(torch.randn(2, 4, 16, 8) for _ in range(3)))) == 1


def test_an_unmeasured_device_is_refused(analyse):
    (refusal,) = DETECTOR.detect(analyse(MODEL, X))

    assert isinstance(refusal, Refusal)

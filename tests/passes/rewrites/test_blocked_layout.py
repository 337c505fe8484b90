from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frx_graph.compiler import operator_times, rewrite_pipeline
from frx_graph.compiler.operator_times import time_under_load
from frx_graph.facts.operator_signature import OperatorSignature
from frx_graph.measure.operators.operator_inputs import PACKED_CONVOLUTION, PACKED_PRODUCT, PACKED_TRANSPOSED

pytestmark = [
    pytest.mark.filterwarnings("ignore:frx applies rewrites"),
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"),
]
Freeze = Callable[..., object]
PACKED_SUM = "mkldnn._convolution_pointwise.binary"


def convolution(**how: object) -> nn.Module:
    torch.manual_seed(0)
    return nn.Conv2d(8, 16, 3, padding=1, **how)


IMAGE = torch.randn(2, 8, 12, 12)


def test_the_smallest_convolution_is_packed(freeze: Freeze) -> None:
    frozen = freeze(convolution())
    frozen.run(IMAGE)
    (packed,) = frozen.calls(PACKED_CONVOLUTION)
    assert packed.args[1].op == "get_attr"
    assert "aten.convolution.default" not in frozen.targets()


@pytest.mark.parametrize(
    ("module", "target"),
    [
        (nn.Conv2d(8, 16, 3, stride=2, bias=False), PACKED_CONVOLUTION),
        (nn.Conv2d(8, 16, 3, groups=4, dilation=2), PACKED_CONVOLUTION),
        (nn.Conv2d(8, 8, 3, groups=8), PACKED_CONVOLUTION),
        (nn.Conv2d(8, 1, 1), PACKED_CONVOLUTION),
        (nn.Conv2d(8, 16, 12), PACKED_CONVOLUTION),
        (nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1), PACKED_TRANSPOSED),
        (nn.ConvTranspose2d(8, 4, 3, groups=2, padding=1), PACKED_TRANSPOSED),
    ],
)
@pytest.mark.parametrize("batch", [1, 2])
def test_kinds_of_convolutions(freeze: Freeze, module: nn.Module, target: str, batch: int) -> None:
    frozen = freeze(module)
    frozen.run(IMAGE[:batch])
    assert frozen.targets().count(target) == 1


class WithGaps(nn.Module):
    """The bias of `layer` is every other element of a parameter, or one element, expanded."""

    def __init__(self, layer: nn.Module, expanded: bool) -> None:
        super().__init__()
        self.layer = layer
        self.biases = nn.Parameter(torch.randn(2 * layer.out_channels))
        self.expanded = expanded

    def forward(self, x: Tensor) -> Tensor:
        bias = self.biases[:1].expand(self.layer.out_channels) if self.expanded else self.biases[::2]
        if isinstance(self.layer, nn.ConvTranspose2d):
            return nn.functional.conv_transpose2d(x, self.layer.weight, bias)
        return nn.functional.conv2d(x, self.layer.weight, bias)


@pytest.mark.parametrize("layer", [nn.Conv2d(8, 16, 3, bias=False), nn.ConvTranspose2d(8, 4, 3, bias=False)])
@pytest.mark.parametrize("expanded", [True, False])
def test_a_bias_with_gaps_is_not_read_packed(freeze: Freeze, layer: nn.Module, expanded: bool) -> None:
    frozen = freeze(WithGaps(layer, expanded))
    frozen.run(IMAGE)
    assert "its bias has gaps in memory" in frozen.reasons("blocked_layout")


def test_a_depthwise_transposed_convolution_is_not_packed(freeze: Freeze) -> None:
    frozen = freeze(nn.ConvTranspose2d(8, 8, 3, groups=8))
    frozen.run(IMAGE)
    assert "aten.convolution.default" in frozen.targets()
    assert "oneDNN packs no weights for transposed convolutions of this kind" in frozen.reasons("blocked_layout")


@pytest.mark.parametrize("batch", [1, 2])
def test_volumes(freeze: Freeze, batch: int) -> None:
    frozen = freeze(nn.Sequential(nn.Conv3d(4, 8, 3), nn.ReLU(), nn.Conv3d(8, 4, 3)))
    frozen.run(torch.randn(batch, 4, 6, 7, 8))
    # Of a batch of one torch computes a volume's convolution without oneDNN, and returns it plain, as the program does.
    assert frozen.targets().count(PACKED_CONVOLUTION) == batch
    assert "aten.relu.default" not in frozen.targets()


@pytest.mark.parametrize(
    "activation",
    [
        nn.ReLU(),
        nn.ReLU6(),
        nn.Hardtanh(-0.5, 0.25),
        nn.SiLU(),
        nn.GELU(),
        nn.GELU(approximate="tanh"),
        nn.Sigmoid(),
        nn.Tanh(),
        nn.Hardswish(),
        nn.Hardsigmoid(),
        nn.LeakyReLU(0.2),
    ],
)
@pytest.mark.parametrize("image", [True, False])
def test_activations_are_computed_with_what_they_follow(freeze: Freeze, activation: nn.Module, image: bool) -> None:
    model = (convolution(), activation, nn.Conv2d(16, 4, 3)) if image else (nn.Linear(8, 16), activation)
    frozen = freeze(nn.Sequential(*model))
    frozen.run(IMAGE if image else torch.randn(3, 8))
    packed = frozen.calls(PACKED_CONVOLUTION if image else PACKED_PRODUCT)
    assert packed[0].args[-3] != "none"
    assert not any(type(activation).__name__.lower() in target for target in frozen.targets())


class Seen(nn.Module):
    """What an activation reads is returned, too."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = convolution()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.convolution(x)
        return y, y.relu()


def test_an_activation_of_what_others_see_stays(freeze: Freeze) -> None:
    frozen = freeze(Seen())
    frozen.run(IMAGE)
    assert "aten.relu.default" in frozen.targets()
    assert [node.args[-3] for node in frozen.calls(PACKED_CONVOLUTION)] == ["none"]


def test_an_activation_that_onednn_does_not_know_stays(freeze: Freeze) -> None:
    frozen = freeze(nn.Sequential(convolution(), nn.Softplus()))
    frozen.run(IMAGE)
    assert "aten.softplus.default" in frozen.targets()


class Residual(nn.Module):
    """Both summands are convolutions' results; each sum is read once, or also returned."""

    def __init__(self, activation: nn.Module, *, returned: bool = False, alpha: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, groups=groups) for _ in range(3))
        self.activation, self.returned, self.alpha = activation, returned, alpha

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        first, second, last = self.convolutions
        total = torch.add(first(x), second(x), alpha=self.alpha)
        y = last(self.activation(total))
        return (y, total) if self.returned else (y,)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_sum_is_computed_with_one_of_its_convolutions(freeze: Freeze, batch: int) -> None:
    frozen = freeze(Residual(nn.ReLU()))
    frozen.run(IMAGE[:batch])
    (packed,) = frozen.calls(PACKED_SUM)
    assert packed.args[-3] == "relu"
    assert {"aten.add.Tensor", "aten.relu.default"}.isdisjoint(frozen.targets())
    assert frozen.targets().count(PACKED_CONVOLUTION) == 2


def test_behind_a_sum_only_relu_is(freeze: Freeze) -> None:
    frozen = freeze(Residual(nn.SiLU()))
    frozen.run(IMAGE)
    assert len(frozen.calls(PACKED_SUM)) == 1
    assert "aten.silu.default" in frozen.targets()


def test_a_sum_that_others_see_keeps_its_activation(freeze: Freeze) -> None:
    frozen = freeze(Residual(nn.ReLU(), returned=True))
    frozen.run(IMAGE)
    assert "aten.relu.default" in frozen.targets()


def test_a_weighted_sum_stays(freeze: Freeze) -> None:
    frozen = freeze(Residual(nn.ReLU(), alpha=2))
    frozen.run(IMAGE)
    assert "aten.add.Tensor" in frozen.targets()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_behind_several_groups_stays(freeze: Freeze, dtype: torch.dtype) -> None:
    frozen = freeze(Residual(nn.ReLU(), groups=2).to(dtype))
    frozen.run(IMAGE.to(dtype))
    assert PACKED_SUM not in frozen.targets()
    assert any("relu" in target for target in frozen.targets())


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = convolution()

    def forward(self, x: Tensor) -> Tensor:
        y = self.convolution(x)
        return (y + y + y.mean()).relu()


def test_a_sum_with_itself_stays(freeze: Freeze) -> None:
    frozen = freeze(Doubled())
    frozen.run(IMAGE)
    assert PACKED_SUM not in frozen.targets()


class Late(nn.Module):
    """The same weight twice, and a summand that is computed of the second use."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.convolution(x)
        return self.convolution(first + self.convolution(x * 2).sigmoid())


def test_a_summand_may_be_computed_after_the_convolution(freeze: Freeze) -> None:
    frozen = freeze(Late())
    frozen.run(IMAGE)
    assert len(frozen.calls(PACKED_SUM)) == 1


class Divided(nn.Module):
    """What alone reads the convolution's result returns several."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.convolution(x).split([3, 5], 1)


def test_a_reader_of_several_results(freeze: Freeze) -> None:
    frozen = freeze(Divided())
    frozen.run(IMAGE)
    assert PACKED_CONVOLUTION in frozen.targets()


class Turned(nn.Module):
    """What follows the convolution has its shape and strides, and other elements in each place."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x).permute(0, 1, 3, 2).contiguous(memory_format=torch.channels_last).relu()


def test_copy_that_moves_elements_is_not_a_pin(freeze: Freeze) -> None:
    frozen = freeze(Turned())
    frozen.run(torch.randn(2, 8, 5, 5))


def test_non_constant_weights_are_not_packed(freeze: Freeze) -> None:
    frozen = freeze(Both())
    frozen.run(IMAGE, torch.randn(8, 16, 1, 1))
    assert frozen.targets().count(PACKED_CONVOLUTION) == 1
    assert frozen.reasons("blocked_layout") == ["its weight is not a constant"]


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = convolution()

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(self.convolution(x), w)


class Computed(nn.Module):
    """A weight that is computed of parameters alone, and read elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, 3, 3))
        self.scale = nn.Parameter(torch.rand(8, 1, 1, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        w = self.weight * self.scale
        y = torch.nn.functional.conv2d(torch.nn.functional.conv2d(x, w, padding=1), w, padding=1)
        return y, self.weight.sum() * x


def test_a_weight_that_is_computed_of_constants_is_packed_once(freeze: Freeze) -> None:
    frozen = freeze(Computed())
    frozen.run(IMAGE)
    first, second = frozen.calls(PACKED_CONVOLUTION)
    assert first.args[1] is second.args[1]
    assert "aten.mul.Tensor" in frozen.targets()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_types(freeze: Freeze, dtype: torch.dtype) -> None:
    frozen = freeze(nn.Sequential(convolution(), nn.ReLU()).to(dtype), tolerance=3e-2)
    frozen.run(IMAGE.to(dtype))
    packs = dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert frozen.targets().count(PACKED_CONVOLUTION) == int(packs)
    if not packs:
        assert frozen.reasons("blocked_layout") == ["oneDNN packs no weights of this type here"]


def test_autocast_packs_the_converted_weight(freeze: Freeze) -> None:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN computes no bf16 here")
    frozen = freeze(nn.Sequential(convolution(), nn.ReLU()), tolerance=3e-2)
    with torch.autocast("cpu", torch.bfloat16):
        frozen.run(IMAGE)
    assert frozen.targets().count(PACKED_CONVOLUTION) == 1
    # The image is converted in each call, weight and bias were before.
    assert frozen.targets().count("aten._to_copy.default") == 1


def test_a_computed_image_of_one_channel_is_not_read_packed(freeze: Freeze) -> None:
    frozen = freeze(nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(1, 4, 3)))
    frozen.run(torch.randn(2, 1, 12, 12))
    assert PACKED_CONVOLUTION not in frozen.targets()
    assert any("one channel" in reason for reason in frozen.reasons("blocked_layout"))


def test_images_without_elements_are_not_packed(freeze: Freeze) -> None:
    frozen = freeze(convolution())
    frozen.run(torch.randn(0, 8, 12, 12))
    assert PACKED_CONVOLUTION not in frozen.targets()
    assert frozen.reasons("blocked_layout") == ["it has no elements"]


def test_sizes_that_may_change_are_not_packed(freeze: Freeze) -> None:
    frozen = freeze(convolution(), dynamic=True)
    frozen.run(IMAGE)
    frozen.run(torch.randn(3, 8, 10, 10))
    assert len(frozen.graphs) == 1
    assert frozen.reasons("blocked_layout") == ["its sizes may change"]


def test_another_size_is_frozen_for_itself(freeze: Freeze) -> None:
    frozen = freeze(nn.Sequential(convolution(), nn.ReLU()), dynamic=False)
    for image in (IMAGE, torch.randn(1, 8, 9, 7), IMAGE.to(memory_format=torch.channels_last)):
        frozen.run(image)
        assert frozen.targets().count(PACKED_CONVOLUTION) == 1
    assert len(frozen.graphs) == 3


def test_products_are_packed(freeze: Freeze) -> None:
    frozen = freeze(nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 16, bias=False)))
    frozen.run(torch.randn(4, 5, 64))
    assert frozen.targets().count(PACKED_PRODUCT) == 2


class Apart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.mm(x.t(), self.linear.weight.t())


def test_a_product_of_what_has_another_order_is_not_packed(freeze: Freeze) -> None:
    frozen = freeze(Apart())
    frozen.run(torch.randn(6, 5))
    assert PACKED_PRODUCT not in frozen.targets()


@pytest.mark.parametrize("faster", [True, False])
def test_solved_packs_what_was_measured_to_be_faster(
    freeze: Freeze, monkeypatch: pytest.MonkeyPatch, faster: bool
) -> None:
    asked: list[OperatorSignature] = []

    def seconds(groups: Sequence[Sequence[OperatorSignature]], _device_type: str) -> dict[OperatorSignature, float]:
        calls = [call for group in groups for call in group]
        asked.extend(calls)
        prices = {call: 0.5 if ("mkldnn" in call.target) == faster else 1.0 for call in calls}
        return prices | {call: 1e-6 for call in calls if call.target == "aten.clone.default"}

    monkeypatch.setattr(operator_times, "time_under_load", lambda *asked: (seconds(*asked), False))
    monkeypatch.setattr(rewrite_pipeline, "time_under_load", operator_times.time_under_load)
    monkeypatch.setattr(operator_times, "measure_bandwidth", lambda _facts: 1e12)
    frozen = freeze(nn.Sequential(convolution(), nn.Conv2d(16, 8, 3)), plan="solved")
    frozen.run(IMAGE)
    assert frozen.targets().count(PACKED_CONVOLUTION) == (2 if faster else 0)
    assert any(call.target == PACKED_CONVOLUTION for call in asked)


def test_packed_calls_can_be_timed(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[OperatorSignature] = []

    def counted(groups: Sequence[Sequence[OperatorSignature]], device_type: str) -> tuple[Any, bool]:
        timed, loaded = time_under_load(list(groups), device_type)
        seen.extend(timed)
        return timed, loaded

    monkeypatch.setattr(operator_times, "time_under_load", counted)
    monkeypatch.setattr(rewrite_pipeline, "time_under_load", counted)
    model = nn.Sequential(nn.Conv2d(8, 4, 3), nn.ConvTranspose2d(4, 4, 2), nn.Flatten(), nn.Linear(484, 8))
    freeze(model, plan="solved").run(IMAGE)
    assert {PACKED_CONVOLUTION, PACKED_TRANSPOSED, PACKED_PRODUCT} <= {call.target for call in seen}

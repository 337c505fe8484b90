"""Regions of small networks, exactly."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.facts.layout import Layout
from frx_graph.passes.layouts.regions import LayoutRegion, anchor_signatures, layout_groups, layout_regions

PLAIN, CHANNELS_LAST = Layout.PLAIN, Layout.CHANNELS_LAST
IMAGE = (2, 4, 8, 8)


def facts_of(analyse: Any, model: nn.Module, *args: Tensor, train: bool = False) -> GraphFacts:
    facts: GraphFacts = analyse(model, *args, train=train).facts
    return facts


def operators(facts: GraphFacts, nodes: tuple[str, ...]) -> list[str]:
    return [facts.op_by_node[node].operator.removeprefix("aten.") for node in nodes]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x)).relu_()
        y = F.max_pool2d(self.second(y) + x, 2)
        return self.head(y.flatten(1))


def test_a_residual_block_is_one_region_that_flatten_ends(analyse: Any) -> None:
    facts = facts_of(analyse, Residual(), torch.randn(IMAGE))
    (region,) = layout_regions(facts)
    assert operators(facts, region.anchors) == ["convolution", "convolution", "max_pool2d_with_indices"]
    assert operators(facts, region.members) == [
        "convolution",
        "native_batch_norm",
        "relu_",
        "convolution",
        "add",
        "max_pool2d_with_indices",
    ]
    assert (region.phase, region.rank, region.layout) == (Phase.FORWARD, 4, PLAIN)


def test_an_input_that_two_members_read_crosses_the_edge_once(analyse: Any) -> None:
    facts = facts_of(analyse, Residual(), torch.randn(IMAGE))
    (region,) = layout_regions(facts)
    (entering,) = region.inputs
    assert facts.values[entering.name].path == "x"
    assert (entering.layout, entering.bytes) == (PLAIN, 2 * 4 * 8 * 8 * 4)


def test_what_a_flatten_and_a_linear_layer_read_is_wanted_plain(analyse: Any) -> None:
    facts = facts_of(analyse, Residual(), torch.randn(IMAGE))
    (region,) = layout_regions(facts)
    (leaving,) = region.outputs
    assert (leaving.layout, leaving.bytes, leaving.wanted) == (PLAIN, 2 * 4 * 4 * 4 * 4, (PLAIN,))


def test_a_global_pool_wants_nothing(analyse: Any) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    (region,) = layout_regions(facts_of(analyse, model, torch.randn(IMAGE)))
    assert [value.wanted for value in region.outputs] == [()]


class Attend(nn.Module):
    """`B, C, H, W` to `B, HW, C`: a view of a channels-last tensor is contiguous, of a plain one it is not."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, 16, 4, 4)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.patches(x).flatten(2).transpose(1, 2))


def test_patches_for_a_transformer_are_wanted_channels_last(analyse: Any) -> None:
    (region,) = layout_regions(facts_of(analyse, Attend(), torch.randn(IMAGE)))
    assert [(value.layout, value.wanted) for value in region.outputs] == [(PLAIN, (CHANNELS_LAST,))]


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(4, 8, 3, 2, 1)
        self.up = nn.Conv2d(8, 4, 3, padding=1)
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = torch.sigmoid(x)
        y = self.up(F.interpolate(self.down(skip), scale_factor=2))
        return self.last(torch.cat([skip, y], 1))


def test_cat_over_channels_and_upsampling_join(analyse: Any) -> None:
    facts = facts_of(analyse, Decoder(), torch.randn(IMAGE))
    (region,) = layout_regions(facts)
    assert operators(facts, region.members) == [
        "sigmoid",
        "convolution",
        "upsample_nearest2d",
        "convolution",
        "cat",
        "convolution",
    ]


def test_the_caller_is_assumed_to_want_what_it_gets_now(analyse: Any) -> None:
    plain = layout_regions(facts_of(analyse, Decoder(), torch.randn(IMAGE)))[0]
    assert [value.wanted for value in plain.outputs] == [(PLAIN,)]
    x = torch.randn(IMAGE).to(memory_format=torch.channels_last)
    channels_last = layout_regions(facts_of(analyse, Decoder(), x))[0]
    assert channels_last.layout is CHANNELS_LAST
    assert [value.wanted for value in channels_last.outputs] == [(CHANNELS_LAST,)]


class TwoImages(nn.Module):
    """A matrix product between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = y @ y.transpose(2, 3)
        return self.second(y)


def test_a_matrix_product_separates(analyse: Any) -> None:
    groups = layout_groups(facts_of(analyse, TwoImages(), torch.randn(IMAGE)))
    assert [len(group.regions) for group in groups] == [1, 1]


class Gate(nn.Module):
    """Squeeze and excite: its convolutions run on 1x1 images, which have no layout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3)
        self.squeeze, self.excite = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y * torch.sigmoid(self.excite(self.squeeze(y.mean((2, 3), keepdim=True)).relu()))


def test_values_without_an_order_join_nothing_and_are_no_anchors(analyse: Any) -> None:
    facts = facts_of(analyse, Gate(), torch.randn(IMAGE))
    (region,) = layout_regions(facts)
    assert operators(facts, region.anchors) == ["convolution"]
    assert operators(facts, region.members) == ["convolution", "mul"]
    assert list(anchor_signatures(facts)) == list(region.anchors)


class TiedWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 3, 3))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return F.conv2d(x, self.weight), F.conv2d(y, self.weight)


def test_a_shared_weight_joins_nothing(analyse: Any) -> None:
    groups = layout_groups(facts_of(analyse, TiedWeight(), torch.randn(IMAGE), torch.randn(IMAGE)))
    assert len(groups) == 2


class Pinned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).contiguous())


def test_a_conversion_that_the_program_asks_for_separates(analyse: Any) -> None:
    model = Pinned().to(memory_format=torch.channels_last)
    x = torch.randn(IMAGE).to(memory_format=torch.channels_last)
    facts = facts_of(analyse, model, x)
    before, after = layout_regions(facts)
    assert [value.wanted for value in before.outputs] == [(PLAIN,)]
    assert [value.layout for value in after.inputs] == [PLAIN]
    assert (before.layout, after.layout) == (CHANNELS_LAST, CHANNELS_LAST)  # the second weight is channels-last


def test_forward_and_backward_are_two_regions_of_one_group(analyse: Any) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    facts = facts_of(analyse, model, torch.randn(IMAGE), train=True)
    (group,) = layout_groups(facts)
    assert [region.phase for region in group.regions] == [Phase.FORWARD, Phase.BACKWARD]
    assert operators(facts, group.regions[1].anchors) == ["convolution_backward"] * 2


def test_values_saved_for_the_backward_cross_the_edge_but_nobody_outside_wants_them(analyse: Any) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1))
    facts = facts_of(analyse, model, torch.randn(IMAGE), train=True)
    forward, backward = layout_regions(facts)
    saved = {value.name for value in forward.outputs} & {value.name for value in backward.inputs}
    assert "relu" in {facts.values[name].producer for name in saved}
    assert all(value.wanted == () for value in forward.outputs)


def test_three_dimensional_images_have_rank_5(analyse: Any) -> None:
    model = nn.Sequential(nn.Conv3d(4, 4, 3), nn.MaxPool3d(2))
    (region,) = layout_regions(facts_of(analyse, model, torch.randn(2, 4, 6, 6, 6)))
    assert (region.rank, len(region.anchors)) == (5, 2)


@pytest.mark.parametrize(
    "model",
    [nn.Conv1d(4, 4, 3), nn.Sequential(nn.Linear(8, 8), nn.GELU()), nn.ReLU()],
    ids=["1-D", "linear", "no anchor"],
)
def test_no_anchor_no_region(analyse: Any, model: nn.Module) -> None:
    x = torch.randn(2, 4, 8) if isinstance(model, nn.Conv1d) else torch.randn(IMAGE)
    facts = facts_of(analyse, model, x)
    assert layout_groups(facts) == ()
    assert not anchor_signatures(facts)


def test_a_slice_of_channels_keeps_the_layout_of_what_it_is_cut_from(analyse: Any) -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(4, 8, 3), nn.Conv2d(4, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).chunk(2, 1)[0])

    x = torch.randn(IMAGE).to(memory_format=torch.channels_last)
    (group,) = layout_groups(facts_of(analyse, Split().to(memory_format=torch.channels_last), x))
    assert [operator.layout for operator in group.operators] == [CHANNELS_LAST] * 3


def test_inductor_on_the_cpu_runs_every_2d_convolution_channels_last(analyse: Any) -> None:
    facts = facts_of(analyse, Residual(), torch.randn(IMAGE))
    assert [region.layout for region in layout_regions(facts, "eager")] == [PLAIN]
    assert [region.layout for region in layout_regions(facts, "inductor")] == [CHANNELS_LAST]


def test_inductor_leaves_3d_convolutions_alone(analyse: Any) -> None:
    facts = facts_of(analyse, nn.Conv3d(4, 4, 3), torch.randn(2, 4, 6, 6, 6))
    assert [region.layout for region in layout_regions(facts, "inductor")] == [PLAIN]


def test_every_anchor_lies_in_exactly_one_region(analyse: Any) -> None:
    facts = facts_of(analyse, Decoder(), torch.randn(IMAGE), train=True)
    regions: tuple[LayoutRegion, ...] = layout_regions(facts)
    anchors = [node for region in regions for node in region.anchors]
    assert sorted(anchors) == sorted(set(anchors)) == sorted(anchor_signatures(facts))

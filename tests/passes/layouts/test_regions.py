"""Regions of small networks, exactly."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.facts.layout import Layout
from frx_graph.passes.layouts.regions import LayoutGroup, LayoutRegion, find_layout_groups, list_anchor_signatures

PLAIN, CHANNELS_LAST = Layout.PLAIN, Layout.CHANNELS_LAST
IMAGE = (2, 4, 8, 8)


def facts_of(analyse: Any, model: nn.Module, *args: Tensor, train: bool = False) -> GraphFacts:
    facts: GraphFacts = analyse(model, *args, train=train).facts
    return facts


def members(group: LayoutGroup) -> list[str]:
    return [member.op.operator.removeprefix("aten.") for member in group.operators]


def anchors(group: LayoutGroup) -> list[str]:
    return [member.op.operator.removeprefix("aten.") for member in group.operators if member.anchor]


def regions(facts: GraphFacts) -> list[LayoutRegion]:
    return [region for group in find_layout_groups(facts) for region in group.regions]


def anchor_layouts(facts: GraphFacts, inner: str) -> set[Layout]:
    return {member.layout for group in find_layout_groups(facts, inner) for member in group.operators if member.anchor}


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
    (group,) = find_layout_groups(facts)
    assert anchors(group) == ["convolution", "convolution", "max_pool2d_with_indices"]
    assert members(group) == [
        "convolution",
        "native_batch_norm",
        "relu_",
        "convolution",
        "add",
        "max_pool2d_with_indices",
    ]
    assert (group.rank, len(group.regions)) == (4, 1)
    assert {member.layout for member in group.operators} == {PLAIN}


def test_an_input_that_two_members_read_crosses_the_edge_once(analyse: Any) -> None:
    facts = facts_of(analyse, Residual(), torch.randn(IMAGE))
    (region,) = regions(facts)
    (entering,) = region.inputs
    assert facts.values[entering.name].path == "x"
    assert (entering.layout, entering.bytes) == (PLAIN, 2 * 4 * 8 * 8 * 4)


def test_what_a_flatten_and_a_linear_layer_read_is_wanted_plain(analyse: Any) -> None:
    facts = facts_of(analyse, Residual(), torch.randn(IMAGE))
    (region,) = regions(facts)
    (leaving,) = region.outputs
    assert (leaving.layout, leaving.bytes, leaving.wanted) == (PLAIN, 2 * 4 * 4 * 4 * 4, (PLAIN,))


def test_a_global_pool_wants_nothing(analyse: Any) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    (region,) = regions(facts_of(analyse, model, torch.randn(IMAGE)))
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
    (region,) = regions(facts_of(analyse, Attend(), torch.randn(IMAGE)))
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
    (group,) = find_layout_groups(facts)
    assert members(group) == [
        "sigmoid",
        "convolution",
        "upsample_nearest2d",
        "convolution",
        "cat",
        "convolution",
    ]


def test_the_caller_is_assumed_to_want_what_it_gets_now(analyse: Any) -> None:
    (plain,) = regions(facts_of(analyse, Decoder(), torch.randn(IMAGE)))
    assert [value.wanted for value in plain.outputs] == [(PLAIN,)]
    x = torch.randn(IMAGE).to(memory_format=torch.channels_last)
    facts = facts_of(analyse, Decoder(), x)
    (channels_last,) = regions(facts)
    assert anchor_layouts(facts, "eager") == {CHANNELS_LAST}
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
    groups = find_layout_groups(facts_of(analyse, TwoImages(), torch.randn(IMAGE)))
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


def test_values_without_an_order_are_neither_members_nor_anchors(analyse: Any) -> None:
    facts = facts_of(analyse, Gate(), torch.randn(IMAGE))
    (group,) = find_layout_groups(facts)
    assert anchors(group) == ["convolution"]
    assert members(group) == ["convolution", "mul"]
    assert list(list_anchor_signatures(facts)) == [member.op.node for member in group.operators if member.anchor]


class TiedWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 3, 3))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return F.conv2d(x, self.weight), F.conv2d(y, self.weight)


def test_a_shared_weight_joins_nothing(analyse: Any) -> None:
    groups = find_layout_groups(facts_of(analyse, TiedWeight(), torch.randn(IMAGE), torch.randn(IMAGE)))
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
    before, after = regions(facts)
    assert [value.wanted for value in before.outputs] == [(PLAIN,)]
    assert [value.layout for value in after.inputs] == [PLAIN]
    assert anchor_layouts(facts, "eager") == {CHANNELS_LAST}  # the second weight is channels-last


def test_forward_and_backward_are_two_regions_of_one_group(analyse: Any) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    facts = facts_of(analyse, model, torch.randn(IMAGE), train=True)
    (group,) = find_layout_groups(facts)
    assert len(group.regions) == 2
    assert anchors(group) == ["convolution"] * 2 + ["convolution_backward"] * 2
    assert {member.op.phase for member in group.operators} == {Phase.FORWARD, Phase.BACKWARD}


def test_values_saved_for_the_backward_cross_the_edge_without_a_layout_demand(analyse: Any) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1))
    facts = facts_of(analyse, model, torch.randn(IMAGE), train=True)
    forward, backward = regions(facts)
    saved = {value.name for value in forward.outputs} & {value.name for value in backward.inputs}
    assert "relu" in {facts.values[name].producer for name in saved}
    assert all(value.wanted == () for value in forward.outputs)


def test_three_dimensional_images_have_rank_5(analyse: Any) -> None:
    model = nn.Sequential(nn.Conv3d(4, 4, 3), nn.MaxPool3d(2))
    (group,) = find_layout_groups(facts_of(analyse, model, torch.randn(2, 4, 6, 6, 6)))
    assert (group.rank, len(anchors(group))) == (5, 2)


@pytest.mark.parametrize(
    "model",
    [nn.Conv1d(4, 4, 3), nn.Sequential(nn.Linear(8, 8), nn.GELU()), nn.ReLU()],
    ids=["1-D", "linear", "no anchor"],
)
def test_no_anchor_no_region(analyse: Any, model: nn.Module) -> None:
    x = torch.randn(2, 4, 8) if isinstance(model, nn.Conv1d) else torch.randn(IMAGE)
    facts = facts_of(analyse, model, x)
    assert find_layout_groups(facts) == ()
    assert not list_anchor_signatures(facts)


def test_a_slice_of_channels_keeps_the_layout_of_what_it_is_cut_from(analyse: Any) -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(4, 8, 3), nn.Conv2d(4, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).chunk(2, 1)[0])

    x = torch.randn(IMAGE).to(memory_format=torch.channels_last)
    (group,) = find_layout_groups(facts_of(analyse, Split().to(memory_format=torch.channels_last), x))
    assert [operator.layout for operator in group.operators] == [CHANNELS_LAST] * 3


def test_inductor_on_the_cpu_runs_every_2d_convolution_channels_last(analyse: Any) -> None:
    facts = facts_of(analyse, Residual(), torch.randn(IMAGE))
    assert anchor_layouts(facts, "eager") == {PLAIN}
    assert anchor_layouts(facts, "inductor") == {CHANNELS_LAST}


def test_inductor_leaves_3d_convolutions_alone(analyse: Any) -> None:
    facts = facts_of(analyse, nn.Conv3d(4, 4, 3), torch.randn(2, 4, 6, 6, 6))
    assert anchor_layouts(facts, "inductor") == {PLAIN}


def test_every_anchor_is_in_exactly_one_group(analyse: Any) -> None:
    facts = facts_of(analyse, Decoder(), torch.randn(IMAGE), train=True)
    nodes = [member.op.node for group in find_layout_groups(facts) for member in group.operators if member.anchor]
    assert sorted(nodes) == sorted(set(nodes)) == sorted(list_anchor_signatures(facts))

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from frx_graph.capture.captured_graph import Phase

CONVOLUTION = "aten.convolution.default"
CLONE = "aten.clone.default"


class Residual(nn.Module):
    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(functional.relu(self.norm(self.first(x)))) + x


def test_a_region_changes_its_layout_and_is_converted_at_its_edges_only(rewrite) -> None:
    found = rewrite(Residual().eval(), torch.randn(2, 8, 6, 6))
    (graph,) = found.graphs
    assert graph.done.conversions == ("clone_default", "clone_default_1")
    assert graph.strides(CONVOLUTION) == [(288, 1, 48, 8)] * 2
    # One copy of the input for its two readers, one of the result.
    assert graph.targets().count(CLONE) == 2


def test_channels_last_program_becomes_plain(rewrite) -> None:
    model = Residual().eval().to(memory_format=torch.channels_last)
    found = rewrite(model, torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last))
    assert found.graphs[0].strides(CONVOLUTION) == [(288, 36, 6, 1)] * 2


def test_forward_and_backward_are_laid_out_and_gradients_leave_as_they_did(rewrite) -> None:
    found = rewrite(Residual(), torch.randn(2, 8, 6, 6, requires_grad=True), train=True)
    assert found.graph(Phase.FORWARD).strides(CONVOLUTION) == [(288, 1, 48, 8)] * 2
    assert found.graph(Phase.BACKWARD).done.applied[0].rewrite == "backward_layout"


def test_volumes_and_symbolic_sizes(rewrite) -> None:
    model = nn.Sequential(nn.Conv3d(4, 8, 3), nn.ReLU(), nn.Conv3d(8, 4, 3)).eval()
    found = rewrite(model, torch.randn(2, 4, 7, 8, 9), dynamic=True)
    assert found.graphs[0].done.applied
    assert not found.graphs[0].done.refused


def test_permutes_around_a_convolution_cancel(rewrite) -> None:
    convolution = nn.Conv2d(8, 8, 3, padding=1)

    def program(x: Tensor) -> Tensor:
        # The order in which a channels-last network is written by hand.
        y = convolution(x.permute(0, 3, 1, 2).contiguous()).permute(0, 2, 3, 1).contiguous()
        return functional.gelu(convolution(y.permute(0, 3, 1, 2).contiguous()).permute(0, 2, 3, 1).contiguous())

    found = rewrite(program, torch.randn(2, 6, 6, 8))
    assert CLONE not in found.graphs[0].targets()
    assert found.graphs[0].strides(CONVOLUTION) == [(288, 1, 48, 8)] * 2


def test_a_channel_shuffle_stays_in_channels_last(rewrite) -> None:
    convolution = nn.Conv2d(8, 8, 3, padding=1)

    def program(x: Tensor) -> Tensor:
        y = convolution(x)
        y = y.view(2, 2, 4, 6, 6).transpose(1, 2).contiguous().view(2, 8, 6, 6)
        return convolution(y)

    found = rewrite(program, torch.randn(2, 8, 6, 6))
    assert found.graphs[0].strides(CONVOLUTION) == [(288, 1, 48, 8)] * 2
    # In, shuffled, out: the shuffle moves elements in either order.
    assert found.graphs[0].targets().count(CLONE) == 3


KEPT_BY_KERNELS = {
    "channel_shuffle": lambda y: functional.channel_shuffle(y, 2),
    "roll": lambda y: torch.roll(y, 1, 3),
}


@pytest.mark.parametrize("name", KEPT_BY_KERNELS)
@pytest.mark.parametrize("batch", [1, 2])
def test_an_order_that_a_kernel_keeps_and_its_fake_does_not_is_kept(rewrite, name: str, batch: int) -> None:
    convolution, moved = nn.Conv2d(8, 8, 3, padding=1), KEPT_BY_KERNELS[name]

    def program(x: Tensor) -> Tensor:
        return convolution(moved(convolution(x)))

    found = rewrite(program, torch.randn(batch, 8, 6, 6))
    # In and out.
    assert found.graphs[0].targets().count(CLONE) == 2
    assert found.graphs[0].strides(CONVOLUTION) == [(288, 1, 48, 8)] * 2


def test_copies_in_front_of_attention_go(rewrite) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = [x.view(2, 16, 4, 8).transpose(1, 2).contiguous() for x in (q, k, v)]
        mixed = functional.scaled_dot_product_attention(*heads)
        return mixed.transpose(1, 2).contiguous().view(2, 16, 32)

    found = rewrite(program, *(torch.randn(2, 16, 32) for _ in range(3)))
    assert CLONE not in found.graphs[0].targets()


def test_operators_with_explicit_strides_keep_them(rewrite) -> None:
    convolution = nn.Conv2d(8, 8, 3, padding=1)

    def program(x: Tensor) -> Tensor:
        return torch.as_strided(convolution(x), (2, 8, 6), (288, 36, 1), 3)

    found = rewrite(program, torch.randn(2, 8, 6, 6))
    assert found.graphs[0].done.applied


def test_random_numbers_are_drawn_as_before(rewrite) -> None:
    convolution = nn.Conv2d(8, 8, 3, padding=1)

    def program(x: Tensor) -> Tensor:
        return functional.dropout(convolution(x), 0.5) + torch.rand_like(x)

    assert rewrite(program, torch.randn(2, 8, 6, 6)).graphs[0].done.applied


def test_inputs_that_are_written_into_are(rewrite) -> None:
    convolution = nn.Conv2d(8, 8, 3, padding=1)

    def program(x: Tensor, y: Tensor) -> Tensor:
        y.add_(convolution(x))
        return y * 2

    # What is written is compared by the fixture, as what is returned is.
    found = rewrite(program, torch.randn(2, 8, 6, 6), torch.zeros(2, 8, 6, 6))
    assert "aten.copy_.default" in found.graphs[0].targets()


def test_a_graph_without_convolutions_or_attention_is_left_alone(rewrite) -> None:
    found = rewrite(nn.Linear(8, 8).double(), torch.randn(2, 3, 8, dtype=torch.double))
    assert not found.graphs[0].done.applied
    assert not found.graphs[0].done.refused


def test_a_view_of_one_dimension_reads_what_was_converted_for_it(rewrite) -> None:
    """It has no order of its own, and is a view of plain images alone."""
    (graph,) = rewrite(
        nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten(0)), torch.randn(1, 8, 6, 6)
    ).graphs
    assert graph.done.applied
    assert not graph.done.refused
    assert graph.strides("aten.convolution.default") == [(288, 1, 48, 8)]


def test_an_image_of_a_batch_of_one_that_is_flattened_whole_is_made_plain_first(rewrite) -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 5)).eval()
    found = rewrite(model, torch.randn(1, 4, 8, 8))
    assert found.graphs[0].strides(CONVOLUTION) == [(288, 1, 48, 8), (64, 1, 16, 4)]
    assert not found.graphs[0].done.refused


class Between(nn.Module):
    """What `program` makes of the result of one convolution, and of the next."""

    def __init__(self, program: Callable[[nn.Module, nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.program = program

    def forward(self, x: Tensor) -> object:
        return self.program(self.first, self.second, x)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda first, _, x: first(x)[:, :, :5, 1:], id="cropped"),
        pytest.param(lambda first, _, x: first(x)[:, :, 1:][..., 1:].transpose(1, 2), id="cropped twice"),
        pytest.param(lambda first, _, x: first(x).chunk(2, 1)[1], id="a part"),
        pytest.param(lambda first, _, x: first(x).unsqueeze(1).expand(2, 3, 8, 6, 6), id="expanded"),
        pytest.param(lambda first, second, x: second(first(x).chunk(2, 1)[1].softmax(1)), id="a softmax of a part"),
        pytest.param(lambda first, second, x: second(first(x)[:, 4:].cumsum(1)), id="a sum of a part"),
        pytest.param(lambda first, second, x: second(torch.rand_like(first(x)[:, 4:])), id="a draw like a part"),
    ],
)
@pytest.mark.parametrize("train", [False, True])
def test_gaps_do_not_prevent_rewriting_a_convolution(rewrite, program, train: bool) -> None:
    found = rewrite(Between(program), torch.randn(2, 8, 6, 6), train=train)
    forward = found.graph(Phase.FORWARD)
    assert forward.strides(CONVOLUTION)[0] == (288, 1, 48, 8)
    assert not [refusal for refusal in forward.done.refused if "gaps" in refusal.reason]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda first, _, x: torch.as_strided(first(x)[1:], (4, 4), (3, 1), 300) + 1, id="dense"),
        pytest.param(lambda first, _, x: torch.as_strided(first(x).relu()[:, 2:], (4, 4), (3, 1), 2) + 1, id="gaps"),
        pytest.param(lambda first, _, x: torch.as_strided(first(x).permute(0, 2, 3, 1), (4,), (9,)), id="permuted"),
    ],
)
def test_explicit_offsets_refer_to_the_whole_storage(rewrite, program) -> None:
    (graph,) = rewrite(Between(program), torch.randn(2, 8, 6, 6)).graphs
    assert graph.strides(CONVOLUTION) == [(288, 1, 48, 8)]


def test_a_branch_between_convolutions_is_given_what_it_was_traced_with(rewrite) -> None:
    def program(first: nn.Module, second: nn.Module, x: Tensor) -> Tensor:
        y = first(x)
        return second(torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,))[:, :4])

    (graph,) = rewrite(Between(program), torch.randn(2, 8, 6, 6)).graphs
    assert graph.strides(CONVOLUTION) == [(288, 1, 48, 8), (144, 1, 24, 4)]


def test_what_is_computed_again_with_its_random_numbers_is_drawn_as_before(rewrite) -> None:
    def program(first: nn.Module, _: nn.Module, x: Tensor) -> Tensor:
        def dropped(t: Tensor) -> Tensor:
            return functional.dropout(functional.relu(first(t)), 0.5)

        return first(checkpoint(dropped, x, use_reentrant=False))

    found = rewrite(Between(program), torch.randn(2, 8, 6, 6, requires_grad=True), train=True)
    assert [graph.done.applied[0].rewrite for graph in found.graphs] == ["propagate_layout", "backward_layout"]


def test_sizes_that_depend_on_data_keep_their_order(rewrite) -> None:
    """Of those fakes do not know whether a convolution makes them channels-last."""

    def program(first: nn.Module, second: nn.Module, x: Tensor) -> Tensor:
        chosen = (x[:, 0, 0, 0] > -9).nonzero()[:, 0]
        return second(first(x)[chosen][:, :4]).relu()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        (graph,) = rewrite(Between(program), torch.randn(2, 8, 6, 6)).graphs
    first, second = graph.strides(CONVOLUTION)
    assert first == (288, 1, 48, 8)
    assert second == (144, 36, 6, 1)


def test_stacked_images_become_a_volume_in_channels_last(rewrite) -> None:
    class Stacked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(8, 4, 3), nn.Conv2d(8, 4, 3)
            self.third = nn.Conv3d(4, 4, (2, 3, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.third(torch.stack([self.first(x), self.second(x)], 2))

    (graph,) = rewrite(Stacked(), torch.randn(2, 8, 6, 6)).graphs
    assert graph.strides("aten.stack.default") == [(128, 1, 64, 16, 4)]
    # In and out: nothing is converted where the images are stacked.
    assert len(graph.done.conversions) == 2


def test_a_batch_norm_reads_its_input_as_its_kernel_expects(rewrite) -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(2, 4, 1, groups=2, stride=2)
            self.norm = nn.BatchNorm2d(4, track_running_stats=False)
            self.linear = nn.Linear(4, 12)

        def forward(self, x: Tensor) -> Tensor:
            part = self.norm(self.convolution(x)).split([1, 2], 3)[1]
            return self.linear(part.flatten(2).transpose(1, 2))

    x = torch.randn(2, 2, 1, 6).double().to(memory_format=torch.channels_last)
    assert rewrite(Split().double(), x, train=True).graph(Phase.BACKWARD).done.applied

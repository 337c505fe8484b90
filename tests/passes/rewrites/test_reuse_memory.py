import pytest
import torch
from torch import nn

from frx_graph.capture.captured_graph import Phase


def written(graph) -> list[str]:
    return [target for target in graph.targets() if target.startswith("aten.") and target.split(".")[1].endswith("_")]


def test_what_a_program_writes_in_place_is_written_in_place_again(rewrite) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Hardtanh(inplace=True))
    (graph,) = rewrite(model.eval(), torch.randn(2, 3, 6, 6)).graphs
    assert written(graph) == ["aten.relu_.default", "aten.hardtanh_.default"]


def test_a_sum_is_written_into_its_first_operand(rewrite) -> None:
    def program(x, y):
        return (x.exp() + y).tanh()

    (graph,) = rewrite(program, torch.randn(4, 5), torch.randn(5)).graphs
    assert graph.targets() == ["aten.exp.default", "aten.add_.Tensor", "aten.tanh_.default"]


def test_an_operand_that_is_read_twice_by_one_operator(rewrite) -> None:
    def program(x):
        y = x.exp()
        return y * y

    (graph,) = rewrite(program, torch.randn(4, 5)).graphs
    assert graph.targets() == ["aten.exp.default", "aten.mul_.Tensor"]


def test_a_view_that_was_read_before_keeps_nothing(rewrite) -> None:
    def program(x):
        y = x.exp()
        return y.view(20).sum(), y.tanh()

    (graph,) = rewrite(program, torch.randn(4, 5)).graphs
    assert written(graph) == ["aten.tanh_.default"]


def read_later(x):
    y = x.exp()
    return y.tanh(), y.sum()


def read_later_through_a_view(x):
    y = x.exp()
    z = y.view(20)
    return y.tanh(), z.sum()


def turned(x):
    y = x[:, :4].exp()
    return y + y.t()


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda x: x.tanh(), id="an input"),
        pytest.param(lambda x: x.view(20).tanh(), id="a view of an input"),
        pytest.param(lambda x: (y := x.exp(), y.tanh()), id="returned"),
        pytest.param(lambda x: (x.exp().t()[1:] * 2)[0], id="a part of the memory"),
        pytest.param(lambda x: x.exp()[1:3] * 2, id="some rows of the memory"),
        pytest.param(read_later, id="read later"),
        pytest.param(read_later_through_a_view, id="read later through a view"),
        pytest.param(turned, id="read in another order at the same time"),
        pytest.param(lambda x: x.exp()[:1] + x, id="smaller than the result"),
        pytest.param(lambda x: x.exp() > 0, id="another dtype"),
        pytest.param(lambda x: x.exp().double().float() * x.double(), id="promoted"),
        pytest.param(lambda x: torch.where(x > 0, x.exp(), x), id="no in-place form"),
        pytest.param(lambda x: x.new_ones(1).expand(4, 5) + x, id="expanded"),
        pytest.param(lambda x: x.unfold(1, 2, 1).exp()[..., 0] + 1, id="a slice of the memory"),
    ],
)
def test_near_misses(rewrite, program) -> None:
    for graph in rewrite(program, torch.randn(4, 5)).graphs:
        assert not written(graph), graph.targets()


def test_a_conjugate_is_not_written_into(rewrite) -> None:
    """It would stay marked as one, which `view_as_real` refuses."""

    def program(x):
        return torch.view_as_real(x.exp().conj() * 2) + 1

    (graph,) = rewrite(program, torch.randn(4, 5, dtype=torch.complex64)).graphs
    assert not written(graph), graph.targets()


def test_tensors_saved_for_the_backward_are_not_overwritten(rewrite) -> None:
    found = rewrite(lambda x: x.exp().tanh().sin(), torch.randn(4, 5, requires_grad=True), train=True)
    # The first results are saved, the last is returned.
    assert not written(found.graph(Phase.FORWARD))
    assert written(found.graph(Phase.BACKWARD))


def test_sizes_that_may_differ(rewrite) -> None:
    def program(x, y):
        return x.exp() + y

    (graph,) = rewrite(program, torch.randn(4, 5), torch.randn(4, 5), dynamic=True).graphs
    assert written(graph) == ["aten.add_.Tensor"]


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_computed_of_constants_alone_is_not_written_into(rewrite, frozen: bool) -> None:
    """It is computed once, and read in every call."""

    def program(weight, x):
        return (weight.exp() + x).sum()

    constants = frozenset({"arg0_1"} if frozen else ())
    (graph,) = rewrite(program, torch.randn(4, 5), torch.randn(4, 5), frozen=constants).graphs
    assert written(graph) == ([] if frozen else ["aten.add_.Tensor"])


@pytest.mark.parametrize("batch", [2, 0])
def test_empty_result_does_not_reuse_memory(rewrite, batch: int) -> None:
    """A kernel's strides for an empty result are others than its fake's, and would be seen."""

    def program(x):
        return ((x @ x.transpose(-1, -2)) * 0.2).cos()

    (graph,) = rewrite(program, torch.randn(batch, 1, 6, 4)).graphs
    assert bool(written(graph)) is (batch > 0)


def test_a_view_of_a_copy_that_was_dropped_reads_what_was_copied(rewrite) -> None:
    """The copy keeps what the program writes over; without it the memory is not free."""

    def program(x):
        y = x.exp()
        kept = y.clone().view(20)
        return y.tanh() + kept.sum()

    (graph,) = rewrite(program, torch.randn(4, 5)).graphs
    assert "aten.clone.default" in graph.before_targets()
    assert "aten.clone.default" not in graph.targets()
    assert "aten.tanh.default" in graph.targets()


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_what_may_be_without_elements_keeps_its_memory(rewrite) -> None:
    """How many rows are chosen only running it tells."""

    def program(x, mask):
        y = x[mask.nonzero().squeeze(1)]
        return (y @ y.transpose(-1, -2)) * 0.2

    (graph,) = rewrite(program, torch.randn(5, 1, 6, 4), torch.tensor([1, 1, 0, 0, 1]), dynamic=True).graphs
    assert not written(graph), graph.targets()


def returned(x):
    return x.exp().view(20).tanh()


def returned_after_more(x):
    return x.exp().view(20).tanh().sin()


def viewed_and_returned(x):
    return x.exp().view(20).tanh().view(4, 5)


@pytest.mark.parametrize(
    ("program", "operators"),
    [
        (returned, []),
        (returned_after_more, ["aten.tanh_.default"]),
        (viewed_and_returned, []),
        (lambda x: returned(x).sum(), ["aten.tanh_.default"]),
        (lambda x: x.exp().tanh(), ["aten.tanh_.default"]),
    ],
)
def test_returned_tensor_is_a_view_only_if_it_was_one(rewrite, program, operators: list[str]) -> None:
    x = torch.randn(4, 5)
    found = rewrite(program, x)
    assert written(found.graphs[0]) == operators
    for ours in found.outputs:
        base = program(x)._base
        assert (None if ours._base is None else ours._base.shape) == (None if base is None else base.shape)

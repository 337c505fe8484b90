import torch
from torch import Tensor

CLONE = "aten.clone.default"


def test_a_way_there_and_back_goes(rewrite) -> None:
    def program(x: Tensor) -> Tensor:
        y = x.permute(0, 2, 1).contiguous()
        return (y.sin() * 2).permute(0, 2, 1).contiguous() + x

    (graph,) = rewrite(program, torch.randn(2, 16, 24)).graphs
    assert CLONE not in graph.targets()


def test_explicitly_requested_order_is_kept(rewrite) -> None:
    def program(x: Tensor) -> Tensor:
        y = x.permute(0, 2, 1).contiguous()
        return torch.softmax(y.sin(), -1)

    (graph,) = rewrite(program, torch.randn(2, 16, 24)).graphs
    assert graph.targets().count(CLONE) == 1


def test_returned_tensor_keeps_its_order(rewrite) -> None:
    (graph,) = rewrite(lambda x: x.permute(0, 2, 1).contiguous(), torch.randn(2, 16, 24)).graphs
    assert graph.targets().count(CLONE) == 1


def test_a_copy_for_two_readers_of_different_needs(rewrite) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.transpose(1, 2).contiguous()
        return torch.bmm(y, x), y.transpose(1, 2).exp().sum()

    assert rewrite(program, torch.randn(2, 16, 24)).graphs

import torch
from torch import Tensor

CLONE = "aten.clone.default"


def test_a_copy_that_every_layer_makes_is_made_once(rewrite) -> None:
    def program(x: Tensor, table: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.softmax(x + torch.softmax(table.t().contiguous(), -1), -1)
        return x

    (graph,) = rewrite(program, torch.randn(4, 6), torch.randn(6, 4)).graphs
    assert graph.before_targets().count(CLONE) == 3
    assert graph.targets().count(CLONE) == 1


def test_copies_into_different_types_or_of_different_values_stay(rewrite) -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            torch.softmax(t, -1)
            for t in (x.t().contiguous(), y.t().contiguous(), x.to(torch.float64), x.to(torch.float16).float())
        )

    (graph,) = rewrite(program, torch.randn(4, 6), torch.randn(4, 6)).graphs
    assert not any(candidate.rewrite == "hoist_copy" for candidate in graph.done.applied)


def test_copies_that_are_returned_share_no_memory(rewrite) -> None:
    found = rewrite(lambda x: (x.t().contiguous(), x.t().contiguous()), torch.randn(4, 6))
    first, second = found.outputs
    assert first.data_ptr() != second.data_ptr()

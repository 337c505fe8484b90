from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

CLONE = "aten.clone.default"


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x + 1).clone() * 2,
        lambda x: (x + 1).to(memory_format=torch.contiguous_format, copy=True).relu(),
        lambda x: (x + 1).clone().clone().relu(),
    ],
)
def test_a_copy_that_changes_nothing_goes(rewrite, program: Callable[[Tensor], Tensor]) -> None:
    (graph,) = rewrite(program, torch.randn(2, 3, 4)).graphs
    assert CLONE not in graph.targets()


def written_after_the_copy(x: Tensor) -> Tensor:
    old = x.clone()
    x.add_(1)
    return old * 2


@pytest.mark.parametrize(
    ("program", "copies"),
    [
        # It has another order.
        (lambda x: (x + 1).transpose(0, 1).clone(memory_format=torch.contiguous_format).relu(), 1),
        # Returned beside what it copies, or instead of an input.
        (lambda x: (y := x + 1, y.clone()), 1),
        (lambda x: x.clone(), 1),
        (lambda x: x.clone().clone(), 1),
        (lambda x: (y := x + 1, y.clone().clone()), 1),
        # Two copies of one value are two tensors to the caller.
        (lambda x: ((y := x + 1).clone(), y.clone()), 2),
        (lambda x: (x.t().contiguous(), x.t().contiguous()), 2),
        # What it saves is written over.
        (written_after_the_copy, 1),
    ],
)
def test_observable_copy_stays(rewrite, program: Callable[[Tensor], object], copies: int) -> None:
    found = rewrite(program, torch.randn(3, 4))
    (graph,) = found.graphs
    assert graph.targets().count(CLONE) >= copies - 1
    storages = {t.untyped_storage().data_ptr() for t in found.outputs}
    assert len(storages) == len(found.outputs)


def test_reason_for_keeping_a_copy_is_reported(rewrite) -> None:
    (graph,) = rewrite(lambda x: (y := x + 1, y.clone()), torch.randn(2, 3)).graphs
    (refusal,) = graph.done.refused
    assert "shares no memory" in refusal.reason


ONE_CHANNEL = torch.randn(3, 6, 5, 4)
ONE_WEIGHT = torch.randn(1, 6, 3, 3).contiguous(memory_format=torch.channels_last)


def one_channel(x: Tensor, weight: Tensor) -> Tensor:
    """In channels-last, which for one channel is as good as plain: fakes and kernels disagree which of them it is."""
    return torch.nn.functional.conv2d(x, weight)


def rolled(x: Tensor, _weight: Tensor) -> Tensor:
    """Plain, which its fakes of channels-last images are not."""
    return x.contiguous(memory_format=torch.channels_last).roll(1, 0)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last, torch.preserve_format])
@pytest.mark.parametrize("behind", [lambda x: x, lambda x: x * 2, lambda x: (x * 2).flatten(2), lambda x: x.mT])
@pytest.mark.parametrize("unclear", [one_channel, rolled])
def test_copies_of_what_may_lie_otherwise_keep_its_strides(
    rewrite, unclear: Callable[..., Tensor], behind: Callable[[Tensor], Tensor], memory_format: Any, dynamic: bool
) -> None:
    def program(x: Tensor, weight: Tensor) -> Tensor:
        return behind((unclear(x, weight) + 12).clone(memory_format=memory_format))

    found = rewrite(program, ONE_CHANNEL, ONE_WEIGHT, dynamic=dynamic)
    assert found.outputs[0].stride() == program(ONE_CHANNEL, ONE_WEIGHT).stride()


def test_what_may_lie_otherwise_is_copied_only_if_it_does(rewrite) -> None:
    def program(x: Tensor, weight: Tensor) -> Tensor:
        return (one_channel(x, weight) + 12).clone(memory_format=torch.channels_last) * 2

    (graph,) = rewrite(program, ONE_CHANNEL, ONE_WEIGHT).graphs
    assert graph.targets().count(CLONE) == len(graph.done.conversions)
    assert "aten.contiguous.default" in graph.targets()

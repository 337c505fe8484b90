"""Living objects are found, and what other threads are building stays theirs."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.autograd.function import BackwardCFunction

from frx_graph.support.garbage_collection import find_instances, find_referring_dicts


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def test_instances_of_each_kind() -> None:
    class Kind(nn.Parameter):
        pass

    weight, plain, other = nn.Parameter(torch.ones(2)), torch.ones(2), Kind(torch.ones(2))
    found = find_instances(nn.Parameter, torch.Tensor)
    assert any(value is weight for value in found)
    assert any(value is plain for value in found)
    assert all(value is not other for value in found)
    assert find_instances() == []


def test_nodes_of_autograd() -> None:
    result = Square.apply(torch.ones(2, requires_grad=True))
    (kind,) = [kind for kind in BackwardCFunction.__subclasses__() if kind.__name__ == "SquareBackward"]
    assert find_instances(kind) == [result.grad_fn]


def test_dictionaries_that_refer_to_one() -> None:
    key, value = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    tables = [{key: 1}, {"a": value}, defaultdict(dict, {key: {}}), {"b": [value]}]
    found = find_referring_dicts([key, value])
    assert [any(table is other for other in found) for table in tables] == [True, True, True, False]
    assert find_referring_dicts([]) == []


class Proxy:
    """Says in Python what class it is of."""

    def __init__(self, value: object) -> None:
        self._value = value

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return max([type(self._value)] * 20, key=str)


@contextmanager
def others_build_tuples(element: object) -> Iterator[list[SystemError]]:
    """Threads that build tuples of `element` for as long, and how they failed to."""
    failures: list[SystemError] = []
    over = threading.Event()

    def build() -> None:
        while not over.is_set():
            try:
                tuple(element for _ in range(50))
            except SystemError as error:
                failures.append(error)

    threads = [threading.Thread(target=build) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        yield failures
    finally:
        over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)


@pytest.mark.integration
@pytest.mark.parametrize("of_types", [False, True])
@pytest.mark.parametrize(
    "search",
    [lambda weight: find_instances(nn.Parameter), lambda weight: find_referring_dicts([weight, nn.Parameter])],
    ids=["instances", "dictionaries"],
)
def test_threads_finish_the_tuples_that_they_build(search: Callable[[nn.Parameter], object], of_types: bool) -> None:
    weight = nn.Parameter(torch.ones(2))
    proxies = [Proxy(weight) for _ in range(20)]
    with others_build_tuples(nn.Parameter if of_types else weight) as failures:
        for _ in range(50):
            search(weight)
    assert failures == []
    assert proxies

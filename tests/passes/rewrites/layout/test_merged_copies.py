"""Which outputs Inductor returns in one memory is foretold as it does it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from frx_graph.passes.rewrites.layout.merged_copies import memories_under_inductor

PROGRAMS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "two copies of one value": lambda x: ((y := x.sin()).clone(), y.clone()),
    "a copy of a copy": lambda x: ((y := x.sin()).clone().clone(), y.clone()),
    "a copy and a view of another": lambda x: ((y := x.sin()).clone(), y.clone().flatten(1)),
    "a copy and what it copies": lambda x: ((y := x.sin()).clone(), y),
    "two copies and what they copy": lambda x: ((y := x.sin()).clone(), y, y.clone()),
    "a copy of an input": lambda x: (x.clone(), x.clone()),
    "copies in another order": lambda x: tuple(y.clone(memory_format=torch.channels_last) for y in [x.sin()] * 2),
    "views of one value": lambda x: ((y := x.sin())[:1], y.flatten(1)),
    "values of their own": lambda x: (x.sin(), x.cos()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_outputs_in_one_memory(name: str) -> None:
    image = torch.randn(2, 3, 4, 5)
    with FakeTensorMode() as mode:
        module = make_fx(PROGRAMS[name])(mode.from_tensor(image))
    torch._dynamo.reset()
    returned = torch.compile(PROGRAMS[name])(image)
    numbers: dict[int, int] = {}
    found = [numbers.setdefault(value.untyped_storage().data_ptr(), len(numbers)) for value in returned]
    assert memories_under_inductor(module.graph) == found

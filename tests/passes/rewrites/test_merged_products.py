"""Products of one input, computed as one: queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytestmark = pytest.mark.filterwarnings("ignore:frx applies rewrites")
PRODUCTS = ("aten.addmm.default", "aten.mm.default", "frx_graph.product.default", "mkldnn._linear_pointwise.default")


class Attention(nn.Module):
    """Self-attention with three projections; `values` may be of another width or source."""

    def __init__(self, *, bias: bool = True, width: int = 16, fused: bool = True, shared: bool = True) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(16, 16, bias=bias), nn.Linear(16, 16, bias=bias)
        self.v = nn.Linear(16, width, bias=bias)
        self.fused, self.shared = fused, shared

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        source = x if other is None else other
        q, k, v = (self._split(one(on)) for one, on in ((self.q, x), (self.k, source), (self.v, source)))
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return (torch.softmax(q.contiguous() @ k.transpose(-1, -2).contiguous(), -1) @ v.contiguous()).sum(1)

    @staticmethod
    def _split(x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], 2, -1).transpose(1, 2)


def sequence() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 5, 16)


def count_products(targets: list[str]) -> int:
    return sum(target in PRODUCTS for target in targets)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [16, 16 * 2])
def test_three_projections_are_one_product(freeze: Callable[..., object], bias: bool, width: int) -> None:
    frozen = freeze(Attention(bias=bias, width=width, fused=width == 16))
    frozen.run(sequence())
    assert ("merged_products", 3) in frozen.applied()
    assert count_products(frozen.targets()) == 1


def test_only_products_of_one_input_are_merged(freeze: Callable[..., object]) -> None:
    frozen = freeze(Attention())
    frozen.run(sequence(), sequence() + 1)
    assert ("merged_products", 2) in frozen.applied()
    assert count_products(frozen.targets()) == 2


class Written(nn.Module):
    """Two products of one input by parameters that are not transposed, as GPT-2 has them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.randn(16, 8)) for _ in range(2))
        self.bias = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        first, second = rows @ self.first, torch.addmm(self.bias, rows, self.second)
        third = rows @ self.second
        return torch.stack([one.view(2, 5, 8).transpose(0, 1).contiguous() for one in (first, second, third)])


def test_products_with_and_without_bias_are_groups_of_their_own(freeze: Callable[..., object]) -> None:
    frozen = freeze(Written())
    frozen.run(sequence())
    assert ("merged_products", 2) in frozen.applied()


class Read(nn.Module):
    """Two projections of one input, of which something else than attention reads one."""

    def __init__(self, read: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.read = nn.Linear(16, 16), nn.Linear(16, 16), read

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.read(self.first(x)), self.second(x).transpose(0, 1).contiguous()


@pytest.mark.parametrize(
    "read", [torch.relu, lambda x: x, lambda x: x.transpose(0, 1), lambda x: x @ x.transpose(1, 2)]
)
def test_a_result_that_others_read_stays(freeze: Callable[..., object], read: Callable[[Tensor], Tensor]) -> None:
    frozen = freeze(Read(read))
    frozen.run(sequence())
    assert "merged_products" not in dict(frozen.applied())
    assert frozen.reasons("merged_products")


class Gated(Attention):
    """Attention whose result a fourth projection of the input scales."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 16)

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        return super().forward(x, other) * torch.sigmoid(self.gate(x))


def test_the_rest_of_a_group_is_merged(freeze: Callable[..., object]) -> None:
    frozen = freeze(Gated())
    frozen.run(sequence())
    assert ("merged_products", 3) in frozen.applied()
    assert frozen.reasons("merged_products") == ["aten.sigmoid reads its result"]


class Indexed(nn.Module):
    """Projections of two rows, whose numbers are arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, i: int, j: int) -> tuple[Tensor, Tensor]:
        first, second = self.first(x[i]), self.second(x[j])
        return first.transpose(0, 1).contiguous(), second.transpose(0, 1).contiguous()


def test_rows_that_only_this_call_has_in_common_are_not_one_input(freeze: Callable[..., object]) -> None:
    frozen = freeze(Indexed())
    rows = torch.randn(9, 6, 16)
    for i, j in ((2, 3), (4, 4), (3, 5)):
        frozen.run(rows, i, j)


class Strided(nn.Module):
    """Projections that are addressed by `as_strided`, which a slice would move."""

    def __init__(self, *, attends: bool) -> None:
        super().__init__()
        self.first, self.second, self.attends = nn.Linear(16, 16), nn.Linear(16, 16), attends

    def forward(self, x: Tensor) -> Tensor:
        one, other = (made.as_strided((2, 2, 6, 8), (96, 8, 16, 1)) for made in (self.first(x), self.second(x)))
        if self.attends:
            return F.scaled_dot_product_attention(one, other, other)
        return one.transpose(1, 2).contiguous() + other.transpose(1, 2).contiguous()


@pytest.mark.parametrize("attends", [True, False])
def test_a_result_that_is_addressed_by_offsets_stays(freeze: Callable[..., object], attends: bool) -> None:
    frozen = freeze(Strided(attends=attends))
    frozen.run(torch.randn(2, 6, 16))
    assert "merged_products" not in dict(frozen.applied())


def test_scaled_products_stay(freeze: Callable[..., object]) -> None:
    class Scaled(Written):
        def forward(self, x: Tensor) -> Tensor:
            rows = x.flatten(0, 1)
            made = [torch.addmm(self.bias, rows, one, alpha=2) for one in (self.first, self.second)]
            return torch.stack([one.view(2, 5, 8).transpose(0, 1).contiguous() for one in made])

    frozen = freeze(Scaled())
    frozen.run(sequence())
    assert "merged_products" not in dict(frozen.applied())


def test_weights_that_may_change_are_not_merged(rewrite) -> None:
    (graph,) = rewrite(Attention(), sequence()).graphs
    assert "merged_products" not in [one.rewrite for one in graph.done.applied]

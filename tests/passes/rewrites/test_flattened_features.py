from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

pytestmark = [
    pytest.mark.filterwarnings("ignore:frx applies rewrites"),
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"),
]
Freeze = Callable[..., object]


class Head(nn.Module):
    def __init__(self, side: int = 4, *, activated: bool = False, volume: bool = False, returned: bool = False) -> None:
        super().__init__()
        kind = nn.Conv3d if volume else nn.Conv2d
        self.trunk = nn.Sequential(kind(3, 8, 3, padding=1), nn.ReLU(), kind(8, 6, 3, padding=1))
        self.first = nn.Linear(6 * side ** (3 if volume else 2), 5)
        self.second = nn.Linear(6 * side ** (3 if volume else 2), 7, bias=False)
        self.activated, self.returned = activated, returned

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.trunk(x)
        if self.activated:
            y = y.relu()
        features = y.flatten(1)
        returned = (features,) if self.returned else ()
        return (self.first(features), self.second(features), *returned)


def clones(frozen: object) -> int:
    return sum(
        node.kwargs.get("memory_format") is torch.contiguous_format for node in frozen.calls("aten.clone.default")
    )


@pytest.mark.parametrize("activated", [True, False])
@pytest.mark.parametrize("batch", [1, 2])
def test_features_are_a_view_of_the_image(freeze: Freeze, activated: bool, batch: int) -> None:
    frozen = freeze(Head(activated=activated))
    frozen.run(torch.randn(batch, 3, 4, 4))
    assert "flattened_features" in dict(frozen.applied())
    assert clones(frozen) == 0


def test_so_are_those_of_a_volume(freeze: Freeze) -> None:
    frozen = freeze(Head(volume=True))
    frozen.run(torch.randn(2, 3, 4, 4, 4))
    assert "flattened_features" in dict(frozen.applied())


def test_features_that_are_returned_keep_their_order(freeze: Freeze) -> None:
    frozen = freeze(Head(returned=True))
    frozen.run(torch.randn(2, 3, 4, 4))
    assert "the flattened features are returned" in frozen.reasons("flattened_features")
    assert clones(frozen) == 1


class Given(nn.Module):
    """A weight that may be another one in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 6, 3)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.convolution(x).flatten(1) @ weight


def test_non_constant_weights_keep_their_order(freeze: Freeze) -> None:
    frozen = freeze(Given())
    frozen.run(torch.randn(2, 3, 6, 6), torch.randn(96, 5))
    (reason,) = frozen.reasons("flattened_features")
    assert "an operator other than a product with a constant weight" in reason


def test_one_pixel_needs_no_copy(freeze: Freeze) -> None:
    frozen = freeze(Head(side=1))
    frozen.run(torch.randn(2, 3, 1, 1))
    assert "flattened_features" not in dict(frozen.applied())

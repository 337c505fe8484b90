from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from frx_graph.freezing.weight_guard import WeightGuard


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Linear(16, 32).to(torch.bfloat16))


def optimizer_step(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "in place": lambda model: model[0].weight.detach().mul_(2),
    "load_state_dict": lambda model: model.load_state_dict(model.state_dict()),
    "an optimizer": optimizer_step,
    ".data swapped": lambda model: setattr(model[0].weight, "data", model[0].weight.data.clone()),
    ".data transposed": lambda model: setattr(model[0].weight, "data", model[0].weight.data.transpose(2, 3)),
    ".data written": lambda model: model[0].weight.data.mul_(1.5),
    ".data pruned": lambda model: model[2].weight.data.mul_(torch.rand(32, 16) > 0.5),
    "a buffer": lambda model: model[1].running_mean.add_(1),
    "a cast": lambda model: model[0].to(torch.float64),
    "channels last": lambda model: model.to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_noticed(change: str) -> None:
    torch.manual_seed(0)
    model = network()
    watch = WeightGuard(model)
    assert watch.is_unchanged()
    CHANGES[change](model)
    assert not watch.is_unchanged()


def test_another_tensor_in_a_place_is_noticed_apart() -> None:
    model = network()
    watch = WeightGuard(model)
    assert not watch.has_replaced()
    model[0].bias = nn.Parameter(torch.zeros(16))
    assert watch.has_replaced()
    assert watch.is_unchanged()


def test_counts_of_batches_are_not_watched() -> None:
    model = network()
    watch = WeightGuard(model)
    model[1].num_batches_tracked.add_(1)
    assert watch.is_unchanged()


def test_a_module_without_tensors_never_changes() -> None:
    assert WeightGuard(nn.ReLU()).is_unchanged()


def test_memory_that_was_given_back_is_not_read() -> None:
    model = network()
    watch = WeightGuard(model)
    model[0].weight.untyped_storage().resize_(0)
    assert not watch.is_unchanged()


def test_read_only_access_is_not_treated_as_a_change() -> None:
    model = network().eval()
    watch = WeightGuard(model)
    model[1](model[0](torch.randn(1, 3, 8, 8))).sum().backward()
    model.state_dict()
    assert watch.is_unchanged()


def test_values_that_are_not_numbers_are_equal_to_themselves() -> None:
    model = nn.Linear(2, 2)
    model.weight.data.fill_(float("nan"))
    assert WeightGuard(model).is_unchanged()


@pytest.mark.parametrize(
    "tensor",
    [TwoTensor(torch.ones(2), torch.ones(2)), torch.ones(2, device="meta"), torch.eye(2).to_sparse()],
    ids=["wrapper", "meta", "sparse"],
)
def test_tensors_without_memory_of_their_own_are_refused(tensor: torch.Tensor) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("held", tensor)
    with pytest.raises(ValueError, match="without dense memory"):
        WeightGuard(model)


def test_tensors_that_count_no_writes_are_refused() -> None:
    with torch.inference_mode():
        model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="inference mode"):
        WeightGuard(model)


def test_a_tensor_without_a_type_of_integers_is_watched_without_samples() -> None:
    module = nn.Module()
    module.register_buffer("values", torch.zeros(8, dtype=torch.complex128))
    watch = WeightGuard(module)
    assert watch.is_unchanged()
    module.values.fill_(1j)
    assert not watch.is_unchanged()


def test_an_update_of_the_whole_model_through_data_is_noticed() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))
    watch = WeightGuard(model)
    assert watch.is_unchanged()
    for parameter in model.parameters():
        parameter.data.mul_(0.9)
    assert not watch.is_unchanged()


def test_a_tied_weight_is_watched_once_and_looked_for_in_both_places() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    watch = WeightGuard(model)
    assert watch.is_unchanged()
    model[1].weight = model[0].bias
    assert watch.has_replaced()

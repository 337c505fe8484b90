"""What is read of tensors' headers is what asking them would tell."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor, nn

from frx_graph.freezing import tensor_headers
from frx_graph.freezing.tensor_headers import TensorHeaders


@pytest.fixture(autouse=True, params=["read", "asked"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "asked":
        monkeypatch.setattr(tensor_headers, "_layout", lambda: None)
    return str(request.param)


def tensors() -> list[Tensor]:
    base = torch.randn(6, 4)
    return [
        nn.Parameter(torch.randn(3, 5)),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        base[1:, 2:],
        torch.tensor(1.5),
        torch.arange(7),
        torch.randn(5, dtype=torch.bfloat16),
        torch.randn(4, requires_grad=True) * 2,
        torch.randn(2, 1, 2, 1, 2, 3, 1),
    ]


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "in place": lambda tensor: tensor.detach().zero_(),
    "through an alias": lambda tensor: tensor.detach().view(tensor.shape).zero_(),
    ".data swapped": lambda tensor: setattr(tensor, "data", tensor.detach().clone()),
    "set_": lambda tensor: tensor.detach().set_(
        torch.zeros(100, dtype=tensor.dtype).untyped_storage(), 3, tensor.shape, tensor.stride()
    ),
}


def test_the_places_are_found_wherever_they_are_looked_for(way: str) -> None:
    if way == "read":
        places = tensor_headers._layout()
        assert places is not None
        tensor_headers._layout.cache_clear()
        with torch.inference_mode(), torch.device("meta"):
            assert tensor_headers._layout() == places


def test_what_lies_behind_them_is_not_looked_at(way: str) -> None:
    """In a thread's own memory a block of 32 bytes begins with the number 37, which one tensor's offset may be, too."""

    def look() -> list[object]:
        blocks, found = [], []
        for count in range(100):
            blocks.append([bytes(20) for _ in range(count)])
            tensor_headers._layout.cache_clear()
            found.append(tensor_headers._layout())
        return found

    if way == "read":
        with ThreadPoolExecutor(2) as threads:
            for found in [threads.submit(look) for _ in range(2)]:
                assert None not in found.result()


def test_what_counts_no_writes_is_refused() -> None:
    with torch.inference_mode():
        uncounted = torch.zeros(3)
    with pytest.raises(ValueError, match="count no writes"):
        TensorHeaders([uncounted])


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("index", range(len(tensors())))
def test_each_change_is_seen(index: int, change: str) -> None:
    watched = tensors()
    headers = TensorHeaders(watched)
    assert headers.unchanged()
    with torch.no_grad():
        CHANGES[change](watched[index])
    assert not headers.unchanged()


def test_another_place_in_the_same_storage_is_seen() -> None:
    tensor = torch.randn(10)[:4]
    headers = TensorHeaders([tensor])
    tensor.data = torch.empty(0).set_(tensor.untyped_storage(), 2, (4,), (1,))
    assert not headers.unchanged()


VIEWS: dict[str, tuple[Tensor, Callable[[Tensor], Tensor]]] = {
    "transposed": (torch.randn(8, 8), Tensor.t),
    "transposed in channels last": (
        torch.randn(8, 8, 3, 3).to(memory_format=torch.channels_last),
        lambda data: data.transpose(2, 3),
    ),
    "narrowed": (torch.randn(8, 8), lambda data: data[:4]),
    "expanded": (torch.randn(8, 8), lambda data: data[:1].expand(8, 8)),
    "another dimension": (torch.randn(8), lambda data: data[:, None]),
    "no dimension": (torch.randn(1), lambda data: data[0]),
    "from no dimension": (torch.tensor(1.0), lambda data: data[None]),
    "six dimensions": (torch.randn(2, 2, 2, 2, 2, 2), lambda data: data.transpose(4, 5)),
    "from five dimensions to six": (torch.randn(2, 2, 2, 2, 2), lambda data: data[None]),
    "from six dimensions to five": (torch.randn(2, 2, 2, 2, 2, 1), lambda data: data[..., 0]),
    "another dtype": (torch.randn(8), lambda data: data.view(torch.int32)),
    "conjugated": (torch.randn(4, dtype=torch.complex64), Tensor.conj),
    "negated": (torch.randn(4), torch._neg_view),
}


@pytest.mark.parametrize("case", VIEWS)
def test_another_view_of_the_same_memory_is_seen(case: str) -> None:
    values, view = VIEWS[case]
    watched = [tensor.detach().clone() for tensor in (torch.randn(3), values, values)]
    headers = TensorHeaders(watched)
    same = watched[1].data
    watched[1].data = same.detach()
    assert headers.unchanged()
    watched[1].data = view(same)
    assert not headers.unchanged()
    watched[1].data = same
    assert headers.unchanged()


def test_tensors_that_are_swapped_are_seen() -> None:
    one, other = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
    headers = TensorHeaders([one])
    torch.utils.swap_tensors(one, other)
    del other
    gc.collect()
    for _ in range(3):
        assert not headers.unchanged()


def test_resized_memory_is_seen() -> None:
    tensor = torch.randn(4)
    headers = TensorHeaders([tensor])
    with torch.no_grad():
        tensor.untyped_storage().resize_(1 << 20)
    assert not headers.unchanged()


def test_what_only_looks_changes_nothing() -> None:
    watched = tensors()
    headers = TensorHeaders(watched)
    kept = [(tensor * 2, tensor.detach(), tensor.view(-1) if tensor.is_contiguous() else tensor) for tensor in watched]
    watched[0].sum().backward()
    watched[0].register_hook(lambda gradient: gradient)
    watched[1].noticed = True
    del kept
    gc.collect()
    assert headers.unchanged()


def test_no_tensors_never_change_and_empty_ones_lie_nowhere() -> None:
    assert TensorHeaders([]).unchanged()
    empty = torch.empty(0, 3)
    headers = TensorHeaders([empty])
    assert headers.unchanged()
    empty.zero_()
    assert not headers.unchanged()


def turned_round(tensor: Tensor) -> None:
    """Twice, it is what it was."""
    tensor.data = tensor.detach().permute(tuple(reversed(range(tensor.dim()))))


STEPS = {**CHANGES, "nothing": lambda _: None, "turned round": turned_round}


@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from(sorted(STEPS))), max_size=6))
def test_it_says_what_asking_says(steps: list[tuple[int, str]]) -> None:
    watched = tensors()
    headers = TensorHeaders(watched)

    def asked() -> list[tuple[object, ...]]:
        return [(t.data_ptr(), t._version, t.shape, t.stride(), t.is_conj(), t.is_neg()) for t in watched]

    before = asked()
    with torch.no_grad():
        for index, change in steps:
            STEPS[change](watched[index])
            assert headers.unchanged() is (asked() == before)

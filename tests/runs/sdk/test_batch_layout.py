"""What is recorded of a batch is what its tensors look like, whatever it is made of."""

from __future__ import annotations

import warnings
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import frx_graph
from frx_graph.runs.sdk.batch_layout import DEEPEST, MOST_TENSORS, Layout, count_tensors, read_layout
from frx_graph.runs.sdk.recorder import MOST_LAYOUTS

Recorded = Callable[..., list[dict[str, Any]]]
Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Sample:
    image: Tensor
    label: Any


class Encoding(UserDict[str, Any]):
    """As a tokenizer's result is."""


def named(layout: Layout) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, shape, _, _ in layout}


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.zeros(2, 3), {"batch": (2, 3)}),
        (torch.nn.Parameter(torch.zeros(4)), {"batch": (4,)}),
        ((torch.zeros(2), torch.zeros(3)), {"0": (2,), "1": (3,)}),
        ([torch.zeros(2), "text", 5, None, torch.zeros(1)], {"0": (2,), "4": (1,)}),
        ({"a": torch.zeros(2), 7: torch.zeros(3)}, {"a": (2,), "7": (3,)}),
        (Pair(torch.zeros(2), [torch.zeros(1)]), {"left": (2,), "right.0": (1,)}),
        (Sample(torch.zeros(2), {"y": torch.zeros(1)}), {"image": (2,), "label.y": (1,)}),
        (Encoding(input_ids=torch.zeros(2, 5)), {"input_ids": (2, 5)}),
        (OrderedDict(x=(torch.zeros(1),)), {"x.0": (1,)}),
        ([["text"] * 1000, torch.zeros(2)], {"1": (2,)}),
        ("text", {}),
        (None, {}),
        (iter([torch.zeros(1)]), {}),
        (Sample, {}),
    ],
)
def test_tensors_and_their_names(batch: object, expected: dict[str, tuple[int, ...]]) -> None:
    assert named(read_layout(batch)) == expected


TENSORS = st.builds(
    lambda shape, turned: torch.zeros(shape).T if turned and len(shape) == 2 else torch.zeros(shape),
    st.lists(st.integers(0, 4), max_size=3),
    st.booleans(),
)
BATCHES = st.recursive(
    TENSORS | st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4).map(Encoding)
        | st.builds(Pair, inner, inner)
        | st.builds(Sample, inner, inner)
    ),
    max_leaves=12,
)


def tensors_of(batch: Any, depth: int = 0) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    if depth >= DEEPEST:
        return []
    if isinstance(batch, dict | UserDict):
        members = list(batch.values())
    elif isinstance(batch, list | tuple):
        members = list(batch)
    elif isinstance(batch, Sample):
        members = [batch.image, batch.label]
    else:
        return []
    return [tensor for member in members for tensor in tensors_of(member, depth + 1)]


@given(BATCHES)
def test_any_nesting_gives_its_tensors_in_their_order(batch: Any) -> None:
    expected = [(tuple(t.shape), t.stride(), t.dtype) for t in tensors_of(batch)]
    assert [(tuple(shape), strides, dtype) for _, shape, strides, dtype in read_layout(batch)] == expected
    assert read_layout(batch) == read_layout(batch)
    hash(read_layout(batch))
    assert count_tensors(batch) == len(read_layout(batch))


def test_a_batch_is_looked_at_only_so_far() -> None:
    assert len(read_layout([torch.zeros(1)] * 1000)) == MOST_TENSORS
    nested: list[Any] = [torch.zeros(1)]
    for _ in range(100):
        nested = [nested]
    assert read_layout(nested) == ()
    cyclic: list[Any] = [torch.zeros(1)]
    cyclic.append(cyclic)
    assert len(read_layout(cyclic)) <= MOST_TENSORS

    class Endless(dict[str, Any]):
        def items(self) -> Any:
            while True:
                yield "x", 1

    assert (read_layout(Endless()), count_tensors(Endless())) == ((), 0)
    assert count_tensors(cyclic) <= DEEPEST + 1


def test_all_tensors_of_a_large_batch_are_counted(recorded: Recorded) -> None:
    targets = [{"boxes": torch.zeros(3, 4), "labels": torch.zeros(3)} for _ in range(100)]
    with frx_graph.step_context(0, (torch.zeros(2), targets)):
        pass
    with frx_graph.step_context(1, {"x": torch.zeros(2)}):
        pass
    payloads = [event["payload"] for event in recorded("shape_snapshot")]
    assert [(len(payload["shapes"]), payload["tensor_count"]) for payload in payloads] == [(MOST_TENSORS, 201), (1, 1)]


def test_tensors_without_strides_or_shape() -> None:
    sparse = torch.eye(3).to_sparse()
    ((name, shape, strides, dtype),) = read_layout({"s": sparse})
    assert (name, tuple(shape), strides, dtype) == ("s", (3, 3), None, torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    assert "1" in named(read_layout([nested, torch.zeros(1)]))
    (expanded,) = read_layout(torch.zeros(3, 1).expand(3, 4))
    assert expanded[2] == (1, 0)


def test_layouts_are_distinguished_by_strides_and_dtypes() -> None:
    wide = torch.zeros(2, 3, 4, 4)
    layouts: dict[Layout, int] = {}
    batches = [wide, wide.to(memory_format=torch.channels_last), wide.half(), wide.clone(), wide[:1]]
    assert [layouts.setdefault(read_layout(batch), len(layouts)) for batch in batches] == [0, 1, 2, 0, 3]


def test_only_so_many_layouts_are_kept(recorded: Recorded) -> None:
    for number in range(MOST_LAYOUTS + 20):
        with frx_graph.step_context(number, torch.zeros(number + 1)):
            pass
    with frx_graph.step_context(0, torch.zeros(1)):
        pass
    numbers = [event["payload"]["batch_layout"] for event in recorded("step_end")]
    assert numbers == [*range(MOST_LAYOUTS), *[None] * 20, 0]
    assert len(recorded("shape_snapshot")) == MOST_LAYOUTS
    (warning,) = recorded("warning_annotation")
    assert f"more than {MOST_LAYOUTS} different layouts" in warning["payload"]["message"]


def test_batch_that_raises_is_reported_once_and_the_program_continues(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(dict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError("no items")

    for number in range(3):
        with frx_graph.step_context(number, Broken(), torch.nn.Linear(1, 1)):
            pass
    assert len(recorded("step_end")) == 3
    assert capsys.readouterr().err.splitlines() == [
        "frx: layouts of some steps are not recorded: RuntimeError: no items"
    ]


def test_batch_is_not_kept_alive(recorded: Recorded) -> None:
    import weakref

    batch = {"x": torch.zeros(3)}
    watch = weakref.ref(batch["x"])
    with frx_graph.step_context(0, batch) as step:
        del batch
        assert watch() is None
    assert step.number == 0


def test_sizes_of_batches(recorded: Recorded) -> None:
    batches = [(torch.zeros(4, 2), torch.zeros(4)), (torch.zeros(4, 2), torch.zeros(3)), torch.zeros(())]
    for number, batch in enumerate(batches):
        with frx_graph.step_context(number, batch):
            pass
    assert [event["payload"]["batch_size"] for event in recorded("shape_snapshot")] == [4, None, None]

"""A timed loader gives what the loader gives, and is to others what the loader is."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import frx_graph
from frx_graph.runs.sdk.session import AutopilotSession

Recorded = Callable[..., list[dict[str, Any]]]


def stages(recorded: Recorded) -> list[str]:
    return [event["payload"]["stage"] for event in recorded("dataloader_span")]


def test_batches_pass_as_they_are(recorded: Recorded) -> None:
    batches = [{"x": object()}, None, (1, 2)]
    timed = frx_graph.instrument_dataloader(batches)
    assert timed is not batches
    for _ in range(2):
        assert [id(batch) for batch in timed] == [id(batch) for batch in batches]
    assert stages(recorded) == ["begin", "next", "next", "next", "end"] * 2


def test_loader_looks_like_the_one_that_it_times(recorded: Recorded) -> None:
    loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=4)
    timed = frx_graph.instrument_dataloader(loader)
    assert isinstance(timed, DataLoader)
    assert (len(timed), timed.batch_size, timed.dataset) == (3, 4, loader.dataset)
    assert repr(timed) == repr(loader)
    timed.worker_init_fn = print
    assert loader.worker_init_fn is print
    with pytest.raises(AttributeError, match="nothing"):
        _ = timed.nothing  # type: ignore[attr-defined]
    assert torch.cat([batch[0] for batch in timed]).tolist() == list(range(10))
    assert recorded("dataloader_span")[1]["payload"]["batch_size"] == 4


def test_any_iterable_can_be_timed(recorded: Recorded) -> None:
    def endless() -> Iterator[int]:
        yield from range(100)

    timed = frx_graph.instrument_dataloader(endless())
    with pytest.raises(TypeError):
        len(timed)  # type: ignore[arg-type]
    assert next(iter(timed)) == 0
    assert sum(timed) == sum(range(1, 100))
    assert frx_graph.instrument_dataloader([5, 6])[1] == 6


def test_errors_of_the_loader_pass(recorded: Recorded) -> None:
    error = OSError("the disk is gone")

    def broken() -> Iterator[int]:
        yield 1
        raise error

    batches = iter(frx_graph.instrument_dataloader(broken()))
    assert next(batches) == 1
    with pytest.raises(OSError) as raised:
        next(batches)
    assert raised.value is error
    assert stages(recorded) == ["begin", "next"]


def test_in_another_process_it_is_the_loader(recorded: Recorded) -> None:
    assert pickle.loads(pickle.dumps(frx_graph.instrument_dataloader([1, 2]))) == [1, 2]


class Batches:
    batch_size = 2

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        yield from range(self.count)


def test_loader_held_elsewhere_is_timed_within_the_block(recorded: Recorded) -> None:
    loader, other, seen = Batches(3), Batches(1), list[int]()
    with AutopilotSession.from_env().time_in_place(loader, seen.append):
        assert isinstance(loader, Batches)
        assert list(loader) == [0, 1, 2]
        assert list(other) == [0]
    assert type(loader) is Batches
    assert list(loader) == [0, 1, 2]
    assert seen == [0, 1, 2]
    assert stages(recorded) == ["begin", "next", "next", "next", "end"]


def test_loader_whose_class_must_stay_is_not_timed(trace: Any) -> None:
    loader = [1, 2]
    with AutopilotSession.from_env().time_in_place(loader):
        assert list(loader) == [1, 2]
    assert type(loader) is list


def test_block_that_fails_gives_the_class_back(trace: Any) -> None:
    loader = Batches(1)
    with pytest.raises(ZeroDivisionError), AutopilotSession.from_env().time_in_place(loader):
        raise ZeroDivisionError
    assert type(loader) is Batches


def test_loader_with_lasting_workers_lasts(recorded: Recorded) -> None:
    loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=2, num_workers=1, persistent_workers=True)
    with AutopilotSession.from_env().time_in_place(loader):
        for _ in range(2):
            assert [batch[0].tolist() for batch in loader] == [[0, 1], [2, 3]]
    assert stages(recorded) == ["begin", "next", "next", "end"] * 2
    payload = recorded("dataloader_span")[1]["payload"]
    assert (payload["num_workers"], payload["prefetch_factor"], payload["persistent_workers"]) == (1, 2, True)


class Resets:
    """An iterator that begins anew whenever it is iterated, as loaders that decode on a GPU do."""

    def __iter__(self) -> Resets:
        self.left = 2
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left


def test_an_iterator_stays_one(recorded: Recorded) -> None:
    timed = frx_graph.instrument_dataloader(iter([1, 2, 3]))
    assert next(timed) == 1
    assert list(timed) == [2, 3]
    assert stages(recorded) == ["next", "begin", "next", "next", "end"]
    assert next(frx_graph.instrument_dataloader(number for number in (7, 8))) == 7


def test_restartable_iterator_still_restarts(recorded: Recorded) -> None:
    timed = frx_graph.instrument_dataloader(Resets())
    assert [list(timed), list(timed)] == [[1, 0], [1, 0]]
    assert next(iter(timed)) == 1
    assert next(timed) == 0

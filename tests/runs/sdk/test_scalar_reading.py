"""A value that a device computes later is read when it has come, and nobody waits for it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import frx_graph
from frx_graph.runs.sdk.scalar_reading import _NOT_YET, _PLACES, DeviceScalars, get_number

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture
def scalars() -> DeviceScalars:
    """Ordinary memory, into which copies arrive at once."""
    return DeviceScalars(pinned=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [0.0, -1.5, math.inf, math.nan, 2.0**-20])
def test_value_arrives(dtype: torch.dtype, number: float, scalars: DeviceScalars) -> None:
    pending = scalars.fetch(torch.tensor([number], dtype=dtype))
    assert pending is not None
    assert pending.is_ready()
    value = pending.get_value()
    assert value is not None
    assert value == number or (math.isnan(number) and math.isnan(value))
    assert get_number(pending) is value


@pytest.mark.parametrize("dtype", DTYPES)
def test_value_that_has_not_come_is_unknown(dtype: torch.dtype, scalars: DeviceScalars) -> None:
    pending = scalars.fetch(torch.tensor(1.0, dtype=dtype))
    places = scalars._memory[str(dtype)]
    place = places.take()
    assert place is not None
    assert math.isnan(places.tensors[place].item())
    assert places.words[place] == _NOT_YET[str(dtype)][1]
    waiting = type(pending)(places, place)  # type: ignore[call-arg]  # the one class that there is
    assert not waiting.is_ready()
    assert waiting.get_value() is None
    places.tensors[place].fill_(3.0)
    assert waiting.is_ready()
    assert waiting.get_value() == 3.0
    places.tensors[place].fill_(4.0)
    assert waiting.get_value() == 3.0


def test_slots_are_reused_and_a_full_buffer_gives_none(scalars: DeviceScalars) -> None:
    one = torch.tensor(1.0)
    kept = [scalars.fetch(one) for _ in range(_PLACES)]
    assert scalars.fetch(one) is None
    assert all(pending is not None and pending.get_value() == 1.0 for pending in kept)
    again = [scalars.fetch(torch.tensor(float(i))) for i in range(_PLACES)]
    assert [get_number(pending) for pending in again] == [float(i) for i in range(_PLACES)]


@pytest.mark.parametrize("tensor", [torch.zeros(2), torch.zeros(0), torch.tensor(1), torch.tensor(1j)])
def test_unsupported_tensor_is_not_read(tensor: torch.Tensor, scalars: DeviceScalars) -> None:
    assert scalars.fetch(tensor) is None


def test_failed_copy_gives_its_place_back(scalars: DeviceScalars) -> None:
    assert get_number(scalars.fetch(torch.tensor(1.0))) == 1.0
    for _ in range(2 * _PLACES):
        with pytest.raises(NotImplementedError):
            scalars.fetch(torch.zeros((), device="meta"))
    assert get_number(scalars.fetch(torch.tensor(2.0))) == 2.0


def test_loss_is_read_without_its_history(scalars: DeviceScalars) -> None:
    loss = torch.tensor(2.0, requires_grad=True) * 3
    with torch.inference_mode():
        assert get_number(scalars.fetch(loss)) == 6.0
    assert get_number(scalars.fetch(loss)) == 6.0
    assert not any(place.requires_grad for place in scalars._memory["torch.float32"].tensors)


def test_threads_have_places_of_their_own(scalars: DeviceScalars) -> None:
    wrong: list[object] = []

    def read(first: int) -> None:
        for number in range(first, first + 300):
            value = get_number(scalars.fetch(torch.tensor(float(number))))
            if value != number:
                wrong.append((number, value))

    threads = [threading.Thread(target=read, args=(1000 * i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_device_is_not_waited_for(recorded: Callable[..., list[dict[str, Any]]]) -> None:
    torch.cuda.synchronize()
    for number in range(20):
        with frx_graph.step_context(number) as step:
            torch.cuda._sleep(20_000_000)
            step.record(loss=torch.full((), float(number), device="cuda", requires_grad=True) * 1)
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    ends = {event["step_id"]: event["payload"]["loss"] for event in recorded("step_end")}
    assert ends == {number: float(number) for number in range(20)}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_captured_graph_is_not_disturbed(recorded: Callable[..., list[dict[str, Any]]]) -> None:
    value = torch.ones((), device="cuda")
    with frx_graph.step_context(0) as step:
        step.record(loss=value)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), frx_graph.step_context(1) as step:
        step.record(loss=value * 2)
    graph.replay()
    torch.cuda.synchronize()
    assert [event["payload"]["loss"] for event in recorded("step_end")] == [1.0, None]

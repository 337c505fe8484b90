"""A parameter that comes to look otherwise is seen within a round of the parameters."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import frx_graph
from frx_graph.runs.sdk.parameter_layout import EACH, MOST_MODELS, WatchedModels

Recorded = Callable[..., list[dict[str, Any]]]


def step_with(model: Any, count: int) -> None:
    for number in range(count):
        with frx_graph.step_context(number, None, model):
            pass


def network(layers: int = 20) -> nn.Module:
    return nn.Sequential(*(nn.Conv2d(3, 3, 3) for _ in range(layers)))


def test_all_are_shown_once_and_a_change_when_their_turn_comes(recorded: Recorded) -> None:
    model = network()
    step_with(model, 100)
    (first,) = recorded("shape_snapshot")
    assert list(first["payload"]["shapes"]) == [name for name, _ in model.named_parameters()]
    model.to(memory_format=torch.channels_last)
    step_with(model, 40 + EACH)
    later = [event["payload"] for event in recorded("shape_snapshot")[1:]]
    strides = {name: stride for payload in later for name, stride in payload["strides"].items()}
    assert strides == {f"{i}.weight": [27, 1, 9, 3] for i in range(20)}
    assert all(len(payload["shapes"]) <= EACH for payload in later)


def test_replaced_parameter_is_seen(recorded: Recorded) -> None:
    model = network(1)
    step_with(model, 1)
    model[0].bias = nn.Parameter(torch.zeros(3, dtype=torch.float64))  # type: ignore[operator, index]
    step_with(model, EACH)
    assert recorded("shape_snapshot")[-1]["payload"]["dtypes"] == {"0.bias": "float64"}


def test_models_of_one_kind_have_names_of_their_own(recorded: Recorded) -> None:
    models = [nn.Linear(1, 1), nn.Linear(2, 2), network(1)]
    for model in models:
        step_with(model, 3)
    assert [event["payload"]["model_name"] for event in recorded("shape_snapshot")] == [
        *("Linear", "Linear#2", "Sequential")
    ]


def test_model_is_not_kept_alive() -> None:
    watched = WatchedModels()
    model = network(1)
    watch = watched.get_due_watch(model)
    assert watch is not None
    assert len(watch.find_changed()) == 2
    del model
    gc.collect()
    assert watched._watches == {}
    assert watch.find_changed() == ()


def test_shared_parameter_is_shown_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    watch = WatchedModels().get_due_watch(model)
    assert watch is not None
    assert [name for name, *_ in watch.find_changed()] == ["0.weight", "0.bias", "1.bias"]


@pytest.mark.parametrize("model", [lambda x: x, 5, "model", object()])
def test_non_module_has_no_parameter_layout(model: object, recorded: Recorded) -> None:
    step_with(model, 2)
    assert recorded("shape_snapshot") == []
    assert len(recorded("step_end")) == 2


def test_models_beyond_the_bound_are_not_watched() -> None:
    watched = WatchedModels()
    models = [nn.Linear(1, 1) for _ in range(MOST_MODELS + 1)]
    assert [watched.get_due_watch(model) is None for model in models] == [*[False] * MOST_MODELS, True]


def test_two_models_in_turn_are_both_looked_at() -> None:
    watched, models = WatchedModels(), [nn.Linear(1, 1), nn.Linear(1, 1)]
    looked = [[], []]  # type: list[list[int]]
    for step in range(4 * EACH):
        watch = watched.get_due_watch(models[step % 2])
        if watch is not None:
            watch.find_changed()
            looked[step % 2].append(step)
    assert [len(steps) for steps in looked] == [2, 2]

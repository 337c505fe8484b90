"""The options of the backend, checked where they enter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._inductor
from pydantic import ValidationError
from torch import nn

import frx_graph
from frx_graph.errors import OptionError
from frx_graph.options import BackendOptions, check_inner, check_together, parse_backend_options


def test_without_options_inductor_compiles_and_nothing_is_printed() -> None:
    assert parse_backend_options(None, None) == BackendOptions() == BackendOptions(mode="apply", inner="inductor")


def test_torch_compiles_mode_is_the_inner_backends() -> None:
    checked = parse_backend_options({"mode": "advise"}, "max-autotune")
    assert (checked.mode, checked.inner_mode) == ("advise", "max-autotune")


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"iner": "eager"}, "unknown option 'iner'", "did you mean 'inner'?"),
        (
            {"zzz": 1},
            "unknown option 'zzz'",
            "known options: mode, policy, plan, freeze, pin_strides, pool_allocations, for, inner, "
            "inner_mode, inner_options",
        ),
        ({7: 1}, "unknown option 7", "known options"),
        ({"mode": "advice"}, "option 'mode'", "given: 'advice'"),
        ({"inner_options": 3}, "option 'inner_options'", "given: 3"),
    ],
)
def test_a_wrong_option_names_itself_and_what_to_do(options: dict[Any, Any], message: str, hint: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_backend_options(options, None)
    assert caught.value.message.startswith(message)
    assert caught.value.hint.startswith(hint)


def test_checked_options_stay_as_they_are() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        parse_backend_options({"inner": "eager"}, None).inner = "inductor"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["eager", "aot_eager", "inductor"])
def test_every_backend_of_torch_may_be_the_inner_one(name: str) -> None:
    check_inner(name)


@pytest.mark.parametrize(
    ("name", "hint"), [("inductr", "did you mean 'inductor'?"), ("frx", "known: "), ("qqqqqq", "known: ")]
)
def test_another_inner_backend_is_refused_with_the_nearest_name(name: str, hint: str) -> None:
    with pytest.raises(OptionError, match="cannot be the inner backend") as caught:
        check_inner(name)
    assert caught.value.hint.startswith(hint)
    assert "frx" not in caught.value.hint


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"inner": "inductr"}, "did you mean 'inductor'?"),
        ({"inner": "eager", "inner_options": {"max_autotune": True}}, "takes neither"),
        ({"inner": "eager", "inner_mode": "max-autotune", "plan": "all"}, "takes neither"),
        ({"inner": "aot_ts", "plan": "all"}, "no plan can be given to inner backend 'aot_ts'"),
        ({"inner": "aot_ts", "mode": "autopilot"}, "cannot try anything under inner backend 'aot_ts'"),
        ({"mode": "autopilot", "freeze": True}, "does not try frozen weights"),
        ({"mode": "autopilot", "inner_options": {"max_autotune": False}}, "with inner_options"),
        ({"for": "h100"}, "option 'for' names the GPU of advice"),
        ({"mode": "advise", "for": "h10"}, "no GPU is known by the name 'h10'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        check_together(parse_backend_options(options, None))


@pytest.mark.parametrize(
    ("mode", "options", "said", "hint"),
    [
        ("turbo", {}, "unknown mode 'turbo'", "known: default, "),
        ("max-autotun", {}, "unknown mode 'max-autotun'", "did you mean 'max-autotune'?"),
        (None, {"max_autotun": True}, "unknown inner option 'max_autotun'", "did you mean 'max_autotune'?"),
        (None, {"qqqqqq": True}, "unknown inner option 'qqqqqq'", "torch._inductor.list_options"),
        (None, {"max-autotune": "yes"}, "inner option 'max-autotune' for Inductor: ", ""),
    ],
)
def test_what_inductor_does_not_know_is_refused_when_compiling_is_asked_for(
    mode: str | None, options: dict[str, Any], said: str, hint: str
) -> None:
    with pytest.raises(OptionError) as caught:
        frx_graph.compile(nn.Linear(2, 2), mode=mode, options={"inner_options": options})
    assert caught.value.message.startswith(said)
    assert caught.value.hint.startswith(hint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", [None, "", *torch._inductor.list_mode_options()])
def test_every_mode_of_inductor_is_one(mode: str | None) -> None:
    check_together(parse_backend_options({"inner_options": {"triton.cudagraphs": False, "max-autotune": True}}, mode))


def test_non_mapping_options_are_refused() -> None:
    with pytest.raises(OptionError, match="options is a list, not a mapping"):
        frx_graph.compile(nn.Linear(2, 2), options=["plan"])  # type: ignore[arg-type]


def test_backends_that_fail_on_purpose_are_not_listed() -> None:
    with pytest.raises(OptionError) as caught:
        check_inner("qqqqqq")
    assert "eager" in caught.value.hint
    assert "TESTING_ONLY" not in caught.value.hint


@pytest.mark.parametrize("plan", [None, "solved"])
@pytest.mark.parametrize(
    "options", [{"inner": "aot_eager"}, {"inner_mode": "max-autotune", "inner_options": {"debug": True}}]
)
def test_options_that_go_together_are_not(options: dict[str, Any], plan: str | None) -> None:
    check_together(parse_backend_options({**options, "plan": plan}, None))

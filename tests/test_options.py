"""The options of the backend, checked where they enter."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from frx_graph.errors import OptionError
from frx_graph.options import BackendOptions, backend_options, check_inner, check_together


def test_without_options_inductor_compiles_and_nothing_is_printed() -> None:
    assert backend_options(None, None) == BackendOptions() == BackendOptions(mode="apply", inner="inductor")


def test_torch_compiles_mode_is_the_inner_backends() -> None:
    checked = backend_options({"mode": "advise"}, "max-autotune")
    assert (checked.mode, checked.inner_mode) == ("advise", "max-autotune")


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"iner": "eager"}, "unknown option 'iner'", "did you mean 'inner'?"),
        ({"zzz": 1}, "unknown option 'zzz'", "known options: mode, plan, freeze, inner, inner_mode, inner_options"),
        ({7: 1}, "unknown option 7", "known options"),
        ({"mode": "advice"}, "option 'mode'", "given: 'advice'"),
        ({"inner_options": 3}, "option 'inner_options'", "given: 3"),
    ],
)
def test_a_wrong_option_names_itself_and_what_to_do(options: dict[Any, Any], message: str, hint: str) -> None:
    with pytest.raises(OptionError) as caught:
        backend_options(options, None)
    assert caught.value.message.startswith(message)
    assert caught.value.hint.startswith(hint)


def test_checked_options_stay_as_they_are() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        backend_options({"inner": "eager"}, None).inner = "inductor"  # type: ignore[misc]


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
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        check_together(backend_options(options, None))


@pytest.mark.parametrize("plan", [None, "solved"])
@pytest.mark.parametrize(
    "options", [{"inner": "aot_eager"}, {"inner_mode": "max-autotune", "inner_options": {"debug": True}}]
)
def test_options_that_go_together_are_not(options: dict[str, Any], plan: str | None) -> None:
    check_together(backend_options({**options, "plan": plan}, None))

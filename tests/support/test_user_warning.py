"""Our warnings point at the line of the user's that led to them."""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import frx_graph
from frx_graph import backend
from frx_graph.capture.recorder import GraphRecorder
from frx_graph.support import user_warning

X = torch.ones(1, 3)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    backend.clear()


class Written(nn.Module):
    """A module whose own lines Dynamo compiles."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def warned(call: Callable[[], object], about: str) -> list[tuple[str, str]]:
    """File and line of each warning about this."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    found = [(each.filename, each.lineno) for each in caught if about in str(each.message)]
    return [(file, linecache.getline(file, line).strip()) for file, line in found]


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(3, 3)), Written()], ids=["torch's lines", "the user's"])
def test_a_plan_that_is_not_proved(model: nn.Module, freeze: bool) -> None:
    options = {"plan": "all", "inner": "eager", "freeze": freeze}
    compiled = frx_graph.compile(model.eval(), options=options)
    with torch.no_grad():
        ((file, line),) = warned(lambda: compiled(X), "no trial has proved")
    assert file == __file__
    assert line


def test_a_plan_under_torch_compile() -> None:
    compiled = torch.compile(nn.Sequential(nn.Linear(3, 3)), backend="frx", options={"plan": "all", "inner": "eager"})
    found = warned(lambda: compiled(X), "no trial has proved")
    assert found == [(__file__, 'found = warned(lambda: compiled(X), "no trial has proved")')]


def test_where_warnings_are_errors_programs_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object, **_how: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(GraphRecorder, "note", broken)
    model = nn.Sequential(nn.Linear(3, 3)).eval()
    compiled = frx_graph.compile(model, options={"plan": "all", "inner": "eager"})
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(X), model(X))


def test_a_warning_from_lines_of_no_module() -> None:
    namespace: dict[str, object] = {"warn": user_warning.warn_user}
    exec("def call():\n    warn('nothing has a name here')", namespace)
    del namespace["__builtins__"]
    with pytest.warns(RuntimeWarning, match="nothing has a name here"):
        namespace["call"]()  # type: ignore[operator]

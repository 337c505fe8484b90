"""Loading `module:callable` and `file.py:callable`: what works, and one clear error for everything that does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from frx_graph.advisor.target import Workload, load_target, place
from frx_graph.errors import TargetError

_GOOD = """
import torch
from helper_of_target import width
def build():
    return torch.nn.Linear(width, 2), (torch.randn(3, width),)
def sized(batch, size=4, *, deep=False):
    return torch.nn.Linear(size, 2), (torch.randn(batch, size),)
def with_kwargs():
    return torch.nn.Linear(width, 2), [], {"input": torch.randn(3, width)}
def one():
    return torch.nn.Linear(2, 2)
def not_callable_model():
    return 3, ()
def bad_args():
    return torch.nn.Linear(2, 2), torch.randn(2)
def bad_kwargs():
    return torch.nn.Linear(2, 2), (), [1]
def with_optimizer():
    model = torch.nn.Linear(2, 2)
    return model, (torch.randn(1, 2),), {}, torch.optim.SGD(model.parameters(), lr=0.1)
def bad_optimizer():
    return torch.nn.Linear(2, 2), (), {}, "SGD"
def raises():
    raise RuntimeError("first line\\nsecond line")
def exits():
    raise SystemExit(3)
class Odd(BaseException):
    pass
def odd():
    raise Odd("odd one")
value = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "target_file.py").write_text(_GOOD)
    (tmp_path / "helper_of_target.py").write_text("width = 4\n")
    (tmp_path / "broken_file.py").write_text("import torch\nraise ValueError('on import')\n")
    (tmp_path / "syntax_file.py").write_text("def f(:\n")
    return tmp_path


def test_a_file_with_a_neighbour_is_loaded(folder: Path) -> None:
    workload = load_target(f"{folder}/target_file.py:build")
    assert workload.args[0].shape == (3, 4)
    assert workload.kwargs == {}


def test_a_callable_is_called_with_sizes(folder: Path) -> None:
    target = f"{folder}/target_file.py:sized"
    assert load_target(target, {"batch": 3}).args[0].shape == (3, 4)
    assert load_target(target, {"batch": 2, "size": 6}).args[0].shape == (2, 6)


@pytest.mark.parametrize(
    ("name", "sizes", "said"),
    [
        ("sized", {"size": 6}, "does not take size: TypeError: missing a required argument: 'batch'"),
        ("sized", {"batch": 1, "sixe": 6}, "it takes batch, size, deep"),
        ("build", {"batch": 1}, "it takes nothing"),
    ],
)
def test_sizes_that_a_callable_does_not_take(folder: Path, name: str, sizes: dict[str, int], said: str) -> None:
    with pytest.raises(TargetError) as raised:
        load_target(f"{folder}/target_file.py:{name}", sizes)
    assert said in f"{raised.value} {raised.value.hint}"


def test_kwargs_are_taken(folder: Path) -> None:
    workload = load_target(f"{folder}/target_file.py:with_kwargs")
    assert workload.args == ()
    assert set(workload.kwargs) == {"input"}


def test_an_optimizer_is_taken_and_stays_with_its_model(folder: Path) -> None:
    workload = place(load_target(f"{folder}/target_file.py:with_optimizer"), None, torch.float64)
    assert isinstance(workload.optimizer, torch.optim.SGD)
    assert isinstance(workload.model, torch.nn.Module)
    (held,) = workload.optimizer.param_groups
    assert [id(p) for p in held["params"]] == [id(p) for p in workload.model.parameters()]


def test_a_module_is_loaded_from_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert load_target("target_file:build").args[0].shape == (3, 4)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("buildd", "did you mean 'build'"),
        ("value", "not a callable"),
        ("one", "returned a Linear"),
        ("not_callable_model", "cannot be called"),
        ("bad_args", "as args"),
        ("bad_kwargs", "as kwargs"),
        ("bad_optimizer", "returned a str as the optimizer"),
        ("raises", "RuntimeError: first line"),
        ("exits", "SystemExit"),
        ("odd", "Odd: odd one"),
    ],
)
def test_a_wrong_callable_is_one_clear_error(folder: Path, name: str, said: str) -> None:
    with pytest.raises(TargetError) as caught:
        load_target(f"{folder}/target_file.py:{name}")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nothing", "not of the form"),
        (":f", "not of the form"),
        ("file.py:", "not of the form"),
        ("missing.py:f", "no such file"),
        ("no.such.module:f", "no module named"),
        ("FOLDER/broken_file.py:f", "ValueError: on import"),
        ("FOLDER/syntax_file.py:f", "SyntaxError"),
    ],
)
def test_a_wrong_target_is_one_clear_error(folder: Path, target: str, said: str) -> None:
    with pytest.raises(TargetError) as caught:
        load_target(target.replace("FOLDER", str(folder)))
    assert said in str(caught.value)


def test_place_casts_floating_point_only() -> None:
    workload = Workload("w", torch.nn.Linear(2, 2), (torch.randn(1, 2), torch.arange(2)), {})
    placed = place(workload, None, torch.bfloat16)
    assert placed.args[0].dtype is torch.bfloat16
    assert placed.args[1].dtype is torch.int64
    assert next(placed.model.parameters()).dtype is torch.bfloat16  # type: ignore[attr-defined]


def test_an_impossible_device_is_an_error() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has the device that the test wants missing")
    workload = Workload("w", torch.nn.Linear(2, 2), (torch.randn(1, 2),), {})
    with pytest.raises(TargetError, match="cannot be moved"):
        place(workload, "cuda", None)

"""The zoo's contract: reproducible, trainable, imported without its libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from zoo import ZOO, zoo_entry
from zoo_entry import Group, ZooEntry

LIBRARIES = ("unet_3d", "regnet")
"""Written by people, but not by us."""
OWN = [entry for entry in ZOO if entry.group is Group.WRITTEN and entry.name not in LIBRARIES]
FOREIGN = [entry for entry in ZOO if entry not in OWN]


def by_name(entry: ZooEntry) -> str:
    return entry.name


def tensors(output: object) -> list[Tensor]:
    """All tensors of an output, whose class may be a dictionary that pytree does not know."""
    leaves = pytree.tree_leaves(dict(output) if isinstance(output, dict) else output)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def test_names_are_unique_and_are_the_builders_names() -> None:
    assert [entry.name for entry in ZOO] == [entry.build.__name__ for entry in ZOO]
    assert len({entry.name for entry in ZOO}) == len(ZOO)


def test_unknown_name_is_an_error_that_lists_the_names() -> None:
    with pytest.raises(KeyError, match=r"resnet51.*resnet50"):
        zoo_entry("resnet51")


@pytest.mark.integration
def test_importing_the_zoo_imports_none_of_its_libraries() -> None:
    program = "import sys, zoo; sys.exit(sorted({'transformers', 'diffusers', 'monai'} & set(sys.modules)) or 0)"
    folder = Path(__file__).parents[2] / "benchmarks"
    ran = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("entry", OWN, ids=by_name)
def test_builds_are_the_same_every_time_and_leave_the_random_state_alone(entry: ZooEntry) -> None:
    before = torch.get_rng_state()
    (first, first_args, _), (second, second_args, _) = entry.build(False), entry.build(False)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert all(map(torch.equal, first_args, second_args))


def check_batches(entry: ZooEntry) -> None:
    for train in (False, True):
        for batch in (1, 8):
            _, args, kwargs = entry.build(train, batch)
            assert {value.shape[0] for value in tensors([args, kwargs])} == {batch}


@pytest.mark.parametrize("entry", OWN, ids=by_name)
def test_every_input_has_the_batch_that_was_asked_for(entry: ZooEntry) -> None:
    check_batches(entry)


@pytest.mark.zoo
@pytest.mark.integration
@pytest.mark.parametrize("entry", FOREIGN, ids=by_name)
def test_every_input_of_a_library_network_has_the_batch_that_was_asked_for(entry: ZooEntry) -> None:
    check_batches(entry)


def test_all_groups_are_there() -> None:
    assert {entry.group for entry in ZOO} == set(Group)


@pytest.mark.parametrize("name", ["nhwc_written", "attention_contiguous"])
def test_a_network_needs_none_of_its_contiguous_calls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, args, _ = zoo_entry(name).build(False)
    left_out: list[Tensor] = []
    with torch.no_grad():
        expected = model(*args)
        monkeypatch.setattr(Tensor, "contiguous", lambda x: left_out.append(x) or x)
        monkeypatch.setattr(Tensor, "view", Tensor.reshape)
        assert torch.allclose(model(*args), expected, atol=1e-4)
    assert left_out


def test_the_custom_operator_is_opaque_and_right() -> None:
    x = torch.tensor([-2.0, -0.01, 0.0, 0.04, 1.0], dtype=torch.float64, requires_grad=True)
    y = torch.ops.frx_benchmarks.soft_threshold(x, 0.05)
    assert torch.equal(y, torch.nn.functional.softshrink(x, 0.05))
    assert torch.autograd.gradcheck(lambda z: torch.ops.frx_benchmarks.soft_threshold(z, 0.05), (x[[0, 1, 4]],))
    torch.library.opcheck(torch.ops.frx_benchmarks.soft_threshold.default, (x.detach(), 0.05))


def check_trains(entry: ZooEntry) -> None:
    model, args, kwargs = entry.build(True)
    assert model.training
    produced = [output for output in tensors(model(*args, **kwargs)) if output.requires_grad]
    losses = [output for output in produced if output.dim() == 0]
    sum(output.sum() for output in losses or produced).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("entry", OWN, ids=by_name)
def test_every_parameter_gets_a_gradient(entry: ZooEntry) -> None:
    check_trains(entry)


@pytest.mark.zoo
@pytest.mark.integration
@pytest.mark.parametrize("entry", FOREIGN, ids=by_name)
def test_every_parameter_of_a_library_network_gets_a_gradient(entry: ZooEntry) -> None:
    check_trains(entry)

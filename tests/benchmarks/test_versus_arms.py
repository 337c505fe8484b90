"""Which arms there are, and that each is what its name says."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from versus_arms import EAGER_ARMS, INDUCTOR_ARMS, Arm, Inner, Kind, arms_of, channels_last_model, selected


def plain(model: nn.Module) -> nn.Module:
    return model


@pytest.mark.parametrize("arms", [INDUCTOR_ARMS, EAGER_ARMS])
def test_the_first_arm_alone_is_the_reference_and_names_are_unique(arms: tuple[Arm, ...]) -> None:
    assert [arm.kind is Kind.REFERENCE for arm in arms] == [True] + [False] * (len(arms) - 1)
    assert len({arm.name for arm in arms}) == len(arms)


def test_frx_may_choose_eager_in_inductors_place_but_not_the_reverse() -> None:
    inners = {
        inner: {arm.frx_options["inner"] for arm in arms_of(inner) if arm.frx_options is not None} for inner in Inner
    }
    assert inners == {Inner.INDUCTOR: {"inductor", "eager"}, Inner.EAGER: {"eager"}}


def test_the_reference_and_what_is_asked_for_are_taken() -> None:
    assert [arm.name for arm in selected(Inner.EAGER, ("frx eager",))] == ["eager", "frx eager"]
    assert selected(Inner.INDUCTOR, None) == INDUCTOR_ARMS


def test_names_of_the_other_inner_compilers_arms_are_known() -> None:
    assert [arm.name for arm in selected(Inner.EAGER, ("freezing",))] == ["eager"]
    with pytest.raises(ValueError, match=r"no arm 'freezzing'; there are .*freezing"):
        selected(Inner.EAGER, ("freezzing",))


def test_the_channels_last_arm_converts_its_model_and_its_inputs() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv3d(4, 4, 3), nn.Linear(2, 2))
    arm = Arm("hand", Kind.VARIANT, plain, channels_last=True)
    image, volume = torch.ones(2, 3, 5, 5), torch.ones(2, 3, 5, 5, 5)
    program, calls = arm.prepare(model, (((image, 1), {"volume": volume, "flat": image[0]}),))
    assert program is model
    (((converted, one), keywords),) = calls
    assert converted.is_contiguous(memory_format=torch.channels_last)
    assert keywords["volume"].is_contiguous(memory_format=torch.channels_last_3d)
    assert keywords["flat"].is_contiguous()
    assert one == 1
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert model[1].weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert image.is_contiguous()


def test_a_converted_model_is_the_one_that_torch_converts() -> None:
    ours, theirs = (nn.Conv2d(3, 4, 3) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    weight = ours.weight
    expected = theirs.to(memory_format=torch.channels_last)
    assert channels_last_model(ours).weight is weight
    assert weight.stride() == expected.weight.stride()
    assert torch.equal(weight, expected.weight)

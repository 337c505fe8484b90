"""The generator: the same programs for the same seeds, of every kind that is promised."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from random_program import RandomProgram, copied
from random_programs import _has_rank_5, random_program


@pytest.fixture(scope="module")
def many() -> list[RandomProgram]:
    return [random_program(seed) for seed in range(300)]


@pytest.mark.integration
def test_a_seed_makes_one_program(many: list[RandomProgram]) -> None:
    assert [random_program(seed) for seed in range(20)] == many[:20]
    assert len({program.source for program in many}) == len(many)


def test_programs_run_by_themselves(many: list[RandomProgram]) -> None:
    for program in many[:40]:
        namespace: dict[str, object] = {}
        exec(program.source, namespace)
        for n in program.sizes:
            with torch.no_grad():
                assert namespace["model"]()(*namespace["inputs"](n))  # type: ignore[operator]


@pytest.mark.parametrize(
    "word",
    [
        *("nn.Conv1d", "nn.Conv2d", "nn.Conv3d", "nn.ConvTranspose", "groups=2", "dilation=2", "nn.Conv2d(1,"),
        *("max_pool", "avg_pool", "BatchNorm", "GroupNorm", "LayerNorm", "interpolate", "pixel_shuffle", "F.pad"),
        *("torch.cat", "torch.stack", ".softmax(", ".mean(", ".flip(", ".permute(", ".flatten(", ".unflatten("),
        *("as_strided", ".contiguous()", ".clone()", "memory_format=torch.channels_last)", "scaled_dot_product"),
        *("nn.Linear", "torch.matmul", ".mul_(", "[..., 0] = ", "F.dropout", "is_contiguous", ".expand(", "randint"),
        *("torch.bfloat16", "torch.float64", "[::2]", "torch.randn(0", "requires_grad_", "F.conv2d"),
    ],
)
def test_every_kind_occurs(word: str, many: list[RandomProgram]) -> None:
    assert any(word in program.source for program in many)


def test_modes_are_mixed(many: list[RandomProgram]) -> None:
    modes = Counter((program.train, program.dynamic) for program in many)
    assert len(modes) == 4
    assert min(modes.values()) >= 10
    assert any(name.startswith("i") for program in many for name in program.outputs)


def test_inputs_are_copied_as_they_lie_in_memory() -> None:
    base = torch.randn(2, 3, 4)
    inputs = [base[:, 1:].transpose(0, 1), base[1], torch.zeros(1, 3).expand(2, 3), torch.tensor([1, 2])]
    for in_fp64 in (False, True):
        copies = copied(inputs, in_fp64=in_fp64)
        for value, copy in zip(inputs, copies, strict=True):
            assert copy.stride() == value.stride()
            assert torch.equal(copy, value.to(copy.dtype))
        assert copies[0].untyped_storage()._cdata == copies[1].untyped_storage()._cdata
        assert copies[0].dtype is (torch.float64 if in_fp64 else torch.float32)
        copies[1].zero_()
        assert base[1].abs().sum() > 0


def test_a_model_with_a_parameter_of_rank_5_is_not_channels_last() -> None:
    """It could not be made."""
    assert _has_rank_5("nn.Parameter(torch.randn([2, 2, 6, 1, 5]))")
    assert _has_rank_5("self.m0 = nn.Conv3d(4, 2, 3)")
    assert not _has_rank_5("nn.Parameter(torch.randn([2, 6, 1, 5]))")
    assert not _has_rank_5("self.m0 = nn.Conv2d(4, 2, [3, 3, 1, 1, 1])")

"""Random programs for hypothesis: `programs()`, small networks of random operators over inputs of random strides.

A fault is searched where rewrites could make one: convolutions, poolings and norms of any kind between views, copies,
operators in place and outputs that alias each other, forward and backward, with fixed and with dynamic sizes.
"""

from __future__ import annotations

import re
from random import Random
from typing import Any

from hypothesis import strategies as st
from program_draft import Draft
from random_layers import LAYERS, Writer, convolution
from random_program import RandomProgram
from random_views import VIEWS

WRITERS: tuple[Writer, ...] = tuple(
    writer for table in (LAYERS, VIEWS) for writer, weight in table.items() for _ in range(weight)
)
DTYPES = ("torch.float32", "torch.float32", "torch.float32", "torch.float64", "torch.bfloat16")
SHAPES = (
    "{n}, {c}, 6, 5",
    "{n}, {c}, 6, 5",
    "{n}, {c}, 8, 8",
    "{n}, {c}, 4, 5, 4",
    "{n}, {c}, 9",
    "{n}, {c}, 1, 6",
    "{n}, {c}, 4, 1",
    "1, {c}, 6, 6",
    "{n}, 6, {c}",
    "{n}, {c}",
    "{c}",
)
INPUT_KINDS = ("plain", "plain", "plain", "channels_last", "permuted", "sliced", "expanded", "stepped", "alias")
ODD_SHAPES = ("0, {c}, 6, 5", "{n}, {c}, 0, 5", "{n}, 1, 1, 1", "{n}, 0")


def programs(max_lines: int = 10, part: int = 0) -> st.SearchStrategy[RandomProgram]:
    """Programs of up to `max_lines` drawn lines; those of different `part`s are different ones.

    They shrink by `smallest`, not by hypothesis: cutting lines off a program that is there takes far fewer runs of a
    compiler than drawing it anew.
    """
    return st.integers(0, 2**62 - 1).map(lambda seed: random_program(part * 2**62 + seed, max_lines))


def random_program(seed: int, max_lines: int = 10) -> RandomProgram:
    """The same program for the same seed, torch version and processor."""
    random = Random(seed)
    train, dynamic = random.random() < 0.5, random.random() < 0.25
    draft = Draft(random, (2, 3) if dynamic else (2,), random.choice(DTYPES), train)
    for _ in range(draft.integer(1, 3)):
        _input(draft)
    if draft.chance(70):
        convolution(draft)
    lines = draft.integer(max_lines // 3, max_lines)
    for _ in range(3 * lines):
        if len(draft.lines) >= lines:
            break
        draft.pick(WRITERS)(draft)
    how: dict[str, Any] = {
        "train": train and draft.trains(),
        "dynamic": dynamic,
        # A module with parameters of rank 5 has no channels_last.
        "model_channels_last": draft.chance(20) and not any(map(_has_rank_5, draft.modules)),
        "tangents": draft.pick(["contiguous", "like", "reversed"]),
    }
    return draft.program(_outputs(draft), **how)


def _has_rank_5(module: str) -> bool:
    parameter = re.search(r"nn.Parameter\(torch.randn\(\[(.*)\]\)\)", module)
    return "3d" in module or (parameter is not None and len(parameter[1].split(",")) == 5)


def _input(draft: Draft) -> None:
    shape = draft.pick(ODD_SHAPES if draft.chance(6) else SHAPES)
    text = shape.format(n="n", c=draft.pick([4, 3, 1, 2, 6, 8]))
    if draft.inputs and draft.chance(10):
        draft.add_input(f"torch.randint(0, 3, ({text},))")
        return
    sizes = [part.strip() for part in text.split(",")]
    rank = len(sizes)
    kind = draft.pick(INPUT_KINDS)
    made = f"torch.randn({text}, dtype={draft.dtype})"
    if kind == "channels_last" and rank in (4, 5):
        made += f".to(memory_format=torch.channels_last{'_3d' if rank == 5 else ''})"
    elif kind == "permuted":
        order = draft.order(rank)
        stored = ", ".join(sizes[dim] for dim in order)
        made = f"torch.randn({stored}, dtype={draft.dtype}).permute({[order.index(dim) for dim in range(rank)]})"
    elif kind == "sliced":
        larger = ", ".join([*sizes[:-1], f"{sizes[-1]} + 2"])
        made = f"torch.randn({larger}, dtype={draft.dtype})[..., 1:-1]"
    elif kind == "stepped":
        larger = ", ".join([f"2 * {sizes[0]}", *sizes[1:]])
        made = f"torch.randn({larger}, dtype={draft.dtype})[::2]"
    elif kind == "expanded":
        dim = draft.integer(0, rank - 1)
        small = ", ".join("1" if index == dim else size for index, size in enumerate(sizes))
        made = f"torch.randn({small}, dtype={draft.dtype}).expand({text})"
    elif kind == "alias" and draft.inputs and draft.chance(50):
        other = draft.pick([f"i{index}" for index in range(len(draft.inputs))])
        draft.add_input(
            draft.pick(["{x}.detach()[:1]", "{x}.detach()", "{x}.detach().transpose(0, -1)"]).format(x=other)
        )
        return
    if draft.chance(40):
        made += ".detach().requires_grad_()" if kind != "plain" else ".requires_grad_()"
    draft.add_input(made)


def _outputs(draft: Draft) -> list[str]:
    names = draft.names[::-1]
    outputs = [draft.names[-1]]
    for _ in range(draft.integer(0, 3)):
        name = draft.pick(names[:8]) if draft.chance(80) else draft.pick(names)
        rank = draft.value(name).dim()
        if rank and draft.chance(25):
            name = draft.pick(["{x}[:1]", "{x}.transpose(0, -1)", "{x}[..., 0]", "{x}.detach()"]).format(x=name)
        outputs.append(name)
    return outputs

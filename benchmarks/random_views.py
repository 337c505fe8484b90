"""Writers of random lines: views, copies, code that reads strides, operators in place, products, attention."""

from __future__ import annotations

from collections.abc import Mapping

from program_draft import Draft
from random_layers import Writer

FORMATS = {4: "torch.channels_last", 5: "torch.channels_last_3d"}


def view(draft: Draft) -> bool:
    names = draft.floats()
    if not names:
        return False
    x = draft.recent(names)
    value = draft.value(x)
    rank = value.dim()
    if rank == 0:
        return draft.add(f"{x}.unsqueeze(0)")
    first, second = draft.integer(0, rank - 1), draft.integer(0, rank - 1)
    low, high = min(first, second), max(first, second)
    size = value.shape[first]
    options = [
        f"{x}.permute({draft.order(rank)})",
        f"{x}.transpose({first}, {second})",
        f"{x}.flatten({low}, {high})",
        f"{x}.reshape({x}.shape[0], -1)",
        f"{x}.view({x}.shape[0], -1)",
        f"{x}.unsqueeze({first})",
        f"{x}.squeeze()",
        f"{x}.squeeze({first})",
        f"{x}.movedim({first}, {second})",
        f"{x}.unsqueeze({first}).expand({[-1] * first + [2] + [-1] * (rank - first)})",
        f"{x}.unfold({first}, 2, 1)",
        f"{x}.reshape(-1, {value.shape[-1]})",
    ]
    if first and size % 2 == 0:
        options += [f"{x}.unflatten({first}, (2, -1))", f"{x}.unflatten({first}, (-1, 2))"]
    if rank > 1:
        options.append(f"{x}.diagonal(0, 0, {max(second, 1)})")
    if rank in (3, 4):
        options.append(f"{x}.view_as({x} + 1)")
    return draft.add(draft.pick(options))


def piece(draft: Draft) -> bool:
    names = draft.floats(1, 2, 3, 4, 5)
    if not names:
        return False
    x = draft.recent(names)
    value = draft.value(x)
    dim = draft.integer(0, value.dim() - 1)
    ahead = ":, " * dim
    last = max(value.shape[dim] - 1, 0)
    options = [
        f"{x}[{ahead}1:]",
        f"{x}[{ahead}::2]",
        f"{x}[{ahead}{last}]",
        f"{x}[{ahead}[{last}, 0]]",
        f"{x}[..., None, :]",
        f"{x}.narrow({dim}, {min(1, last)}, {max(last, 0)})",
        f"{x}.flip({dim})",
        f"{x}.roll(1, {dim})",
        f"{x}[{ahead}:0]",
        f"torch.index_select({x}, {dim}, torch.tensor([{last}, 0, 0]))",
        f"{x}.tile(2)",
        f"{x}.repeat_interleave(2, {dim})",
    ]
    if draft.chance(30) and value.shape[dim] > 1:
        a, b = draft.fresh(), draft.fresh() + "b"
        return draft.add_line(f"{a}, {b} = {x}.split([1, {x}.shape[{dim}] - 1], {dim})", a, b)
    return draft.add(draft.pick(options))


def copy(draft: Draft) -> bool:
    names = draft.floats()
    if not names:
        return False
    x = draft.recent(names)
    value = draft.value(x)
    options = [
        "{x}.contiguous()",
        "{x}.clone()",
        "{x}.clone(memory_format=torch.contiguous_format)",
        "torch.zeros_like({x}) + {x}",
        "torch.empty_like({x}).copy_({x})",
        "{x}.new_ones({x}.shape) * {x}",
        "torch.full_like({x}, 0.5)",
        "torch.ones_like({x}, memory_format=torch.contiguous_format) * {x}",
        "{x}.detach()",
        f"{{x}}.double().to({draft.dtype})",
        "{x}.bfloat16()",
        f"{{x}}.to({draft.dtype})",
        "{x}.float()",
    ]
    if value.dim() in FORMATS:
        options += [
            call.format(x="{x}", f=FORMATS[value.dim()])
            for call in (
                "{x}.to(memory_format={f})",
                "{x}.contiguous(memory_format={f})",
                "{x}.clone(memory_format={f})",
                "torch.empty_like({x}, memory_format={f}).copy_({x})",
            )
        ] * 2
    return draft.add(draft.pick(options).format(x=x))


def stride_reader(draft: Draft) -> bool:
    """Code whose meaning depends on how a value lies in memory."""
    names = draft.floats(2, 3, 4)
    if not names:
        return False
    x = draft.recent(names)
    value = draft.value(x)
    options = [
        f"torch.as_strided({x}, {x}.size(), {x}.stride(), {x}.storage_offset())",
        f"{x} * 2 if {x}.is_contiguous() else {x} + 1",
        f"{x} + {x}.stride(0)",
        f"{x}.reshape(-1).as_strided((2, 2), (1, 2))",
    ]
    if value.dim() == 4:
        options.append(f"{x} * 2 if {x}.is_contiguous(memory_format=torch.channels_last) else {x} + 1")
    if value.numel() >= 4:
        options.append(f"torch.as_strided({x}, (2, 2), (1, 2))")
    return draft.add(draft.pick(options))


def in_place(draft: Draft) -> bool:
    names = draft.floats()
    if not names:
        return False
    x = draft.recent(names)
    rank = draft.value(x).dim()
    options = [
        "{x}.mul_(0.5)",
        "{x}.add_(1)",
        "{x}.relu_()",
        "{x}.add_({y})",
        "{x}.clamp_(-1, 1)",
        "{x}.copy_({y})",
        "F.silu({x}, inplace=True)",
    ]
    if rank:
        options += ["{x}[..., 0] = 0.5", "{x}[0].mul_(2)", "{x}[..., :1].add_(1)", "{x}.flatten().add_(1)"]
    if rank > 1:
        options += ["{x}[:, 0] = {x}[:, -1]", "{x}.transpose(0, 1).sub_(1)"]
    return draft.add_line(draft.pick(options).format(x=x, y=draft.pick(names)))


def product(draft: Draft) -> bool:
    names = draft.floats(2, 3, 4)
    if not names:
        return False
    x = draft.recent(names)
    last = draft.value(x).shape[-1]
    kind = draft.pick(["linear", "linear", "square", "einsum", "pair"])
    if kind == "linear":
        name = draft.add_module(f"nn.Linear({last}, {draft.pick([2, 4, 8])})")
        if name is None:
            return False
        if draft.add(f"{name}({x})"):
            return True
        draft.drop_last_module()
        return False
    if kind == "square":
        return draft.add(f"{x} @ {x}.transpose(-1, -2) * 0.2")
    if kind == "einsum":
        return draft.add(f"torch.einsum('...ij,...kj->...ki', {x}, {x}) * 0.2")
    return draft.add(f"torch.matmul({x}, {draft.pick(names)}) * 0.2")


def attention(draft: Draft) -> bool:
    """From a sequence, or an image made one: heads split, attended, merged."""
    names = draft.floats(3, 4)
    if not names:
        return False
    x = draft.recent(names)
    tokens = f"{x}.flatten(2).transpose(1, 2)" if draft.value(x).dim() == 4 else x
    shape = draft.value(x).shape
    width = shape[1] if draft.value(x).dim() == 4 else shape[2]
    heads = 2 if width % 2 == 0 else 1
    if width == 0 or (len(shape) == 4 and shape[2] * shape[3] > 64):
        return False
    name = draft.add_module(f"nn.Linear({width}, {3 * width})")
    if name is None:
        return False
    qkv, q, k, v = (f"{draft.fresh()}{part}" for part in ("", "q", "k", "v"))
    split = f"{name}({tokens}).unflatten(-1, (3, {heads}, {width // heads})).permute(2, 0, 3, 1, 4)"
    if not draft.add_line(f"{qkv} = {split}", qkv) or not draft.add_line(f"{q}, {k}, {v} = {qkv}.unbind(0)", q, k, v):
        return False
    if draft.chance(40):
        draft.add_line(f"{k} = {k}.contiguous()", k)
    attended = draft.pick(
        [
            f"F.scaled_dot_product_attention({q}, {k}, {v})",
            f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal=True)",
            f"({q} @ {k}.transpose(-2, -1) * 0.5).softmax(-1) @ {v}",
            "",
        ]
    )
    if not (draft.add(attended) if attended else _written_attention(draft, q, k, v)):
        return False
    merged = f"{draft.names[-1]}.transpose(1, 2).flatten(2)"
    if len(shape) == 4 and draft.chance(60):
        merged += f".transpose(1, 2).unflatten(2, ({x}.shape[2], {x}.shape[3]))"
    return draft.add(merged)


def _written_attention(draft: Draft, q: str, k: str, v: str) -> bool:
    """Line by line, with something between the lines that reads or writes what they name."""
    scores, weights = f"{draft.fresh()}s", f"{draft.fresh()}w"
    if not draft.add_line(f"{scores} = {q} @ {k}.transpose(-2, -1)", scores):
        return False
    between = [
        f"{scores}.mul_(0.5)",
        f"{scores}[..., 0] = 0.5",
        f"{scores}.diagonal(dim1=-2, dim2=-1).fill_(-1e9)",
        f"{k}.mul_(0.5)",
        f"{q}.zero_()",
    ]
    if draft.chance(60):
        draft.add_line(draft.pick(between))
    if not draft.add_line(f"{weights} = {scores}.softmax(-1)", weights):
        return False
    if draft.chance(30):
        draft.add_line(draft.pick([f"{weights}[..., 0] = 0.1", f"{k}.mul_(0.5)", f"{v}.mul_(0.5)"]))
    if draft.chance(20):
        draft.add(f"torch.zeros_like({weights}).copy_({weights})")
    return draft.add(f"{weights} @ {v}")


VIEWS: Mapping[Writer, int] = {
    view: 6,
    piece: 4,
    copy: 4,
    stride_reader: 1,
    in_place: 3,
    product: 2,
    attention: 1,
}
"""Writers, and how often each is drawn."""

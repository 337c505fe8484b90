"""Writers of random lines: convolutions, poolings, norms, resizing, padding, joining, reductions, pointwise operators.

A writer adds one line to a draft, or a few, and returns True; False where it found nothing to work on or the line that
it drew does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from program_draft import Draft

Writer = Callable[[Draft], bool]

UNARY = (
    "F.relu({x})",
    "torch.sigmoid({x})",
    "torch.tanh({x})",
    "F.gelu({x})",
    "F.silu({x})",
    "F.hardswish({x})",
    "F.leaky_relu({x}, 0.2)",
    "F.elu({x})",
    "F.softplus({x})",
    "F.mish({x})",
    "F.hardtanh({x})",
    "F.hardsigmoid({x})",
    "{x} * 0.5",
    "{x} + 1",
    "1 - {x}",
    "-{x}",
    "{x}.abs()",
    "{x}.sin()",
    "{x}.clamp(-1, 1)",
    "torch.rsqrt({x} * {x} + 1)",
    "{x}.masked_fill({x} > 0.3, 0.3)",
    "F.threshold({x}, 0.0, 0.0)",
)
BINARY = (
    "{x} + {y}",
    "{x} * {y}",
    "{x} - {y}",
    "torch.maximum({x}, {y})",
    "torch.addcmul({x}, {x}, {y}, value=0.5)",
    "torch.lerp({x}, {y}, 0.3)",
    "torch.add({x}, {y}, alpha=0.5)",
)


def pointwise(draft: Draft) -> bool:
    names = draft.floats()
    if not names:
        return False
    x = draft.recent(names)
    if draft.chance(35):
        return draft.add(draft.pick(BINARY).format(x=x, y=draft.pick(names)))
    return draft.add(draft.pick(UNARY).format(x=x))


def weighted(draft: Draft) -> bool:
    """With a weight of the value's own size, which is a constant where weights are frozen."""
    names = draft.floats()
    if not names:
        return False
    x = draft.recent(names)
    weight = draft.add_module(f"nn.Parameter(torch.randn({list(draft.value(x).shape)}))")
    if weight is None:
        return False
    text = draft.pick(["{w} * {x}", "{w} - {x}", "{w} + {x}", "{x} * {w}", "torch.sigmoid({w}) * {x}"])
    return draft.add(text.format(w=weight, x=x)) or _dropped(draft)


def masked(draft: Draft) -> bool:
    """Where an integer input, which no rounding touches, says so."""
    names, masks = draft.floats(), draft.integers()
    if not names or not masks:
        return False
    x, mask = draft.recent(names), draft.pick(masks)
    return draft.add(f"torch.where({mask} > 1, {x}, {x} * 0.5)")


def convolution(draft: Draft) -> bool:
    names = draft.floats(3, 4, 5)
    if not names:
        return False
    x = draft.recent(names)
    rank = draft.value(x).dim()
    unbatched = rank < 5 and draft.chance(3)
    dims = rank - 1 if unbatched else rank - 2
    channels = draft.value(x).shape[0 if unbatched else 1]
    groups = draft.pick([g for g in (1, 1, 2, 3, channels) if g and channels % g == 0])
    out = groups * draft.pick([1, 2, 3, 4])
    kernel = draft.pick([1, 3, 2, 3])
    transposed = draft.chance(20)
    text = f"{channels}, {out}, {kernel}, groups={groups}"
    if draft.chance(60):
        text += f", padding={draft.pick([kernel // 2, 1])}"
    # The weight's gradient in bf16 is read from memory that nobody wrote where a kernel's steps leave a rest, in either
    # layout (oneDNN, torch 2.15).
    if draft.chance(20) and draft.dtype != "torch.bfloat16":
        text += f", stride={draft.pick([2, 3])}"
    if draft.chance(15):
        text += ", dilation=2"
    if draft.chance(25):
        text += ", bias=False"
    if not transposed and draft.chance(10):
        text += f", padding_mode={draft.pick(['reflect', 'circular', 'replicate'])!r}"
    return _called(draft, f"nn.Conv{'Transpose' if transposed else ''}{dims}d({text})", x)


def functional_convolution(draft: Draft) -> bool:
    """A convolution whose weight is computed, or laid out unlike a parameter's; its bias may have gaps in memory."""
    names = draft.floats(4)
    if not names:
        return False
    x = draft.recent(names)
    channels = draft.value(x).shape[1]
    out = draft.pick([channels, 2, 4])
    weight = draft.add_module(f"nn.Parameter(torch.randn({out}, {channels}, 3, 3) * 0.3)")
    if weight is None:
        return False
    changed = draft.pick(
        [
            "{w}",
            "{w} * 0.5",
            "{w}.flip(2)",
            "{w}.transpose(2, 3)",
            "{w}.contiguous(memory_format=torch.channels_last)",
            "{w}[:, :, :, 1:]",
            "{w}.permute(1, 0, 2, 3)",
            "({w} - {w}.mean((1, 2, 3), keepdim=True))",
        ]
    ).format(w=weight)
    calls = ("F.conv2d({x}, {w}{b}, padding=1)", "F.conv_transpose2d({x}, {w}{b})", "F.conv2d({x}, {w}{b}, stride=2)")
    bias = draft.pick(["", "", ", {w}[:, 0, 0, 0]", ", {w}[0, :, 0, 0]"]).format(w=weight)
    return draft.add(draft.pick(calls).format(x=x, w=changed, b=bias)) or _dropped(draft)


def again(draft: Draft) -> bool:
    """A layer that is there already, on another value: its parameters are shared."""
    layers = [f"self.m{i}" for i, text in enumerate(draft.modules) if not text.split(" = ")[1].startswith("nn.Param")]
    names = draft.floats()
    return bool(layers and names) and draft.add(f"{draft.pick(layers)}({draft.recent(names)})")


def pooling(draft: Draft) -> bool:
    names = draft.floats(3, 4, 5)
    if not names:
        return False
    x = draft.recent(names)
    d = draft.value(x).dim() - 2
    text = draft.pick(
        [
            "F.max_pool{d}d({x}, 2)",
            "F.max_pool{d}d({x}, 3, stride=2, padding=1)",
            "F.max_pool{d}d({x}, 2, ceil_mode=True)",
            "F.max_pool{d}d({x}, 2, dilation=2, stride=1)",
            "F.avg_pool{d}d({x}, 2)",
            "F.avg_pool{d}d({x}, 3, stride=2, padding=1, count_include_pad=False)",
            "F.avg_pool{d}d({x}, 2, ceil_mode=True)",
            "F.adaptive_avg_pool{d}d({x}, 1)",
            "F.adaptive_avg_pool{d}d({x}, 2)",
            "F.adaptive_max_pool{d}d({x}, 2)",
            "F.lp_pool{d}d({x} + 3, 2, 2)",
        ]
    )
    return draft.add(text.format(d=d, x=x))


def norm(draft: Draft) -> bool:
    names = draft.floats(2, 3, 4, 5)
    if not names:
        return False
    x = draft.recent(names)
    shape, rank = draft.value(x).shape, draft.value(x).dim()
    channels, last = shape[1], shape[-1]
    batch = "BatchNorm" + {2: "1d", 3: "1d", 4: "2d", 5: "3d"}[rank]
    kind = draft.pick(["batch", "batch", "group", "layer", "instance", "other"])
    if kind == "batch":
        how = draft.pick(["", ", affine=False", ", track_running_stats=False", ", momentum=None"])
        return _called(draft, f"nn.{batch}({channels}{how})", x)
    if kind == "group":
        groups = draft.pick([g for g in (1, 2, 3, channels) if g and channels % g == 0])
        return _called(draft, f"nn.GroupNorm({groups}, {channels})", x)
    if kind == "layer":
        normalised = draft.pick([[last], list(shape[-2:]), list(shape[1:])])
        return _called(draft, f"nn.LayerNorm({normalised})", x)
    if kind == "instance" and rank > 2:
        return _called(draft, f"nn.InstanceNorm{rank - 2}d({channels}, affine={draft.chance(50)})", x)
    text = draft.pick(["F.normalize({x}, dim=1)", "F.local_response_norm({x}, 2)", "F.rms_norm({x}, [{last}])"])
    return draft.add(text.format(x=x, last=last))


def resize(draft: Draft) -> bool:
    names = draft.floats(3, 4, 5)
    if not names:
        return False
    x = draft.recent(names)
    d = draft.value(x).dim() - 2
    modes = ["nearest", "nearest-exact", {1: "linear", 2: "bilinear", 3: "trilinear"}[d]]
    if d == 2:
        modes.append("bicubic")
    options = [f"F.interpolate({x}, scale_factor={draft.pick([2, 2, 1.5])}, mode={draft.pick(modes)!r})"]
    if d == 2:
        options += [f"F.pixel_shuffle({x}, 2)", f"F.pixel_unshuffle({x}, 2)"]
        options.append(f"F.interpolate({x}, size=(5, 3), mode='bilinear', align_corners=True)")
    options.append(f"F.channel_shuffle({x}, {draft.pick([2, 2, 3])})")
    return draft.add(draft.pick(options))


def shuffle(draft: Draft) -> bool:
    """Channels shuffled by hand."""
    names = [name for name in draft.floats(4) if draft.value(name).shape[1] % 2 == 0]
    if not names:
        return False
    x, y = draft.recent(names), draft.fresh()
    channels = draft.value(x).shape[1]
    sizes = f"{x}.shape[2], {x}.shape[3]"
    split = f"{x}.view({x}.shape[0], 2, {channels // 2}, {sizes})"
    line = f"{y} = {split}.transpose(1, 2).reshape({x}.shape[0], {channels}, {sizes})"
    return draft.add_line(line, y)


def pad(draft: Draft) -> bool:
    names = draft.floats(2, 3, 4, 5)
    if not names:
        return False
    x = draft.recent(names)
    sides = min(draft.value(x).dim() - 1, draft.integer(1, 3))
    amounts = [draft.integer(-1 if draft.chance(15) else 0, 2) for _ in range(2 * sides)]
    if draft.chance(50):
        # The same on both sides, which a convolution can add itself.
        amounts[1::2] = amounts[::2]
    mode = draft.pick(["constant", "constant", "reflect", "replicate", "circular"])
    return draft.add(f"F.pad({x}, {amounts}, mode={mode!r})")


def join(draft: Draft) -> bool:
    names = draft.floats()
    if not names:
        return False
    x = draft.recent(names)
    fitting = [name for name in names if draft.value(name).dim() == draft.value(x).dim()]
    parts = [x, *(draft.pick(fitting) for _ in range(draft.integer(1, 2)))]
    dim = draft.integer(-1, max(draft.value(x).dim() - 1, 0))
    return draft.add(f"torch.{draft.pick(['cat', 'cat', 'stack'])}([{', '.join(parts)}], {dim})")


def reduction(draft: Draft) -> bool:
    names = draft.floats(1, 2, 3, 4, 5)
    if not names:
        return False
    x = draft.recent(names)
    rank = draft.value(x).dim()
    dims = tuple(sorted(draft.order(rank)[: draft.integer(1, rank)]))
    text = draft.pick(
        [
            "{x}.mean({dims}, keepdim={keep})",
            "{x}.sum({dims}, keepdim={keep})",
            "{x}.amax({dims}, keepdim={keep})",
            "{x}.amin({dims}, keepdim={keep})",
            "{x}.var({dims}, keepdim={keep}, correction=0)",
            "{x}.logsumexp({dims}, keepdim={keep})",
            "{x} * {x}.mean({dims}, keepdim=True)",
            "{x} - {x}.amax({dims}, keepdim=True)",
            "{x}.softmax({dim})",
            "{x}.log_softmax({dim})",
            "{x}.cumsum({dim})",
            "{x}.sum()",
            "F.glu({x}, {dim})",
            "torch.linalg.vector_norm({x} + 3, 2, {dims}, keepdim={keep})",
        ]
    )
    return draft.add(text.format(x=x, dims=dims, dim=dims[0], keep=draft.chance(60)))


def dropout(draft: Draft) -> bool:
    names = draft.floats(2, 3, 4, 5)
    if not names:
        return False
    x = draft.recent(names)
    return draft.add(
        draft.pick(["F.dropout({x}, 0.3, self.training)", "F.dropout2d({x}, 0.5, self.training)"]).format(x=x)
    )


def _called(draft: Draft, module: str, x: str) -> bool:
    name = draft.add_module(module)
    return name is not None and (draft.add(f"{name}({x})") or _dropped(draft))


def _dropped(draft: Draft) -> bool:
    draft.drop_last_module()
    return False


LAYERS: Mapping[Writer, int] = {
    convolution: 9,
    functional_convolution: 2,
    again: 1,
    pooling: 4,
    norm: 4,
    resize: 3,
    shuffle: 1,
    pad: 2,
    join: 3,
    reduction: 3,
    pointwise: 5,
    weighted: 1,
    masked: 1,
    dropout: 1,
}
"""Writers, and how often each is drawn."""

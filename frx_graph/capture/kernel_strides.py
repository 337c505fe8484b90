"""Give fake results the strides that kernels make.

Fake tensors, and the decompositions that Inductor traces, predict other strides than the kernels of some operators
make. A channel shuffle keeps channels-last, for example, and its fake is plain (torch 2.15). Whatever follows is then
wrong: `as_strided` reads other values, a `reshape` is traced as a view that is impossible, outputs have strides that
eager does not give them.

`frx probe` compares kernels with fakes over torch's operator database, and lists the operators that differ
(`rules/contracts/strides-*.yaml`). Each traced call of one of these is run once, on made-up values in its shapes and
strides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import SymBool, SymFloat, SymInt, Tensor, fx

from frx_graph.capture.absent_gpu import are_on_absent_gpu
from frx_graph.capture.absent_gpu_strides import is_absent_convolution, predict_convolution_strides
from frx_graph.capture.stride_table import load_stride_table
from frx_graph.support.size_hint import get_shape_hint, get_size_hint, get_stride_hint, is_known
from frx_graph.support.torch_internals import (
    FakeTensor,
    FunctionalTensor,
    OpOverload,
    TorchDispatchMode,
    disable_autocast,
    disable_current_modes,
    disable_python_dispatcher,
    get_schema,
    is_onednn_enabled,
    load_force_strides,
    pytree,
)

Strides: TypeAlias = tuple[int, ...]
Restride: TypeAlias = Callable[[Tensor, Strides], Tensor]
_MOST_BYTES = 512 << 20
"""Operands of a call that is run to see its strides, at most: it runs beside the program."""


class KernelStrides(TorchDispatchMode):
    """Traces listed operators with the strides of their kernels, those in branches of `torch.cond` and the like aside.

    Each corrected result is followed by `prims.inductor_force_stride_order`. Inductor lays it out so; where the kernels
    run as they are, `merge_forced_strides` removes it again.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: whatever is compiled inside is not affected."""
        return True

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run `func`, and correct what it returns if it is traced."""
        named = dict(kwargs or {})
        result = func(*args, **named)
        if not any(issubclass(kind, (FakeTensor, FunctionalTensor)) for kind in types):
            return result
        return correct_strides(func, args, named, result, _force_strides)


def correct_strides(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, restride: Restride) -> Any:
    """Return `result` of the call, with `restride` applied to each tensor that the kernel lays out differently.

    Dimensions of size 1 do not count. Symbolic sizes stand for those of the example.
    """
    if not _may_differ(func, args, kwargs):
        return result
    leaves, spec = pytree.tree_flatten(result)
    if is_absent_convolution(func, args):
        known = all(_is_known(one) for one in (*args, *leaves) if isinstance(one, Tensor))
        made = predict_convolution_strides(func, args, result) if known else None
    else:
        made = measure_results(func, args, kwargs)
    if made is None or len(made) != len(leaves):
        return result
    corrected = [
        restride(leaf, own[1]) if own is not None and _is_laid_out_otherwise(leaf, own) else leaf
        for leaf, own in zip(leaves, made, strict=True)
    ]
    return pytree.tree_unflatten(corrected, spec)


def knows_result_strides(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return False for a call whose kernel may make other strides than its fake, and cannot be run."""
    if not _may_differ(func, args, kwargs):
        return True
    return measure_results(func, args, kwargs) is not None


def _may_differ(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if is_absent_convolution(func, args):
        return True
    table = load_stride_table()
    if not isinstance(func, OpOverload) or str(func) not in table.differ or _aliases_operand(func):
        return False
    operands = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if any(operand.layout is not torch.strided for operand in operands):
        return False
    return not table.agrees(str(func), [(get_shape_hint(t), get_stride_hint(t)) for t in operands])


def restride_fake(value: Tensor, strides: Strides) -> Tensor:
    """Return a new fake like `value` with these strides. The caller has entered the fake mode."""
    return value.new_empty_strided(value.shape, _make_symbolic(strides, value))


def _force_strides(value: Tensor, strides: Strides) -> Tensor:
    forced: Tensor = load_force_strides()(value, _make_symbolic(strides, value))
    return forced


def _make_symbolic(strides: Strides, value: Tensor) -> list[int | SymInt]:
    """Return the example's `strides` for the sizes of `value`, which may be symbols; then the result is dense."""
    if all(isinstance(size, int) for size in value.shape):
        return list(strides)
    found: list[int | SymInt] = [0] * len(strides)
    step: int | SymInt = 1
    for dim in sorted(range(len(strides)), key=lambda dim: (strides[dim], -dim)):
        found[dim] = step
        step = step * value.shape[dim]
    return found


def merge_forced_strides(graph: fx.Graph) -> None:
    """Give each corrected result its strides without the operator behind it: the kernel makes them."""
    for node in graph.find_nodes(op="call_function", target=load_force_strides()):
        source = node.args[0]
        called = source.args[0] if source.op == "call_function" and _is_getitem(source) else source
        known = str(called.target) in load_stride_table().differ
        if not known and not is_absent_convolution(called.target, [one.meta.get("val") for one in called.args[:1]]):
            continue
        source.meta["val"] = node.meta["val"]
        if called is not source:
            values = list(called.meta["val"])
            values[source.args[1]] = node.meta["val"]
            called.meta["val"] = type(called.meta["val"])(values)
        node.replace_all_uses_with(source)
        graph.erase_node(node)


def _is_getitem(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def measure_results(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Strides, Strides] | None, ...] | None:
    """Return shape and strides, in elements, of each tensor in the kernel's result (None for another value).

    The call is run on made-up values with the sizes of the example. None if it cannot be run.
    """
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    if are_on_absent_gpu(leaf for leaf in leaves if isinstance(leaf, Tensor)):
        return None
    # A generator of the program's must draw nothing for this, and what is unknown has no example.
    if not all(map(_is_known, leaves)) or any(isinstance(leaf, torch.Generator) for leaf in leaves):
        return None
    described = tuple(map(_describe, leaves))
    if sum(_count_bytes(leaf) for leaf in described if _is_tensor(leaf)) > _MOST_BYTES:
        return None
    # Kernels may refuse made-up values or sizes with any exception, and memory may be missing.
    try:
        return _run_call(func, described, spec, (is_onednn_enabled(), torch.backends.cudnn.enabled))
    except Exception:  # noqa: BLE001
        return None


def _is_known(leaf: Any) -> bool:
    """Return False for data-dependent sizes, strides and numbers."""
    numbers = (*leaf.shape, *leaf.stride()) if isinstance(leaf, Tensor) else (leaf,)
    return all(is_known(number) for number in numbers)


def _describe(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return (get_shape_hint(leaf), get_stride_hint(leaf), leaf.dtype, leaf.device)
    if isinstance(leaf, (SymInt, SymFloat, SymBool)):
        return get_size_hint(leaf) if isinstance(leaf, SymInt) else leaf.node.hint
    return leaf


@functools.lru_cache(maxsize=4096)
def _run_call(
    func: OpOverload, leaves: tuple[Any, ...], spec: Any, _settings: tuple[bool, bool]
) -> tuple[tuple[Strides, Strides] | None, ...]:
    with disable_current_modes(), disable_python_dispatcher(), disable_autocast(), torch.no_grad():
        args, kwargs = pytree.tree_unflatten([_make_operand(leaf) for leaf in leaves], spec)
        with torch.random.fork_rng(_list_gpus(leaves)):
            result = func(*args, **kwargs)
    return tuple(
        (tuple(leaf.shape), leaf.stride()) if isinstance(leaf, Tensor) and leaf.layout is torch.strided else None
        for leaf in pytree.tree_leaves(result)
    )


def _make_operand(leaf: Any) -> Any:
    """Return a tensor as described: ones if floating-point or boolean, else zeros, which are valid indices."""
    if not _is_tensor(leaf):
        return leaf
    shape, strides, dtype, device = leaf
    extent = _count_bytes(leaf) // dtype.itemsize
    one = dtype.is_floating_point or dtype is torch.bool
    return torch.full((extent,), int(one), dtype=dtype, device=device).as_strided(shape, strides)


def _count_bytes(leaf: tuple[Strides, Strides, torch.dtype, torch.device]) -> int:
    shape, strides, dtype, _ = leaf
    return dtype.itemsize * (1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True) if n > 0))


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, tuple) and len(leaf) == 4 and isinstance(leaf[2], torch.dtype)


def _list_gpus(leaves: Iterable[Any]) -> list[torch.device]:
    return list({leaf[3] for leaf in leaves if _is_tensor(leaf) and leaf[3].type == "cuda"})


def _aliases_operand(func: OpOverload) -> bool:
    return any(returned.alias_info is not None for returned in get_schema(func).returns)


def _is_laid_out_otherwise(value: Any, made: tuple[Strides, Strides]) -> bool:
    """Return False also for results of another shape, which depends on values that were made up."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided or not _is_known(value):
        return False
    if get_shape_hint(value) != made[0] or 0 in made[0]:
        return False
    return any(
        size != 1 and own != new for size, own, new in zip(made[0], get_stride_hint(value), made[1], strict=True)
    )

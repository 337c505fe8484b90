"""Copy inputs to the strides of the first call, before Dynamo's guards see them: the option `pin_strides`.

Dynamo guards a compiled graph on the strides of the inputs. A program that gets plain and channels-last images in turn
is compiled for both, or for unknown strides, which is slower. So the first dense tensor of an argument sets the order
of dimensions, and later tensors in another order are copied into that order. The program must accept the pinned
strides, and may return, keep or mark the copy instead of the input.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from frx_graph.errors import OptionError
from frx_graph.facts.layout import get_dimension_order, is_dense, make_ordered_strides
from frx_graph.records import Candidate, Refusal
from frx_graph.support.torch_internals import get_storage_id, get_version

NAME = "pin_strides"


class PinnedStrides:
    """Pins the strides of tensor arguments: all of them, or those with the given names.

    Not pinned are tensors in tuples, lists and dictionaries, subclasses of `Tensor`, tensors made in inference mode,
    and an input that shares memory with another argument. Writes into a copy are written back, and end the pinning of
    that argument. Writes through `.data`, and memory shared with a parameter, a buffer, or a tensor inside a container,
    go unnoticed. `note` receives, once each, the arguments that are pinned and the reasons why others are not. Raises
    `OptionError` if `function` has no parameter of a given name.
    """

    def __init__(
        self, function: Callable[..., Any], names: bool | Collection[str], note: Callable[[Candidate | Refusal], None]
    ) -> None:
        parameters = inspect.signature(function).parameters.values()
        self._positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._variadic = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
        self._names = None if isinstance(names, bool) else frozenset(names)
        known = {p.name for p in parameters}
        unknown = sorted((self._names or frozenset()) - known)
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise OptionError(f"pin_strides: there is no argument {unknown[0]!r}", f"there are {', '.join(known)}")
        self._note = note
        self._told: set[Candidate | Refusal] = set()
        self._first: dict[str, tuple[torch.Size, tuple[int, ...]]] = {}
        self._written: set[str] = set()

    def wrap(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """Return `program`, which gets the pinned arguments."""

        @functools.wraps(program)
        def run(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return program(*args, **kwargs)
            further = [f"{self._variadic}[{i}]" for i in range(len(args) - len(self._positional))]
            named = dict(zip([*self._positional, *further], args, strict=False)) | kwargs
            inputs = {name: value for name, value in named.items() if self._can_pin(name, value)}
            pinned = inputs | dict(self._copy_inputs(inputs, named.values()))
            versions = {name: get_version(value) for name, value in pinned.items()}
            given = list((named | pinned).values())
            try:
                return program(*given[: len(args)], **dict(zip(kwargs, given[len(args) :], strict=True)))
            finally:
                for name in [name for name, value in pinned.items() if get_version(value) != versions[name]]:
                    self._written.add(name)
                    self._report(Refusal(NAME, "the program writes into it", (name,)))
                    if pinned[name] is not inputs[name]:
                        inputs[name].copy_(pinned[name])

        return run

    def _can_pin(self, name: str, value: object) -> bool:
        if name in self._written or type(value) is not Tensor or value.layout is not torch.strided:
            return False
        asked = self._names is None or name.partition("[")[0] in self._names
        return asked and not (value.is_inference() or value.is_complex() or value.is_quantized)

    def _copy_inputs(self, inputs: Mapping[str, Tensor], arguments: Collection[Any]) -> Iterator[tuple[str, Tensor]]:
        """Yield a copy of each input that does not have the strides of the first call."""
        for name, tensor in inputs.items():
            strides = self._choose_strides(name, tensor)
            if strides is None:
                continue
            if [_identify_memory(argument) for argument in arguments].count(_identify_memory(tensor)) > 1:
                self._report(Refusal(NAME, "it shares its memory with another argument", (name,)))
                continue
            order = get_dimension_order(tensor.shape, strides)
            self._report(Candidate(NAME, "", (name,), (",".join(map(str, order)),)))
            yield name, _copy_with_strides(tensor, strides)

    def _choose_strides(self, name: str, tensor: Tensor) -> tuple[int, ...] | None:
        """Return None for a tensor with the strides of the first call, of another rank, or with gaps or overlaps."""
        shape, strides = tensor.shape, tensor.stride()
        first_shape, first = self._first.get(name, (shape, strides))
        if not is_dense(shape, strides):
            return None
        self._first.setdefault(name, (shape, strides))
        if len(shape) != len(first_shape):
            return None
        wanted = first if shape == first_shape else make_ordered_strides(shape, get_dimension_order(first_shape, first))
        return None if wanted == strides else wanted

    def _report(self, outcome: Candidate | Refusal) -> None:
        if outcome not in self._told:
            self._told.add(outcome)
            self._note(outcome)


def _identify_memory(value: object) -> int | None:
    if isinstance(value, Tensor) and value.layout is torch.strided:
        return get_storage_id(value.untyped_storage())
    return None


def _copy_with_strides(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    gradients = torch.is_grad_enabled()
    # A copy counts writes as its input does, in inference mode, too; leaving that switches gradients on.
    with torch.inference_mode(mode=False), torch.set_grad_enabled(gradients):
        copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    # Marks such as those of `mark_dynamic` are attributes.
    copy.__dict__.update(tensor.__dict__)
    return copy if copy.requires_grad == tensor.requires_grad else copy.requires_grad_()

"""Record every ATen operator that a running program dispatches, with its call site, in a separate recorder region."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from frx_graph.capture.call_site import UNKNOWN_SITE, CallSite, find_user_frame, is_foreign, resolve_module_site
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.operator_families import FOLDED_PRODUCTS
from frx_graph.measure.operators.copy_recorder import CopyRecorder
from frx_graph.support.torch_internals import (
    OpOverload,
    TorchDispatchMode,
    get_autograd_node,
    get_node_sequence_number,
    get_sequence_number,
    get_storage_id,
    pytree,
)

ACCUMULATION = "AccumulateGrad"
_FUNCTION_FILE = torch.autograd.function.__file__


@dataclass(slots=True)
class TaggedCall:
    """One operator call. `parameters` says of each tensor argument if it shares memory with a parameter.

    `part_of` is the composite operation that made the call, if that is more specific. It is `aten.reshape` for a clone
    followed by an `_unsafe_view`. It is `aten.matmul` if the only use of that view in the same phase is a matrix
    product at the same site. It is `AccumulateGrad` if autograd brings a gradient into its parameter's strides. `uses`
    counts the uses of that view.
    """

    operator: str
    site: CallSite
    phase: Phase
    parameters: tuple[bool, ...]
    part_of: str | None = None
    uses: int = 0


class OperatorTagger(TorchDispatchMode):
    """Runs each operator in the block in a region of `recorder`, whose key is the operator's index in `calls`.

    A higher-order operator is one call, which includes the body's copies.
    """

    supports_higher_order_operators = True

    def __init__(self, recorder: CopyRecorder, modules: ModuleStack, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[TaggedCall] = []
        self._recorder = recorder
        self._modules = modules
        self._parameters = {get_storage_id(p.untyped_storage()) for p in parameters if p.layout is torch.strided}
        self._sites = _SiteAttribution()
        self._last_clone: tuple[Tensor, TaggedCall] | None = None
        self._reshaped: dict[int, tuple[weakref.ref[Tensor], TaggedCall]] = {}

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run `func` in a separate region."""
        named = dict(kwargs or {})
        tensors = [a for a in pytree.tree_leaves((args, named)) if isinstance(a, Tensor)]
        call = TaggedCall(
            str(getattr(func, "overloadpacket", func)),
            *self._sites.attribute(tensors, self._modules),
            tuple(self._is_parameter(t) for t in tensors),
            # Only the node that adds a gradient to its parameter's has a variable.
            part_of=ACCUMULATION if getattr(get_autograd_node(), "variable", None) is not None else None,
        )
        clone = self._find_reshaped_clone(call, tensors)
        self.calls.append(call)
        with self._recorder.open_region(len(self.calls) - 1):
            result = func(*args, **named)
        self._last_clone = (result, call) if call.operator == "aten.clone" else None
        if clone is not None:
            self._reshaped[id(result)] = (weakref.ref(result), clone)
        return result

    def _is_parameter(self, tensor: Tensor) -> bool:
        return tensor.layout is torch.strided and get_storage_id(tensor.untyped_storage()) in self._parameters

    def _find_reshaped_clone(self, call: TaggedCall, tensors: Sequence[Tensor]) -> TaggedCall | None:
        """Return the clone that `call` turns into a reshape, if any; also note the uses of the reshaped tensor."""
        for tensor in tensors:
            reshaped = self._reshaped.get(id(tensor))
            if reshaped is None or reshaped[0]() is not tensor or reshaped[1].phase is not call.phase:
                continue
            made = reshaped[1]
            made.uses += 1
            folded = made.uses == 1 and call.operator in FOLDED_PRODUCTS and call.site == made.site
            made.part_of = "aten.matmul" if folded else "aten.reshape"
        if self._last_clone is None or call.operator != "aten._unsafe_view" or tensors[0] is not self._last_clone[0]:
            return None
        clone = self._last_clone[1]
        clone.part_of = "aten.reshape"
        return clone


class _SiteAttribution:
    """Forward operators and those of a custom function's backward belong to the live Python frame; other backward ones
    to the forward operator whose autograd sequence number they share; the accumulation of a parameter's gradient to the
    parameter's first use."""

    def __init__(self) -> None:
        self._by_sequence: dict[int, CallSite] = {}
        self._by_leaf: dict[int, CallSite] = {}

    def attribute(self, tensors: Sequence[Tensor], modules: ModuleStack) -> tuple[CallSite, Phase]:
        """Site and phase of the operator that is about to run on `tensors`."""
        node: Any = get_autograd_node()
        if node is not None and torch.is_grad_enabled():
            # Backward formulas run without gradients: what runs with them is a checkpoint's forward, computed again.
            again = self._attribute_by_frame(tensors, modules)
            if again.line:
                return again, Phase.BACKWARD
        if isinstance(node, BackwardCFunction):
            own = _find_custom_backward_site(sys._getframe(), modules.path)
            if own is not None:
                return own, Phase.BACKWARD
        if node is not None:
            leaf = getattr(node, "variable", None)
            site = (
                self._by_leaf.get(id(leaf))
                if leaf is not None
                else self._by_sequence.get(get_node_sequence_number(node))
            )
            return site or UNKNOWN_SITE, Phase.BACKWARD
        return self._attribute_by_frame(tensors, modules), Phase.FORWARD

    def _attribute_by_frame(self, tensors: Sequence[Tensor], modules: ModuleStack) -> CallSite:
        """The live frame's site, also noted for the backward that is to come."""
        site = resolve_module_site(find_user_frame(sys._getframe(), modules.path), modules.kind)
        if torch.is_grad_enabled():
            # Operators that autograd does not record share the number of the one before them: the first is the owner.
            self._by_sequence.setdefault(get_sequence_number() - 1, site)
            for tensor in tensors:
                if tensor.is_leaf and tensor.requires_grad:
                    self._by_leaf.setdefault(id(tensor), site)
        return site


def _find_custom_backward_site(frame: FrameType | None, module_path: str) -> CallSite | None:
    """The live line in the `backward` of a custom `torch.autograd.Function`; None where that is torch's own code."""
    while frame is not None and (frame.f_code.co_name, frame.f_code.co_filename) != ("apply", _FUNCTION_FILE):
        if not is_foreign(frame.f_code.co_filename):
            return find_user_frame(frame, module_path)
        frame = frame.f_back
    return None


class ModuleStack:
    """Tracks the running module in the block.

    `path` is the dotted path of the innermost module whose `forward` is running, `model.layer3.2`; `kind` is the
    class's name. `root` is the name of the outermost module. Outside of any module the path is empty.
    """

    def __init__(self, module: nn.Module | None, root: str = "model") -> None:
        self._module = module
        self._root = root
        self._entered: list[tuple[str, str]] = []
        self._handles: list[Any] = []

    @property
    def path(self) -> str:
        """The innermost module's path, or nothing."""
        return self._entered[-1][0] if self._entered else ""

    @property
    def kind(self) -> str:
        """The innermost module's class, or nothing."""
        return self._entered[-1][1] if self._entered else ""

    def __enter__(self) -> Self:
        for name, child in () if self._module is None else self._module.named_modules():
            entered = (f"{self._root}.{name}" if name else self._root, type(child).__name__)
            enter = functools.partial(self._enter_module, entered)
            self._handles.append(child.register_forward_pre_hook(enter, prepend=True))
            self._handles.append(child.register_forward_hook(self._leave_module, always_call=True))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._entered.clear()

    def _enter_module(self, entered: tuple[str, str], *_: object) -> None:
        self._entered.append(entered)

    def _leave_module(self, *_: object) -> None:
        self._entered.pop()

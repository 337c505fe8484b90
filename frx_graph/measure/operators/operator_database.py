"""Collect calls of ATen's overloads from torch's own operator database, and from the contract's cases.

The database (`op_db`) is in every wheel of torch. Importing it needs the package `expecttest`.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from frx_graph.errors import EvidenceError
from frx_graph.measure.operators.contract_cases import Case
from frx_graph.measure.operators.operator_inputs import build_arguments, find_own_overload
from frx_graph.support.torch_internals import OpOverload, TorchDispatchMode, get_schema, load_operator_database, pytree

_SAMPLES = 40
_CALLS_OF_OVERLOAD = 8
_DIFFERENTIATED = 12
"""Samples of an operator that are read, distinct calls kept for an overload, samples whose backward is run as well."""
_UNINITIALIZED = "empty"


@dataclass(frozen=True, eq=False)
class OverloadCall:
    """One call of an overload: the leaves of the arguments, and their structure."""

    overload: OpOverload
    leaves: tuple[Any, ...]
    spec: Any

    def run(self, leaves: Sequence[Any]) -> Any:
        """Return the results for other leaves."""
        args, kwargs = pytree.tree_unflatten(list(leaves), self.spec)
        return self.overload(*args, **kwargs)


def collect_database_calls(device: str, progress: Callable[[str], None] = lambda _name: None) -> list[OverloadCall]:
    """Return the calls that the samples of the operator database make, forward and backward, in fp32.

    Raises `EvidenceError` if the database cannot be imported.
    """
    try:
        database = load_operator_database()
    except ImportError as error:
        raise EvidenceError(f"torch's operator database cannot be imported: {error}") from error
    collector = _CallCollector()
    with warnings.catch_warnings(action="ignore"), torch.random.fork_rng():
        for info in database:
            if torch.float32 in info.supported_dtypes(device):
                progress(info.name)
                _run_samples(info, device, collector)
    return collector.list_calls()


def collect_case_calls(cases: Iterable[Case], device: str) -> Iterator[OverloadCall]:
    """Yield the contract's own calls, in fp32; those that this torch does not have are left out."""
    for case in cases:
        signature = case.make_signature(torch.float32, device)
        try:
            overload = find_own_overload(signature.target)
            args, kwargs = build_arguments(signature)
        except LookupError:
            continue
        leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        yield OverloadCall(overload, tuple(leaves), spec)


def _run_samples(info: Any, device: str, collector: _CallCollector) -> None:
    # Samples of some operators need libraries that are missing, and some raise on purpose.
    try:
        samples = info.sample_inputs(device, torch.float32, requires_grad=info.supports_autograd)
        for number, sample in enumerate(itertools.islice(samples, _SAMPLES)):
            with collector:
                result = info.op(sample.input, *sample.args, **sample.kwargs)
                roots = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
                if roots and number < _DIFFERENTIATED:
                    torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    except Exception:  # noqa: BLE001
        return


class _CallCollector(TorchDispatchMode):
    """Keeps some calls of each functional overload, with copies of their tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: dict[OpOverload, dict[object, OverloadCall]] = {}

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run `func`, and keep the call if it is another one."""
        named = dict(kwargs or {})
        if is_comparable(func):
            leaves, spec = pytree.tree_flatten((tuple(args), named))
            kept = self._calls.setdefault(func, {})
            key = tuple(map(_describe, leaves))
            if key not in kept and len(kept) < _CALLS_OF_OVERLOAD and all(map(_is_strided, leaves)):
                kept[key] = OverloadCall(func, tuple(map(_copy, leaves)), spec)
        return func(*args, **named)

    def list_calls(self) -> list[OverloadCall]:
        return [call for kept in self._calls.values() for call in kept.values()]


def is_comparable(func: OpOverload) -> bool:
    """Return True for ATen's overloads that return tensors in memory of their own."""
    schema = get_schema(func)
    return (
        func.namespace == "aten"
        and not any(returned.alias_info is not None for returned in schema.returns)
        and _UNINITIALIZED not in schema.name
    )


def _is_strided(leaf: Any) -> bool:
    return not isinstance(leaf, Tensor) or leaf.layout is torch.strided


def _describe(leaf: Any) -> object:
    return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else repr(leaf)


def _copy(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf

"""Families of torch's operators on which several parts of the advisor have to agree, named as `OpFacts.operator` is.

A graph holds composite operators (`contiguous`, `linear`) only where torch does not take them apart: in inference mode.
"""

from __future__ import annotations

from collections.abc import Iterable

LAYOUT_COPIES = frozenset({"aten.clone", "aten.contiguous", "aten._to_copy"})
"""Operators that copy a tensor, and change nothing but its layout unless they are told to."""
TRACED_COPIES = LAYOUT_COPIES - {"aten.contiguous"}
"""Those that a compiler is given: `torch.compile` makes clones of `contiguous`. Where one stands in a graph that is
compiled, a rewrite has put it there because strides may turn out otherwise than predicted."""
EXPLICIT_COPIES = LAYOUT_COPIES | {"aten.lift_fresh_copy"}
"""Operators that a program calls in order to get a copy; `lift_fresh_copy` is that of a constant."""
WRITING_COPIES = frozenset({"aten.copy_"})
"""Operators that copy their second tensor into their first, which is there already: `y.copy_(x)`, `y[i:j] = x`."""

MATRIX_PRODUCTS = frozenset({"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"})
"""The products that torch takes `matmul`, `linear` and `einsum` apart into."""
FOLDED_PRODUCTS = MATRIX_PRODUCTS | {"aten.addbmm", "aten.linear"}
"""Products whose operand `matmul` may have folded, in a copy, to two or three dimensions."""

GATHERS = frozenset({"aten.index", "aten._unsafe_index"})
"""Operators that read at the places that index tensors name: what torch takes upsampling apart into."""

CONVOLUTIONS = frozenset({"aten.convolution", "aten.convolution_backward"})

_COLLECTIVE_NAMESPACES = frozenset(
    {"_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d", "symm_mem"}
)


def is_collective(operator: str) -> bool:
    """True for communication between processes, as graphs hold it."""
    return operator.partition(".")[0] in _COLLECTIVE_NAMESPACES


def profiled(operators: Iterable[str]) -> frozenset[str]:
    """The same operators by the profiler's names: `aten::clone`."""
    return frozenset(operator.replace(".", "::", 1) for operator in operators)

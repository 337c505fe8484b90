"""Families of torch's operators that several modules share, named like `OpFacts.operator`.

A graph holds composite operators (`contiguous`, `linear`) only in inference mode, where torch does not decompose them.
"""

from __future__ import annotations

from collections.abc import Iterable

LAYOUT_COPIES = frozenset({"aten.clone", "aten.contiguous", "aten._to_copy"})
"""Operators that copy a tensor and by default change only its layout."""
TRACED_COPIES = LAYOUT_COPIES - {"aten.contiguous"}
"""The copies that a compiler receives: `torch.compile` makes clones of `contiguous`. A `contiguous` in a compiled graph
was put there by a rewrite, because strides may differ from the prediction."""
EXPLICIT_COPIES = LAYOUT_COPIES | {"aten.lift_fresh_copy"}
"""Operators that a program calls to get a copy; `lift_fresh_copy` copies a constant."""
WRITING_COPIES = frozenset({"aten.copy_"})
"""Operators that copy their second tensor into their first, which exists already: `y.copy_(x)`, `y[i:j] = x`."""

MATRIX_PRODUCTS = frozenset({"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"})
"""Products into which torch decomposes `matmul`, `linear` and `einsum`."""
FOLDED_PRODUCTS = MATRIX_PRODUCTS | {"aten.addbmm", "aten.linear"}
"""Products with an operand that `matmul` may have folded, in a copy, to two or three dimensions."""

GATHERS = frozenset({"aten.index", "aten._unsafe_index"})
"""Operators that read at places that index tensors name; torch decomposes upsampling into these."""

CONVOLUTIONS = frozenset({"aten.convolution", "aten.convolution_backward"})

_COLLECTIVE_NAMESPACES = frozenset(
    {"_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d", "symm_mem"}
)


def is_collective(operator: str) -> bool:
    """Return True for communication between processes."""
    return operator.partition(".")[0] in _COLLECTIVE_NAMESPACES


def get_profiler_names(operators: Iterable[str]) -> frozenset[str]:
    """Return the names that the profiler gives to these operators: `aten::clone`."""
    return frozenset(operator.replace(".", "::", 1) for operator in operators)

"""Group operators by line of the program; each group becomes one finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from frx_graph.capture.call_site import CallSite, merge_module_paths
from frx_graph.facts.graph_facts import OpFacts

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def group_by(items: Iterable[Item], key_of: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by key, in order of first appearance."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key_of(item), []).append(item)
    return groups


def group_by_place(items: Iterable[Item], site_of: Callable[[Item], CallSite]) -> list[list[Item]]:
    """Group items by the place of their call site (`CallSite.place`), in order of first appearance."""
    return list(group_by(items, lambda item: site_of(item).place).values())


def merge_sites(ops: Sequence[OpFacts]) -> CallSite:
    """Return the line of the first operator, with the module paths of all folded into one."""
    return replace(ops[0].site, module_path=merge_module_paths(op.site.module_path for op in ops))


def list_module_paths(ops: Iterable[OpFacts]) -> tuple[str, ...]:
    """Return module paths in order of appearance."""
    return tuple(dict.fromkeys(op.site.module_path for op in ops if op.site.module_path))


def shorten_operator_name(op: OpFacts) -> str:
    """Return the name that users know: `convolution`, `add`, `mylib.op`."""
    return op.operator.removeprefix("aten.").removesuffix("_").removeprefix("native_").lstrip("_")


def format_operator_names(ops: Iterable[OpFacts]) -> str:
    """Join distinct names in order, with their count if above one: `batch_norm, relu ×2`."""
    counts = Counter(map(shorten_operator_name, ops))
    return ", ".join(name if count == 1 else f"{name} ×{count}" for name, count in counts.items())

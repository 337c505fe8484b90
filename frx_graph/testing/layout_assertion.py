"""Fail a test for a layout copy that one real step of a model makes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from frx_graph.advisor.advisor import advise
from frx_graph.errors import TargetError
from frx_graph.records import Copy
from frx_graph.reports.render.quantities import format_count
from frx_graph.reports.render.source_path import shorten_path
from frx_graph.support.plain_text import format_bytes

_LISTED = 10


def assert_no_layout_copies(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    train: bool = False,
    allow: Collection[str] = (),
) -> None:
    """Run one call of `model(*args, **kwargs)`, with `train` its backward too, and fail if it copies for layout's sake.

    `allow` names copies that are known: by operator (`aten.clone`), function, module path, file (`model.py`) or line
    (`model.py:12`). State of the model is restored, as `frx_graph.advise` does it.

    Raises `AssertionError` for other copies, and for names in `allow` that no copy has. Raises `TargetError` if the
    step cannot be observed.
    """
    __tracebackhide__ = True
    advice = advise(model, args, kwargs, train=train, observe=True, measure=False).advice
    if advice.observed is None:
        reason = next((one.reason for one in advice.refusals if one.subject == "observation"), "it was not observed")
        raise TargetError(reason, "does the model run by itself?")
    names = {copy: frozenset(_list_names(copy)) for copy in advice.observed}
    allowed = frozenset(allow)
    found = [copy for copy, own in names.items() if not own & allowed]
    if found:
        raise AssertionError(_describe_copies(found))
    unused = sorted(allowed.difference(*names.values()))
    if unused:
        raise AssertionError(f"allow names {', '.join(unused)}, and no layout copy has that name: take it out")


def _list_names(copy: Copy) -> Iterator[str]:
    file = Path(copy.site.file).name
    yield from (copy.operator, copy.operator.rpartition(".")[0], file, f"{file}:{copy.site.line}")
    yield from (name for name in (copy.site.function, copy.site.module_path) if name)


def _describe_copies(copies: Sequence[Copy]) -> str:
    count = sum(copy.count for copy in copies)
    moved = format_bytes(sum(copy.bytes for copy in copies))
    lines = [f"{format_count(count, 'layout copy', 'layout copies')} in a step, {moved}:"]
    for copy in sorted(copies, key=lambda one: -one.bytes)[:_LISTED]:
        place = f"{shorten_path(copy.site.file, Path.cwd())}:{copy.site.line}"
        lines.append(f"  {place}: {copy.operator}, {copy.count} times, {format_bytes(copy.bytes)} ({copy.cause})")
    if len(copies) > _LISTED:
        lines.append(f"  and {len(copies) - _LISTED} more places")
    return "\n".join(lines)

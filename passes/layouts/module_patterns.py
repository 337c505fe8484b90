"""Many module paths as few patterns that name these modules and no others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_Pattern = tuple[str, ...]
_ANY = "*"


def module_patterns(paths: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """`model.layer3.*.conv1` for the blocks of a stage, in order of first appearance; `*` stands for one part.

    No pattern matches one of `others`, and every path is matched. The last part is never `*`: it says what the module
    is.
    """
    patterns: list[_Pattern] = [tuple(path.split(".")) for path in dict.fromkeys(paths)]
    foreign = [tuple(path.split(".")) for path in others]
    for position in range(max(map(len, patterns), default=0) - 1):
        patterns = _merged(patterns, position, foreign)
    return tuple(".".join(pattern) for pattern in patterns)


def _merged(patterns: Sequence[_Pattern], position: int, foreign: Sequence[_Pattern]) -> list[_Pattern]:
    """Those that differ only at `position` as one, where that does not take in what is foreign."""
    alike: dict[_Pattern, list[_Pattern]] = {}
    for pattern in patterns:
        # The last part stays; a path that is shorter has nothing to merge here.
        last = position >= len(pattern) - 1
        key = pattern if last else (*pattern[:position], _ANY, *pattern[position + 1 :])
        alike.setdefault(key, []).append(pattern)
    merged: list[_Pattern] = []
    for key, members in alike.items():
        if len(members) > 1 and not any(_matches(key, path) for path in foreign):
            merged.append(key)
        else:
            merged.extend(members)
    return merged


def _matches(pattern: _Pattern, path: _Pattern) -> bool:
    return len(pattern) == len(path) and all(part in (_ANY, other) for part, other in zip(pattern, path, strict=True))

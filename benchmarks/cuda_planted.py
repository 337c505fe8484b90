"""Plants a defect in a kernel that has none, so that what a CUDA source rule misses does not hang on who wrote it.

    python benchmarks/cuda_planted.py FOLDER [--rule RULE] [--draw N] [--most M] [--seed S] [--known FOLDER]

FOLDER holds checkouts as `owner+name`. Prints N mutants in an order drawn with the seed, at most M of a repository,
each with its kernel and the line that was changed, for a reader, who says of each whether it has the defect. Nothing is
analysed. Kernels that are the same but for names and blanks count once, those in `--known` not at all.

- `shared_memory_without_barrier`: the barriers of the block on one line are taken out. Not each is missed: some part
  the reads of one turn from the writes of the next, which is another defect, and some are superfluous.
- `possible_shared_memory_bank_conflict`: the `+ 1` behind the last dimension of a shared array is taken out, or `[33]`
  becomes `[32]`. Not each makes a conflict: some of them have room for a border.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from frx_graph.evidence.cuda.kernels import find_kernels, get_function_name
from frx_graph.evidence.cuda.syntax import get_line, parse_tree

RACE = "shared_memory_without_barrier"
CONFLICT = "possible_shared_memory_bank_conflict"
ENDINGS = frozenset([".cu", ".cuh"])
_LONGEST = 110
"""Lines of a kernel; longer ones nobody judges by reading."""
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BLOCK = r"(?:cta|block|tb|thread_block)"
_BARRIER = re.compile(
    rf"\b__syncthreads\s*\(\s*\)|\b(?:cg|cooperative_groups)::(?:sync|synchronize)\s*\(\s*{_BLOCK}\s*\)"
    rf"|\b{_BLOCK}\s*\.\s*sync\s*\(\s*\)"
)
_PADDING = re.compile(r"(?<=\w)(\s*\+\s*1\s*)(?=\]\s*[;,=])|(?<=\[)(\s*(?:33|17|65)\s*)(?=\]\s*[;,=])")
"""Of the last pair of brackets."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\S")


@dataclass(frozen=True)
class Place:
    """A line of a kernel on which something can be planted. `alike` are its tokens, names by where they first come."""

    file: Path
    kernel: str
    first: int
    last: int
    line: int
    alike: tuple[str, ...]


def planted(rule: str, text: str, line: int) -> str:
    """The text with the defect planted on a line, as long as before. Raises `ValueError` where that has nothing to
    take out."""
    lines = text.split("\n")
    pattern = _BARRIER if rule == RACE else _PADDING
    after = pattern.sub(_gone if rule == RACE else _narrower, lines[line - 1])
    if after == lines[line - 1]:
        raise ValueError(f"line {line} has nothing that {rule} could be planted by: {after.strip()}")
    return "\n".join([*lines[: line - 1], after, *lines[line:]])


def places(rule: str, file: Path) -> Iterator[Place]:
    """Where the rule's defect can be planted in the kernels of a file."""
    text = file.read_text(errors="replace")
    if "__global__" not in text:
        return
    code = _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text).split("\n")
    tree = parse_tree(text.encode("utf-8", "replace"))
    for node in (one.node for one in find_kernels(tree)[0]):
        first, last = get_line(node), node.end_point[0] + 1
        if last - first >= _LONGEST:
            continue
        name = get_function_name(tree.text, node).split("<", 1)[0].rsplit("::", 1)[-1]
        alike = tuple(_alike("\n".join(code[first - 1 : last])))
        for line in range(first, last + 1):
            changed = code[line - 1]
            fits = _BARRIER.search(changed) if rule == RACE else "__shared__" in changed and _PADDING.search(changed)
            if fits:
                yield Place(file, name, first, last, line, (str(line - first), *alike))


def drawn(rule: str, folder: Path, seed: int, most: int, known: Path | None) -> Iterator[Place]:
    """All places below a folder in the order of a seed, at most so many of a repository, of kernels alike one."""
    seen = {place.alike[1:] for place in _all(rule, known)} if known is not None else set()
    fresh = [place for place in _all(rule, folder) if place.alike[1:] not in seen]
    random.Random(seed).shuffle(fresh)
    taken: set[tuple[str, ...]] = set()
    of: Counter[str] = Counter()
    for place in fresh:
        repository = place.file.relative_to(folder).parts[0]
        if place.alike not in taken and of[repository] < most:
            taken.add(place.alike)
            of[repository] += 1
            yield place


def _all(rule: str, folder: Path) -> Iterator[Place]:
    for file in sorted(folder.rglob("*")):
        if file.suffix in ENDINGS and file.is_file():
            yield from places(rule, file)


def _gone(found: re.Match[str]) -> str:
    return " " * len(found[0])


def _narrower(found: re.Match[str]) -> str:
    size = found[0].strip()
    return found[0].replace(size, str(int(size) - 1)) if size.isdecimal() else _gone(found)


def _alike(text: str) -> Iterator[str]:
    numbers: dict[str, str] = {}
    for token in _TOKEN.findall(text):
        yield numbers.setdefault(token, f"#{len(numbers)}") if _NAME.fullmatch(token) else token


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rule", choices=(RACE, CONFLICT), default=RACE)
    parser.add_argument("--draw", type=int, default=60)
    parser.add_argument("--most", type=int, default=5, help="of a repository")
    parser.add_argument("--seed", type=int, default=2411)
    parser.add_argument("--known", type=Path, help="checkouts whose kernels are left out")
    arguments = parser.parse_args()
    shown = drawn(arguments.rule, arguments.folder, arguments.seed, arguments.most, arguments.known)
    for number, place in zip(range(1, arguments.draw + 1), shown, strict=False):
        print(f"\n=== {number} {place.file.relative_to(arguments.folder)}:{place.line} {place.kernel}")
        lines = place.file.read_text(errors="replace").split("\n")
        for line in range(place.first, place.last + 1):
            print(f"{'>>' if line == place.line else '  '}{line:5} {lines[line - 1].rstrip()}")


if __name__ == "__main__":
    main()

"""Reads PTX by a grammar, and sums each function up as it is read."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken

from frx_graph.errors import EvidenceError
from frx_graph.evidence.ptx.instruction import Instruction, Kind, parse_instruction
from frx_graph.evidence.ptx.module import Function, Loop, PtxModule
from frx_graph.evidence.text_lines import text_lines

EXPECTED = "PTX, as `nvcc -ptx` writes it"
MOST_CHARACTERS = 256 << 20
_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|/\*', re.DOTALL)
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+([^;]*);")
_COUNTED = re.compile(r"[\w%$]+<(\d{1,9})>")
_ARRAY = re.compile(
    r"\.(local|shared)\b(?:\s+\.align\s+\d+)?\s+\.(?:v([24])\s+\.)?([busf]\d+(?:x2)?)\s+[\w%$]+((?:\[\d*\])*)"
)
_SIZE = re.compile(r"\d+")
_DEPTH = 200
"""Blocks within blocks; inline assembly makes a few."""


@dataclass(frozen=True, slots=True)
class _Label:
    name: str
    line: int


def read_ptx(path: Path) -> PtxModule:
    """The module in the file at `path`. Raises `EvidenceError` for what is no PTX, with the line."""
    with text_lines(path, EXPECTED, longest=MOST_CHARACTERS) as lines:
        size, kept = 0, []
        for line in lines:
            size += len(line)
            if size > MOST_CHARACTERS:
                raise EvidenceError(f"{path}: longer than {MOST_CHARACTERS:,} characters")
            kept.append(line)
    return parse_ptx("".join(kept), str(path))


def parse_ptx(text: str, source: str) -> PtxModule:
    """The module in `text`. Raises `EvidenceError`, which names `source` and the line."""
    if ".version" not in text:
        raise EvidenceError(f"{source}: no .version, expected {EXPECTED}")
    plain = _without_comments(text, source)
    if _deepest(plain) > _DEPTH:
        raise EvidenceError(f"{source}: blocks more than {_DEPTH} deep, expected {EXPECTED}")
    try:
        items = _parser().parse(plain)
    except UnexpectedInput as error:
        _refuse(error, plain, source)
    except ValueError as error:
        # What the grammar takes for an instruction and `instruction.py` does not.
        raise EvidenceError(f"{source}: no PTX instruction: {str(error)[:60]!r}") from None
    return _module(items, source)


@functools.cache
def _parser() -> Any:
    grammar = (resources.files("frx_graph.evidence.ptx") / "grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", lexer="contextual", transformer=_Build(), maybe_placeholders=False)


def _without_comments(text: str, source: str) -> str:
    """The same lines without comments; strings stay."""

    def blank(found: re.Match[str]) -> str:
        if found[0] == "/*":
            line = text.count("\n", 0, found.start()) + 1
            raise EvidenceError(f"{source}: line {line}: a comment that does not end")
        return found[0] if found[0].startswith('"') else "\n" * found[0].count("\n") or " "

    return _COMMENT_OR_STRING.sub(blank, text)


def _deepest(text: str) -> int:
    depth = deepest = 0
    for found in re.finditer(r"[{}]", text):
        depth += 1 if found[0] == "{" else -1
        deepest = max(deepest, depth)
    return deepest


def _refuse(error: UnexpectedInput, text: str, source: str) -> NoReturn:
    if isinstance(error, UnexpectedEOF) or (isinstance(error, UnexpectedToken) and error.token.type == "$END"):
        raise EvidenceError(f"{source}: line {text.count(chr(10)) + 1}: it ends in the middle, expected '}}'") from None
    assert isinstance(error, (UnexpectedCharacters, UnexpectedToken))
    line = text.splitlines()[error.line - 1] if 0 < error.line <= text.count("\n") + 1 else ""
    seen = line.strip()[:60]
    raise EvidenceError(f"{source}: line {error.line}: no PTX statement: {seen!r}") from None


class _Build(Transformer[Token, Any]):
    """Makes a `_Body` of each block, and an item of each entry and function."""

    def start(self, items: list[Any]) -> list[Any]:
        return items

    def linkage(self, items: list[Token]) -> Token:
        return Token("LINKAGE", str(items[0]))

    def body(self, items: list[Any]) -> list[Any]:
        """What stands in it; of a block within, in its place."""
        flat: list[Any] = []
        for item in items:
            flat.extend(item) if isinstance(item, list) else flat.append(item)
        return flat

    def entry(self, items: list[Any]) -> Function | str:
        return _function(items, entry=True)

    def function(self, items: list[Any]) -> Function | str:
        return _function(items, entry=False)


def _function(items: Sequence[Any], *, entry: bool) -> Function | str:
    name = next(item for item in items if isinstance(item, Token) and item.type == "NAME")
    body = next((item for item in items if isinstance(item, list)), None)
    if body is None:
        return str(name)
    tokens = [item for item in items if isinstance(item, Token)]
    steps = list(_steps(body))
    instructions = [step for step in steps if isinstance(step, Instruction)]
    variables = "\n".join(item for item in body if item.type == "VARIABLE")
    return Function(
        name=str(name),
        entry=entry,
        linkage=" ".join(token.removeprefix(".") for token in tokens if token.type == "LINKAGE"),
        line=name.line or 1,
        mix=Counter(instruction.kind for instruction in instructions),
        virtual_registers=_registers(variables),
        local_bytes=_bytes(variables, "local"),
        shared_bytes=_bytes(variables, "shared"),
        branches=sum(step.target is not None and step.predicated for step in instructions),
        loops=_loops(steps),
        capabilities=frozenset(_capabilities(instructions)),
        tuning=tuple(" ".join(token.split()) for token in tokens if token.type == "TUNING"),
    )


def _steps(body: Sequence[Token]) -> Iterator[Instruction | _Label]:
    for token in body:
        if token.type == "INSTRUCTION":
            yield parse_instruction(str(token))
        elif token.type == "LABEL":
            yield _Label(token[:-1].rstrip(), token.line or 1)


def _registers(variables: str) -> int:
    total = 0
    for kind, names in _REGISTERS.findall(variables):
        if kind == "pred":
            continue
        counts = [int(count) for count in _COUNTED.findall(names)]
        # `.reg .b32 a, b;` names two.
        count = sum(counts) + len([one for one in names.split(",") if "<" not in one and one.strip()])
        total += count * (4 if kind == "b128" else 2 if kind.endswith("64") else 1)
    return total


def _bytes(variables: str, space: str) -> int:
    total = 0
    for found, vector, kind, sizes in _ARRAY.findall(variables):
        if found != space:
            continue
        width = int(_SIZE.findall(kind)[0]) // 8 or 1
        count = int(vector or 1) * (2 if kind.endswith("x2") else 1)
        for size in _SIZE.findall(sizes):
            count *= int(size)
        # An array without a size is as large as the launch says.
        total += width * count if "[]" not in sizes else 0
    return total


def _loops(steps: Sequence[Instruction | _Label]) -> tuple[Loop, ...]:
    """A loop for each label that something behind it branches to."""
    labels = {step.name: place for place, step in enumerate(steps) if isinstance(step, _Label)}
    last: dict[str, int] = {}
    for place, step in enumerate(steps):
        if isinstance(step, Instruction) and step.target is not None and labels.get(step.target, place + 1) <= place:
            last[step.target] = place
    spans = {label: (labels[label], end) for label, end in last.items()}
    return tuple(
        _loop(label, steps, span, innermost=not any(_inside(other, span) for other in spans.values()))
        for label, span in sorted(spans.items(), key=lambda item: item[1])
    )


def _inside(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return inner != outer and outer[0] <= inner[0] and inner[1] <= outer[1]


def _loop(label: str, steps: Sequence[Instruction | _Label], span: tuple[int, int], *, innermost: bool) -> Loop:
    begin = steps[span[0]]
    assert isinstance(begin, _Label)
    inside = [step for step in steps[span[0] : span[1] + 1] if isinstance(step, Instruction)]
    return Loop(label, begin.line, len(inside), Counter(step.kind for step in inside), innermost)


def _capabilities(instructions: Sequence[Instruction]) -> Iterator[str]:
    for instruction in instructions:
        opcode, words = instruction.opcode, instruction.words
        if instruction.kind is Kind.TENSOR:
            yield "tensor_cores"
        if instruction.kind is Kind.FP64:
            yield "fp64"
        if instruction.kind is Kind.ATOMIC:
            yield "atomics"
        if instruction.kind is Kind.SFU:
            yield "sfu"
        if opcode in ("wgmma", "tcgen05", "mbarrier"):
            yield opcode
        if opcode in ("bar", "barrier"):
            yield "barriers"
        if words[:2] == ("cp", "async"):
            yield "tma" if "bulk" in words else "cp_async"


def _module(items: Sequence[Any], source: str) -> PtxModule:
    tokens = {item.type: str(item) for item in reversed(items) if isinstance(item, Token)}
    return PtxModule(
        source=source,
        version=tokens.get("VERSION", "").removeprefix(".version").strip(),
        target=tokens.get("TARGET", "").removeprefix(".target").strip(),
        functions=tuple(item for item in items if isinstance(item, Function)),
        declared=tuple(item for item in items if isinstance(item, str) and not isinstance(item, Token)),
    )

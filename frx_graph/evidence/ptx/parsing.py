"""Read PTX with a grammar, and summarise each function as it is read."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken

from frx_graph.errors import EvidenceError
from frx_graph.evidence.ptx.code import DECLARATION, STATEMENTS, Code, read_code
from frx_graph.evidence.ptx.declarations import count_declared_bytes, count_virtual_registers, list_shared_variables
from frx_graph.evidence.ptx.instruction import Kind, Opcode
from frx_graph.evidence.ptx.loops import find_loops
from frx_graph.evidence.ptx.module import Function, Loop, PtxModule
from frx_graph.evidence.text_lines import read_whole_text

EXPECTED = "PTX, as `nvcc -ptx` or `cuobjdump -ptx` writes it"
MOST_CHARACTERS = 256 << 20
_IDENTIFIER = re.compile(r"[A-Za-z_$%][\w$]*")
_COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\[^\n])*"?|/\*|^[ \t]*#[^\n]*', re.DOTALL | re.MULTILINE
)


def read_ptx(path: Path) -> PtxModule:
    """Read the module in the file at `path`. Raises `EvidenceError`, with the line, if it is not PTX."""
    return parse_ptx(read_whole_text(path, EXPECTED, longest=MOST_CHARACTERS), str(path))


def parse_ptx(text: str, source: str) -> PtxModule:
    """Read the module in `text`. Raises `EvidenceError`, which names `source` and the line."""
    if ".version" not in text:
        raise EvidenceError(f"{source}: no .version, expected {EXPECTED}")
    text = _strip_comments(extract_ptx(text, source) if is_fatbin(text) else text, source)
    try:
        items = _build_parser().parse(text)
    except UnexpectedInput as error:
        _refuse(error, text, source)
    except ValueError as error:
        raise EvidenceError(f"{source}: {error}, expected {EXPECTED}") from None
    return _build_module(items, text, source)


@functools.cache
def _build_parser() -> Any:
    grammar = (resources.files("frx_graph.evidence.ptx") / "grammar.lark").read_text(encoding="utf-8")
    # A `.visible` declaration is a longer match than the word alone, so it comes first.
    lexical = f"\nDECLARATION.1: /{DECLARATION}/\nSTATEMENTS: /{STATEMENTS}/\n"
    return Lark(
        grammar + lexical, parser="lalr", lexer="contextual", transformer=_FunctionBuilder(), maybe_placeholders=False
    )


def _strip_comments(text: str, source: str) -> str:
    """Return the same lines without comments; strings stay."""

    def strip_comment(found: re.Match[str]) -> str:
        if found[0] == "/*":
            line = text.count("\n", 0, found.start()) + 1
            raise EvidenceError(f"{source}: line {line}: a comment that does not end")
        return found[0] if found[0].startswith('"') else "\n" * found[0].count("\n") or " "

    return _COMMENT_OR_STRING.sub(strip_comment, text)


def _refuse(error: UnexpectedInput, text: str, source: str) -> NoReturn:
    if isinstance(error, UnexpectedEOF) or (isinstance(error, UnexpectedToken) and error.token.type == "$END"):
        raise EvidenceError(f"{source}: line {text.count(chr(10)) + 1}: it ends in the middle, expected '}}'") from None
    assert isinstance(error, (UnexpectedCharacters, UnexpectedToken))
    line = text.split("\n")[error.line - 1] if error.line > 0 else ""
    seen = line.strip()[:60]
    raise EvidenceError(f"{source}: line {error.line}: no PTX statement: {seen!r}") from None


class _FunctionBuilder(Transformer[Token, Any]):
    """Keeps the runs of statements of each body, and makes a `Function` from it."""

    def start(self, items: list[Any]) -> list[Any]:
        return items

    def body(self, items: list[Any]) -> list[Any]:
        return items

    def entry(self, items: list[Any]) -> Function | str:
        return _build_function(items, entry=True)

    def function(self, items: list[Any]) -> Function | str:
        return _build_function(items, entry=False)


def _build_function(items: Sequence[Any], *, entry: bool) -> Function | str:
    name = next(item for item in items if isinstance(item, Token) and item.type == "NAME")
    body = next((item for item in items if isinstance(item, list)), None)
    if body is None:
        return str(name)
    tokens = [item for item in items if isinstance(item, Token)]
    code = read_code(body)
    opcodes = Counter(code.opcodes)
    return Function(
        name=str(name),
        entry=entry,
        linkage=" ".join(token.removeprefix(".") for token in tokens if token.type == "LINKAGE"),
        line=name.line or 1,
        mix=_count_kinds(opcodes),
        virtual_registers=count_virtual_registers(code.declarations),
        local_bytes=count_declared_bytes(code.declarations, "local"),
        shared_bytes=count_declared_bytes(code.declarations, "shared"),
        branches=code.branches,
        reductions=code.reductions,
        loops=_summarize_loops(code),
        capabilities=frozenset().union(*(opcode.capabilities for opcode in opcodes)),
        calls=frozenset(code.calls),
        tuning=tuple(" ".join(token.split()) for token in tokens if token.type == "TUNING"),
    )


def _count_kinds(opcodes: Mapping[Opcode, int]) -> Counter[Kind]:
    mix: Counter[Kind] = Counter()
    for opcode, count in opcodes.items():
        mix[opcode.kind] += count
    return mix


def _summarize_loops(code: Code) -> tuple[Loop, ...]:
    """Return the functions in the file's order."""
    found = find_loops(len(code.opcodes), code.jumps, code.ends)
    mixes: dict[int, Counter[Kind]] = {}
    parents = {loop.parent for loop in found}
    loops = []
    for loop in found:
        mix = mixes.setdefault(loop.header, Counter())
        mix += _count_kinds(Counter(opcode for begin, end in loop.spans for opcode in code.opcodes[begin:end]))
        if loop.parent is not None:
            mixes.setdefault(loop.parent, Counter()).update(mix)
        label, line = code.labels[loop.header]
        loops.append((loop.header, Loop(label, line, mix.total(), mix, innermost=loop.header not in parents)))
    return tuple(loop for _, loop in sorted(loops, key=lambda one: one[0]))


def _build_module(items: Sequence[Any], text: str, source: str) -> PtxModule:
    tokens = {item.type: str(item) for item in reversed(items) if isinstance(item, Token)}
    functions = [item for item in items if isinstance(item, Function)]
    declarations = [item for item in items if isinstance(item, Token) and item.type == "DECLARATION"]
    if shared := list_shared_variables(declarations):
        lines = text.split("\n")
        for declaration in declarations:
            # A line of the module may stand between two functions.
            lines[(declaration.line or 1) - 1] = ""
        functions = _add_module_shared_bytes(functions, shared, lines)
    # A function may be declared before it is defined.
    defined = {function.name for function in functions}
    declared = (item for item in items if isinstance(item, str) and not isinstance(item, Token))
    return PtxModule(
        source=source,
        version=tokens.get("VERSION", "").removeprefix(".version").strip(),
        target=tokens.get("TARGET", "").removeprefix(".target").strip(),
        functions=tuple(_add_called_capabilities(functions)),
        declared=tuple(name for name in declared if name not in defined),
    )


def _add_module_shared_bytes(
    functions: Sequence[Function], shared: Mapping[str, int], lines: Sequence[str]
) -> list[Function]:
    """Add the module's shared variables that a function uses, and that the functions it calls use."""
    named = {function.name: function for function in functions}
    ends = [function.line - 1 for function in functions[1:]] + [len(lines)]
    used = {
        function.name: set(_IDENTIFIER.findall("\n".join(lines[function.line - 1 : end]))) & shared.keys()
        for function, end in zip(functions, ends, strict=True)
    }
    return [
        replace(
            function,
            shared_bytes=function.shared_bytes
            + sum(shared[name] for name in set().union(*(used[one.name] for one in _list_called(function, named)))),
        )
        for function in functions
    ]


def _list_called(function: Function, named: Mapping[str, Function]) -> list[Function]:
    """Return a function and all that it calls, directly or not."""
    reached = {function.name: function}
    waiting = [function]
    while waiting:
        called = [named[name] for name in waiting.pop().calls if name in named and name not in reached]
        reached.update((one.name, one) for one in called)
        waiting += called
    return list(reached.values())


def _add_called_capabilities(functions: Sequence[Function]) -> Iterator[Function]:
    """Add the capabilities of called functions to each entry: without optimisation, they hold the matrix products."""
    named = {function.name: function for function in functions}
    for function in functions:
        if not function.entry or not function.calls:
            yield function
            continue
        capabilities = (one.capabilities for one in _list_called(function, named))
        yield replace(function, capabilities=frozenset().union(*capabilities))


_PART = re.compile(r"^Fatbin (?:elf|ptx) code:[ \t]*\r?$", re.MULTILINE)
_VERSION = re.compile(r"^[ \t]*\.version\b", re.MULTILINE)
_TARGET = re.compile(r"^[ \t]*\.target[ \t]+(\w+)", re.MULTILINE)


def is_fatbin(text: str) -> bool:
    """Return True for output of cuobjdump."""
    return "Fatbin" in text and _PART.search(text) is not None


def find_fatbin_modules(text: str) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of the PTX in each part."""
    heads = [found.start() for found in _PART.finditer(text)]
    for begin, end in zip(heads, [*heads[1:], len(text)], strict=True):
        version = _VERSION.search(text, begin, end)
        if version is not None:
            yield version.start(), end


def extract_ptx(text: str, source: str) -> str:
    """Return the same lines without those of cuobjdump. Raises `EvidenceError`, which names `source`, for PTX with
    several targets: each has the same kernels."""
    kept: list[str] = []
    at = 0
    targets: dict[str, None] = {}
    for begin, end in find_fatbin_modules(text):
        targets.update(dict.fromkeys(_TARGET.findall(text, begin, end)))
        kept += ("\n" * text.count("\n", at, begin), text[begin:end])
        at = end
    if len(targets) > 1:
        last = list(targets)[-1]
        raise EvidenceError(
            f"{source}: PTX for {' and '.join(list(targets)[:5])}, expected one target", f"cuobjdump -ptx -arch {last}"
        )
    return "".join(kept)

"""Ways to damage a file that keep most of its structure, so that what reads it gets far before it notices."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from json_mutations import with_other_values

HOSTILE = (
    b"[red]x[/red]",
    b"\x1b[31mx\x1b[0m",
    b"<script>alert(1)</script>",
    b"=cmd|' /C calc'!A0",
    b"{{7*7}}",
    b"%s%n",
    b"../../etc/passwd",
    "\u202eevil".encode(),
    "\N{FIRE}".encode(),
    b"A" * 3000,
    b"\xff\xfe\xfa",
)
NUMBERS: tuple[bytes, ...] = (
    b"0",
    b"-1",
    b"2147483648",
    b"18446744073709551616",
    b"9" * 400,
    b"9" * 5000,
    b"1e309",
    b"nan",
    b"-inf",
    b"0x",
)
NUMBERS += (b"n/a", b"", b"1.234,5", b"1,234.5", b"12,34", b"1e-320", b"007", "\u0663".encode())
_TOKEN = re.compile(rb"\w+|\s+|[^\w\s]")
_NUMBER = re.compile(rb"\d+(?:[.,]\d+)*")
_WORD = re.compile(rb"[A-Za-z_$%][\w$]*")

Mutation = Callable[[bytes, random.Random, Sequence[bytes], Sequence[bytes]], bytes]
"""The damaged content, of content, a source of chance, words of the format, and other files of it."""


def _span(data: bytes, draw: random.Random, longest: int) -> tuple[int, int]:
    begin = draw.randrange(len(data) + 1)
    return begin, min(len(data), begin + draw.randrange(longest + 1))


def flip(data: bytes, draw: random.Random, _words: Sequence[bytes], _others: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 9)):
        if changed:
            changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def cut(data: bytes, draw: random.Random, _words: Sequence[bytes], _others: Sequence[bytes]) -> bytes:
    begin, end = _span(data, draw, 200)
    return data[:begin] + data[end:]


def truncate(data: bytes, draw: random.Random, _words: Sequence[bytes], _others: Sequence[bytes]) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def repeat(data: bytes, draw: random.Random, _words: Sequence[bytes], _others: Sequence[bytes]) -> bytes:
    begin, end = _span(data, draw, 120)
    return data[:begin] + data[begin:end] * draw.choice((2, 3, 10, 100)) + data[end:]


def insert_word(data: bytes, draw: random.Random, words: Sequence[bytes], _others: Sequence[bytes]) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.choice(words) * draw.choice((1, 1, 1, 2, 300)) + data[at:]


def change_tokens(data: bytes, draw: random.Random, words: Sequence[bytes], _others: Sequence[bytes]) -> bytes:
    tokens = _TOKEN.findall(data)
    for _ in range(draw.randrange(1, 6)):
        if not tokens:
            break
        at, other = draw.randrange(len(tokens)), draw.randrange(len(tokens))
        match draw.randrange(4):
            case 0:
                del tokens[at]
            case 1:
                tokens[at], tokens[other] = tokens[other], tokens[at]
            case 2:
                tokens[at] = draw.choice(words)
            case _:
                tokens.insert(at, tokens[other])
    return b"".join(tokens)


def change_lines(data: bytes, draw: random.Random, _words: Sequence[bytes], others: Sequence[bytes]) -> bytes:
    lines = data.splitlines(keepends=True)
    for _ in range(draw.randrange(1, 4)):
        if not lines:
            break
        at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
        match draw.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines[at], lines[other] = lines[other], lines[at]
            case 2:
                lines.insert(at, lines[other])
            case 3:
                lines.insert(at, draw.choice(draw.choice(others).splitlines(keepends=True) or [b""]))
            case _:
                lines[at:at] = [lines[other]] * 50
    return b"".join(lines)


def change_numbers(data: bytes, draw: random.Random, _words: Sequence[bytes], _others: Sequence[bytes]) -> bytes:
    found = list(_NUMBER.finditer(data))
    for one in sorted(draw.sample(found, min(len(found), draw.randrange(1, 4))), key=lambda one: -one.start()):
        data = data[: one.start()] + draw.choice(NUMBERS) + data[one.end() :]
    return data


def decimal_commas(data: bytes, draw: random.Random, _words: Sequence[bytes], _others: Sequence[bytes]) -> bytes:
    share = draw.choice((0.1, 1.0))
    return re.sub(rb"(?<=\d)\.(?=\d)", lambda _: b"," if draw.random() < share else b".", data)


def hostile_name(data: bytes, draw: random.Random, _words: Sequence[bytes], _others: Sequence[bytes]) -> bytes:
    found = list(_WORD.finditer(data))
    if not found:
        return draw.choice(HOSTILE)
    old, new = draw.choice(found)[0], draw.choice(HOSTILE)
    return data.replace(old, new) if draw.random() < 0.5 else data.replace(old, new, 1)


def nest(data: bytes, draw: random.Random, _words: Sequence[bytes], _others: Sequence[bytes]) -> bytes:
    left, right = draw.choice(((b"{", b"}"), (b"(", b")"), (b"[", b"]"), (b'"', b'"'), (b"/*", b"*/")))
    begin, end = _span(data, draw, 400)
    depth = draw.choice((1, 2, 50, 2000))
    return data[:begin] + left * depth + data[begin:end] + right * draw.choice((depth, depth, 0, 1)) + data[end:]


def splice(data: bytes, draw: random.Random, _words: Sequence[bytes], others: Sequence[bytes]) -> bytes:
    other = draw.choice(others)
    return data[: draw.randrange(len(data) + 1)] + other[draw.randrange(len(other) + 1) :]


def encode(data: bytes, draw: random.Random, _words: Sequence[bytes], _others: Sequence[bytes]) -> bytes:
    text = data.decode("utf-8", "replace")
    match draw.randrange(6):
        case 0:
            return text.encode("utf-16")
        case 1:
            return text.encode(draw.choice(("utf-16-le", "utf-16-be")))
        case 2:
            return b"\xef\xbb\xbf" + data
        case 3:
            return data.replace(b"\n", draw.choice((b"\r\n", b"\r", b"\n\n", b"\x0b", b"\x0c")))
        case 4:
            return b"\xff\xfe" + data
        case _:
            return data.replace(b" ", draw.choice((b"\0", b"\t", "\u00a0".encode(), "\u2028".encode())), 3)


MUTATIONS: tuple[Mutation, ...] = (
    flip,
    cut,
    truncate,
    repeat,
    insert_word,
    change_tokens,
    change_tokens,
    change_lines,
    change_lines,
    change_numbers,
    decimal_commas,
    hostile_name,
    nest,
    splice,
    encode,
)


def mutated(seeds: Sequence[bytes], words: Sequence[bytes], draw: random.Random) -> bytes:
    """One of the `seeds`, damaged in one to four ways; one that is JSON, every second time only in its values."""
    data = draw.choice(seeds)
    if draw.random() < 0.5 and (changed := with_other_values(data, draw)) != data:
        return changed
    for _ in range(draw.choice((1, 1, 2, 3, 4))):
        data = draw.choice(MUTATIONS)(data, draw, words, seeds)
    return data

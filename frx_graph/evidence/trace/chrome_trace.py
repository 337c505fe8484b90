"""Read a Chrome-format trace, plain or gzipped, one event at a time, in memory that does not grow with the file.

Only this module parses the file's JSON. Each fault of the file becomes an `EvidenceError` of one line that names the
file, the place in it, and the expected text.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import json
import re
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from frx_graph.errors import EvidenceError
from frx_graph.evidence.opening import FOREIGN_FORMATS, GZIP_MAGIC, open_evidence

_CHUNK_BYTES = 1 << 20
_LONGEST_TOKEN = 16
"""Characters of the longest JSON token that the end of a chunk can cut: `-Infinity`, or an escaped surrogate pair."""
_SPACE = re.compile(r"[ \t\r\n]*")
_COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
_CUT_TOKEN = re.compile(r"\s*[-+.\w]*\Z")
_OTHER_FORMATS = {**FOREIGN_FORMATS, b"\xff\xfe": "UTF-16 text", b"\xfe\xff": "UTF-16 text"}
_EXPORT_HINT = "write one with torch.profiler's export_chrome_trace('trace.json.gz')"


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits beyond which a trace is refused.

    `expansion` bounds decompressed over compressed size beyond `unquestioned_bytes`: real traces compress 10 to 40
    times, deflate can reach 1032.
    """

    bytes: int = 4 << 30
    expansion: int = 200
    unquestioned_bytes: int = 64 << 20
    value_characters: int = 32 << 20


class JsonFloat(NamedTuple):
    """A number with a fraction or exponent, as written: a double holds today's microseconds to a quarter only."""

    text: str


class _RejectedValueError(ValueError):
    """A value that Python's decoder accepts, but this one does not."""


def read_chrome_trace(
    path: Path, on_event: Callable[[int, dict[str, Any]], None], limits: ReadLimits | None = None
) -> Mapping[str, Any]:
    """Call `on_event` with the number and the fields of each trace event; return the other top-level fields.

    Both forms of the format are read: an object with `traceEvents`, and a bare list of events. Raises `EvidenceError`.
    """
    limits = limits or ReadLimits()
    with (
        open_evidence(path, "a trace file", _EXPORT_HINT) as raw,
        contextlib.closing(_decode_chunks(path, raw, limits)) as chunks,
    ):
        try:
            return _parse_document(_TextWindow(path, chunks, limits), on_event)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise EvidenceError(f"{path}: the gzip data is truncated or damaged: {error}", "export it again") from None


def _decode_chunks(path: Path, raw: IO[bytes], limits: ReadLimits) -> Generator[str, None, None]:
    """Yield the file's text in chunks, decompressed if its content is gzip. Bytes that are not UTF-8 become U+FFFD."""
    start = raw.read(_LONGEST_TOKEN)
    raw.seek(0)
    if not start:
        raise EvidenceError(f"{path}: is empty, expected a trace", _EXPORT_HINT)
    for magic, name in _OTHER_FORMATS.items():
        if start.startswith(magic):
            raise EvidenceError(f"{path}: is {name}, expected JSON or gzipped JSON", _EXPORT_HINT)
    compressed = start.startswith(GZIP_MAGIC)
    source: IO[bytes] = gzip.GzipFile(fileobj=raw, mode="rb") if compressed else raw  # type: ignore[assignment]
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
    size = 0
    while chunk := source.read(_CHUNK_BYTES):
        size += len(chunk)
        if size > limits.bytes:
            raise EvidenceError(f"{path}: longer than {limits.bytes:,} bytes", "record fewer steps")
        if compressed and size > limits.unquestioned_bytes and size > limits.expansion * raw.tell():
            raise EvidenceError(
                f"{path}: expands more than {limits.expansion} times, which no trace does", "decompress it yourself"
            )
        yield decoder.decode(chunk)
    yield decoder.decode(b"", final=True)


def _parse_document(window: _TextWindow, on_event: Callable[[int, dict[str, Any]], None]) -> Mapping[str, Any]:
    metadata: dict[str, Any] = {}
    opening = window.peek_character()
    if opening == "[":
        _parse_events(window, on_event)
    elif opening == "{":
        metadata = _parse_object(window, on_event)
    else:
        window.fail_at("the beginning", "expected '{' or '[' of a Chrome trace")
    if window.peek_character():
        window.fail_at("after the end of the trace", "expected nothing more")
    return metadata


def _parse_object(window: _TextWindow, on_event: Callable[[int, dict[str, Any]], None]) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    found = False
    window.skip_character()
    closing = window.peek_character() == "}"
    while not closing:
        key = window.take_value("the top level")
        if not isinstance(key, str):
            window.fail_at("the top level", "expected a name in quotes")
        if window.peek_character() != ":":
            window.fail_at("the top level", f"expected ':' after {_quote_text(key)}")
        window.skip_character()
        if key in metadata or (found and key == "traceEvents"):
            window.fail_at("the top level", f"{_quote_text(key)} appears twice")
        if key == "traceEvents":
            found = True
            if window.peek_character() != "[":
                window.fail_at("traceEvents", "expected a list of events")
            _parse_events(window, on_event)
        else:
            metadata[key] = window.take_value(_quote_text(key))
        closing = window.take_separator("the top level", "}")
    if not closing or not found:
        raise EvidenceError(f"{window.path}: JSON without 'traceEvents': not a Chrome trace", _EXPORT_HINT)
    window.skip_character()
    return metadata


def _parse_events(window: _TextWindow, on_event: Callable[[int, dict[str, Any]], None]) -> None:
    window.skip_character()
    index = 0
    closing = window.peek_character() == "]"
    while not closing:
        member = window.take_member()
        event = member or window.take_value(f"event {index}")
        if not isinstance(event, dict):
            window.fail_at(f"event {index}", "expected an object")
        on_event(index, event)
        index += 1
        closing = not member and window.take_separator(f"event {index}", "]")
    window.skip_character()


class _TextWindow:
    """The part of the text being parsed: values are taken from the front, chunks appended at the back."""

    def __init__(self, path: Path, chunks: Iterator[str], limits: ReadLimits) -> None:
        self.path = path
        self._chunks = chunks
        self._limit = limits.value_characters
        self._text = ""
        self._position = 0
        self._dropped = 0
        decoder = json.JSONDecoder(
            strict=False,
            parse_float=JsonFloat,
            parse_constant=_reject_constant,
            object_pairs_hook=_reject_repeated_keys,
        )
        self._decode = decoder.raw_decode
        self._scan = decoder.scan_once  # type: ignore[attr-defined]

    def peek_character(self) -> str:
        """Return the next character other than white space; empty at the end of the file."""
        while True:
            self._position = _SPACE.match(self._text, self._position).end()  # type: ignore[union-attr]
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._extend():
                return ""

    def skip_character(self) -> None:
        """Skip the character that was peeked at."""
        self._position += 1

    def take_separator(self, where: str, closing: str) -> bool:
        """Pass a comma, or stop at `closing` and return True."""
        character = self.peek_character()
        if character == ",":
            self.skip_character()
            return False
        if character != closing:
            self.fail_at(where, f"expected ',' or '{closing}'")
        return True

    def take_member(self) -> Any:
        """Take the next JSON value with the comma after it, if it is an object that is complete in this window.
        Otherwise return None and take nothing: `value` finds out if it is invalid or incomplete."""
        try:
            value, end = self._scan(self._text, self._position)
        except (StopIteration, ValueError, RecursionError):
            return None
        comma = _COMMA.match(self._text, end)
        if comma is None or not value or type(value) is not dict:
            return None
        self._position = comma.end()
        return value

    def take_value(self, where: str) -> Any:
        """Take the next JSON value."""
        self.peek_character()
        while True:
            try:
                value, end = self._decode(self._text, self._position)
            except json.JSONDecodeError as error:
                # An unterminated string is reported at its beginning, anything else that is cut near the cut.
                unterminated = error.msg.startswith("Unterminated")
                if (unterminated or error.pos >= len(self._text) - _LONGEST_TOKEN) and self._extend():
                    continue
                cut = unterminated or _CUT_TOKEN.match(self._text, error.pos)
                self._position = len(self._text) if cut else error.pos
                self.fail_at(where, error.msg[:1].lower() + error.msg[1:])
            except _RejectedValueError as error:
                self.fail_at(where, str(error))
            except RecursionError:
                self.fail_at(where, "nested too deeply")
            except ValueError as error:
                self.fail_at(where, f"a number that cannot be read ({error})")
            # A number at the end of a chunk may go on in the next one.
            if end < len(self._text) or not self._extend():
                self._position = end
                return value

    def fail_at(self, where: str, problem: str) -> NoReturn:
        """Raise for the place reached."""
        at = self._dropped + self._position
        if self._position >= len(self._text) and not self._extend():
            raise EvidenceError(f"{self.path}: ends in the middle of {where}: the file is truncated", "export it again")
        raise EvidenceError(f"{self.path}: {where}, at character {at}: {problem}", "not valid trace JSON")

    def _extend(self) -> bool:
        """Append the next chunk, and return False at the end of the file."""
        if len(self._text) - self._position > self._limit:
            raise EvidenceError(
                f"{self.path}: at character {self._dropped + self._position}: one value longer than {self._limit:,} "
                "characters, expected an event"
            )
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self._dropped += self._position
        self._text = self._text[self._position :] + chunk
        self._position = 0
        return True


def _reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _RejectedValueError(f"{_quote_text(twice)} appears twice")
    return fields


def _reject_constant(name: str) -> NoReturn:
    raise _RejectedValueError(f"{name} is not a JSON number")


def _quote_text(text: str) -> str:
    """Return text from the file for a message: escaped and short."""
    return ascii(text[:40])

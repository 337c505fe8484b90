"""Read a Chrome-format trace, plain or gzipped, in memory that does not grow with the file.

The events that are complete in a chunk of the file are decoded at once. Where that fails, they are read one at a time
by a decoder that tells the place and the kind of a fault. Damage whose meaning is certain is passed over and counted.
These are numbers that JSON does not have (pytorch/kineto issues 1459 and 1508), backslashes that begin no escape
(issues 105 and 336), and a file that ends too early. Any other fault becomes an `EvidenceError` of one line that names
the file, the place in it, and the expected text.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import json
import re
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from frx_graph.errors import EvidenceError
from frx_graph.evidence.opening import FOREIGN_FORMATS, GZIP_MAGIC, open_evidence
from frx_graph.evidence.trace.raw_event import JsonFloat, RawEvent, convert_event, decode_events

_CHUNK_BYTES = 1 << 20
_LONGEST_TOKEN = 16
"""Characters of the longest JSON token that the end of a chunk can cut: `-Infinity`, or an escaped surrogate pair."""
_SPACE = re.compile(r"[ \t\r\n]*")
_COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
_BETWEEN_EVENTS = re.compile(r"\}[ \t\r\n]*,[ \t\r\n]*(?=\{)")
_LAST_EVENT = 1 << 16
"""Characters at the end of a chunk in which the last whole event must end."""
_NO_NUMBER = re.compile(r"[-+]?(?:inf(?:inity)?|nan)(?:\((?:ind|snan)\))?(?=\s*[,}\]])", re.IGNORECASE)
"""Numbers as C++ streams write them where they are none."""
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


@dataclass(slots=True)
class Damage:
    """Faults of a file that were passed over. `numbers` and `backslashes` are counts; `torn` is True if the file ends
    too early: its last, incomplete event is left out."""

    numbers: int = 0
    backslashes: int = 0
    torn: bool = False


class _TornFileError(EvidenceError):
    """The file ends too early."""


def read_chrome_trace(
    path: Path, on_event: Callable[[int, RawEvent], None], limits: ReadLimits | None = None
) -> tuple[Mapping[str, Any], Damage]:
    """Call `on_event` with the number and the fields of each trace event; return the other top-level fields, and the
    damage that was passed over.

    Both forms of the format are read: an object with `traceEvents`, and a bare list of events. Raises `EvidenceError`.
    """
    limits = limits or ReadLimits()
    with (
        open_evidence(path, "a trace file", _EXPORT_HINT) as raw,
        contextlib.closing(_decode_chunks(path, raw, limits)) as chunks,
    ):
        window = _TextWindow(path, chunks, limits)
        metadata: dict[str, Any] = {}
        try:
            _parse_document(window, on_event, metadata)
        except _TornFileError:
            if not window.events:
                raise
            window.damage.torn = True
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise EvidenceError(f"{path}: the gzip data is truncated or damaged: {error}", "export it again") from None
        return metadata, window.damage


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


def _parse_document(window: _TextWindow, on_event: Callable[[int, RawEvent], None], metadata: dict[str, Any]) -> None:
    opening = window.peek_character()
    if opening == "[":
        _parse_events(window, on_event)
    elif opening == "{":
        _parse_object(window, on_event, metadata)
    else:
        window.fail_at("the beginning", "expected '{' or '[' of a Chrome trace")
    if window.peek_character():
        window.fail_at("after the end of the trace", "expected nothing more")


def _parse_object(window: _TextWindow, on_event: Callable[[int, RawEvent], None], metadata: dict[str, Any]) -> None:
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


def _parse_events(window: _TextWindow, on_event: Callable[[int, RawEvent], None]) -> None:
    window.skip_character()
    closing = window.peek_character() == "]"
    while not closing:
        for event in window.take_whole_events():
            on_event(window.events, event)
            window.events += 1
        member = window.take_member()
        event = member or window.take_value(f"event {window.events}")
        if not isinstance(event, dict):
            window.fail_at(f"event {window.events}", "expected an object")
        on_event(window.events, convert_event(event))
        window.events += 1
        closing = not member and window.take_separator(f"event {window.events}", "]")
    window.skip_character()


class _TextWindow:
    """The part of the text being parsed: values are taken from the front, chunks appended at the back. `events` counts
    those that were read."""

    def __init__(self, path: Path, chunks: Iterator[str], limits: ReadLimits) -> None:
        self.path = path
        self.damage = Damage()
        self._constants = 0
        self.events = 0
        self._chunks = chunks
        self._limit = limits.value_characters
        self._text = ""
        self._position = 0
        self._lines = 0
        self._column = 0
        self._unusual = 0
        decoder = json.JSONDecoder(strict=False, parse_float=JsonFloat, parse_constant=self._take_constant)
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

    def take_whole_events(self) -> Sequence[RawEvent]:
        """Take the events that are complete in this window, with the comma after the last one. Take none if there is
        anything unusual among them: until the window goes on, they are then taken one at a time."""
        if self._position < self._unusual:
            return ()
        end = self._find_last_end()
        if end is None:
            self._unusual = len(self._text)
            return ()
        events = decode_events(f"[{self._text[self._position : end.start() + 1]}]")
        if events is None:
            self._unusual = len(self._text)
            return ()
        self._position = end.end()
        return events

    def _find_last_end(self) -> re.Match[str] | None:
        """Return the end of the last whole event in this window."""
        searched, ends = _LAST_EVENT, list[re.Match[str]]()
        while not ends:
            begin = max(self._position, len(self._text) - searched)
            ends = list(_BETWEEN_EVENTS.finditer(self._text, begin))
            if begin == self._position:
                break
            searched *= 4
        return ends[-1] if ends else None

    def take_member(self) -> Any:
        """Take the next JSON value with the comma after it, if it is an object that is complete in this window.
        Otherwise return None and take nothing: `value` finds out if it is invalid or incomplete."""
        self._constants = 0
        try:
            value, end = self._scan(self._text, self._position)
        except (StopIteration, ValueError, RecursionError):
            return None
        comma = _COMMA.match(self._text, end)
        if comma is None or not value or type(value) is not dict:
            return None
        self._position = comma.end()
        self.damage.numbers += self._constants
        return value

    def take_value(self, where: str) -> Any:
        """Take the next JSON value."""
        self.peek_character()
        while True:
            self._constants = 0
            try:
                value, end = self._decode(self._text, self._position)
            except json.JSONDecodeError as error:
                if self._repair(error):
                    continue
                # An unterminated string is reported at its beginning, anything else that is cut near the cut.
                unterminated = error.msg.startswith("Unterminated")
                if (unterminated or error.pos >= len(self._text) - _LONGEST_TOKEN) and self._extend():
                    continue
                cut = unterminated or _CUT_TOKEN.match(self._text, error.pos)
                self._position = len(self._text) if cut else error.pos
                self.fail_at(where, error.msg[:1].lower() + error.msg[1:])
            except RecursionError:
                self.fail_at(where, "nested too deeply")
            except ValueError as error:
                self.fail_at(where, f"a number that cannot be read ({error})")
            # A number at the end of a chunk may go on in the next one.
            if end < len(self._text) or not self._extend():
                self._position = end
                self.damage.numbers += self._constants
                return value

    def _take_constant(self, name: str) -> JsonFloat:
        """Take NaN or an infinity as a number that is unknown."""
        self._constants += 1
        return JsonFloat(name)

    def _repair(self, error: json.JSONDecodeError) -> bool:
        """Correct the text at a fault whose meaning is certain; return False at any other."""
        number = _NO_NUMBER.match(self._text, error.pos)
        if number is not None and error.msg == "Expecting value":
            self._text = f"{self._text[: error.pos]}NaN{self._text[number.end() :]}"
            return True
        if error.msg.startswith("Invalid \\"):
            # An escape at the end of a chunk may go on in the next one.
            if error.pos >= len(self._text) - _LONGEST_TOKEN and self._extend():
                return True
            at = self._text.rfind("\\", self._position, error.pos + 1)
            if at >= 0:
                self.damage.backslashes += 1
                self._text = f"{self._text[:at]}\\{self._text[at:]}"
                return True
        return False

    def fail_at(self, where: str, problem: str) -> NoReturn:
        """Raise for the place reached."""
        if self._position >= len(self._text) and not self._extend():
            what = f"{self.path}: ends in the middle of {where}: the file is truncated"
            raise _TornFileError(what, "export it again")
        line, column = self._locate(self._position)
        raise EvidenceError(f"{self.path}: {where}, line {line}, column {column}: {problem}", "not valid trace JSON")

    def _locate(self, position: int) -> tuple[int, int]:
        """Return line and column of a position in the text, from 1 on."""
        lines = self._text.count("\n", 0, position)
        if not lines:
            return self._lines + 1, self._column + position + 1
        return self._lines + lines + 1, position - self._text.rfind("\n", 0, position)

    def _extend(self) -> bool:
        """Append the next chunk, and return False at the end of the file."""
        if len(self._text) - self._position > self._limit:
            line, _ = self._locate(self._position)
            what = f"one value longer than {self._limit:,} characters, expected an event"
            raise EvidenceError(f"{self.path}: line {line}: {what}")
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        line, column = self._locate(self._position)
        self._lines, self._column = line - 1, column - 1
        self._text = self._text[self._position :] + chunk
        self._position = self._unusual = 0
        return True


def _quote_text(text: str) -> str:
    """Return text from the file for a message: escaped and short."""
    return ascii(text[:40])

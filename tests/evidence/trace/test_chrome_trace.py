from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frx_graph.errors import EvidenceError
from frx_graph.evidence.trace import chrome_trace
from frx_graph.evidence.trace.chrome_trace import Damage, ReadLimits, read_chrome_trace
from frx_graph.evidence.trace.raw_event import JsonFloat, RawEvent

EVENTS = [{"ph": "X", "name": "aten::add", "ts": 1.5}, {"ph": "X", "name": "[red]\x1b[0m<b>=1+1", "ts": 2}, {}]
DOCUMENT = {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": EVENTS, "traceName": "x"}


def show(event: RawEvent) -> dict[str, Any]:
    """Return the fields that the file has, with text as text."""
    read = {name: getattr(event, name) for name in ("ph", "cat", "name", "ts", "dur")}
    fields = {name: bytes(value).decode() if isinstance(value, msgspec.Raw) else value for name, value in read.items()}
    return {name: value for name, value in fields.items() if value not in (None, "")}


def read(path: Path, content: bytes | str, limits: ReadLimits | None = None) -> tuple[list[dict[str, Any]], Any]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    events: list[dict[str, Any]] = []
    metadata, _ = read_chrome_trace(path, lambda _, event: events.append(show(event)), limits)
    return events, metadata


def read_damaged(path: Path, content: bytes | str) -> tuple[list[dict[str, Any]], Damage]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    events: list[dict[str, Any]] = []
    _, damage = read_chrome_trace(path, lambda _, event: events.append(show(event)))
    return events, damage


def refused(path: Path, content: bytes | str, limits: ReadLimits | None = None) -> str:
    with pytest.raises(EvidenceError) as caught:
        read(path, content, limits)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message.replace(str(path), "FILE")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def test_an_object_with_events_and_metadata(path: Path) -> None:
    events, metadata = read(path, json.dumps(DOCUMENT))
    assert events == [EVENTS[0] | {"ts": "1.5"}, EVENTS[1] | {"ts": "2"}, {}]
    assert metadata == {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceName": "x"}


def test_gzip_is_detected_by_content_not_by_name(tmp_path: Path) -> None:
    text = json.dumps(DOCUMENT).encode()
    assert len(read(tmp_path / "trace.json", gzip.compress(text))[0]) == 3
    assert len(read(tmp_path / "trace.json.gz", text)[0]) == 3


@pytest.mark.parametrize("text", ["[]", " [ ] ", "[{}]", '[{"ph": "X"} , {}]\n'])
def test_a_bare_list_of_events(path: Path, text: str) -> None:
    assert read(path, text)[0] == json.loads(text)


def test_a_byte_order_mark_and_raw_control_characters_are_read(path: Path) -> None:
    assert read(path, b'\xef\xbb\xbf[{"name": "a\tb"}]')[0] == [{"name": "a\tb"}]


def test_bytes_that_are_not_utf8_are_replaced(path: Path) -> None:
    assert read(path, b'[{"name": "a\xffb"}]')[0] == [{"name": "a\ufffdb"}]


def test_events_with_objects_at_their_ends_are_whole(path: Path) -> None:
    rows = [{"ph": "X", "name": f"{at} }},{{", "args": {"a": [{"b": at}, {"c": {}}]}} for at in range(50)]
    for size in (37, 64, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chrome_trace, "_CHUNK_BYTES", size)
            events, _ = read(path, json.dumps(rows))
        assert [one["name"] for one in events] == [one["name"] for one in rows]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(1, 40))
def test_the_size_of_chunks_makes_no_difference(path: Path, size: int) -> None:
    text = json.dumps({"a": [1, -2.5e3, True, None, "\\u00e9\\n\u00e9"], "traceEvents": EVENTS, "n": 123})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chrome_trace, "_CHUNK_BYTES", size)
        events, metadata = read(path, text)
    assert len(events) == 3
    assert metadata == {"a": [1, JsonFloat("-2500.0"), True, None, "\\u00e9\\n\u00e9"], "n": 123}


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    for target in (tmp_path / "none.json", tmp_path):
        with pytest.raises(EvidenceError, match=r"no such file|is a directory"):
            read_chrome_trace(target, lambda *_: None)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs fifos")
def test_a_fifo_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    target = tmp_path / "pipe.json"
    os.mkfifo(target)
    with pytest.raises(EvidenceError, match="is not a regular file"):
        read_chrome_trace(target, lambda *_: None)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04rest", "is a zip archive"),
        (b"\xff\xfe{\x00", "is UTF-16 text"),
        (b"SQLite format 3\x00", "Nsight Systems"),
        (b"PROF", "the beginning, line 1, column 1: expected '{' or '['"),
        ("{}", "without 'traceEvents'"),
        ('{"a": 1}', "without 'traceEvents'"),
        ('"text"', "expected '{' or '['"),
        ('{"traceEvents": 3}', "traceEvents, line 1, column 17: expected a list of events"),
        ('{"traceEvents": [3]}', "event 0, line 1, column 19: expected an object"),
        ('{"traceEvents":\n [{}\n {}]}', "event 1, line 3, column 2: expected ',' or ']'"),
        ('{"traceEvents": []} x', "after the end of the trace"),
        ('{"traceEvents": [], "traceEvents": []}', "'traceEvents' appears twice"),
        ('{"a": 1, "a": 1, "traceEvents": []}', "'a' appears twice"),
        ('{"traceEvents": [{"a": ' + "9" * 5000 + "}]}", "event 0, line 1, column 18: a number that cannot be read"),
        ('{"traceEvents": [{"a": nano}]}', "event 0, line 1, column 24: expecting value"),
        ('{1: 2, "traceEvents": []}', "the top level, line 1, column 3: expected a name in quotes"),
        ('{"a" 2, "traceEvents": []}', "expected ':' after 'a'"),
    ],
)
def test_refusal_names_the_place(path: Path, content: bytes | str, expected: str) -> None:
    assert expected in refused(path, content)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_nesting_is_refused(path: Path, opening: str) -> None:
    assert "event 0" in (message := refused(path, f'{{"traceEvents": [{{"a": {opening * 100_000}'))
    assert "nested too deeply" in message


def test_a_file_cut_before_its_first_event_ends_is_refused(path: Path) -> None:
    text = json.dumps(DOCUMENT)
    for length in range(1, text.index("}, {", text.index("traceEvents"))):
        assert "truncated" in refused(path, text[:length])


def test_a_file_cut_later_keeps_its_whole_events(path: Path) -> None:
    text = json.dumps(DOCUMENT)
    first = text.index("}, {", text.index("traceEvents")) + 1
    for length in range(first, len(text)):
        events, damage = read_damaged(path, text[:length])
        assert damage.torn
        assert events == read(path, text)[0][: len(events)]
        assert len(events) >= 1
    assert read_damaged(path, text)[1] == Damage()


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "-nan", "NaN", "Infinity", "-Infinity", "-nan(ind)"])
def test_what_is_no_number_is_taken_as_unknown(path: Path, number: str) -> None:
    text = f'{{"traceEvents": [{{"cat": {number}, "b": [{number}]}}, {{"name": "inf, nan"}}, {{"cat": {number}}}]}}'
    for chunk in (1, 7, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chrome_trace, "_CHUNK_BYTES", chunk)
            events, damage = read_damaged(path, text)
        assert damage == Damage(numbers=3)
        assert events[1] == {"name": "inf, nan"}
        assert all(math.isnan(one["cat"]) for one in (events[0], events[2]))


@pytest.mark.parametrize(
    ("written", "meant", "stray"),
    [(r"C:\Work\k", r"C:\Work\k", 2), (r"a\\b", r"a\b", 0), (r"\u12", r"\u12", 1)],
)
def test_a_backslash_that_begins_no_escape_is_itself(path: Path, written: str, meant: str, stray: int) -> None:
    text = f'[{{"name": "{written}"}}, {{}}, {{"ts": 1, "name": "some more text, which is not cut"}}]'
    for chunk in (1, 7, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chrome_trace, "_CHUNK_BYTES", chunk)
            events, damage = read_damaged(path, text)
        assert events[0] == {"name": meant}
        assert damage == Damage(backslashes=stray)


def test_gzip_data_cut_anywhere_is_refused(path: Path) -> None:
    data = gzip.compress(json.dumps(DOCUMENT).encode())
    for length in range(3, len(data)):
        assert "truncated or damaged" in refused(path, data[:length])


def test_damaged_gzip_data_is_refused(path: Path) -> None:
    data = bytearray(gzip.compress(json.dumps(DOCUMENT).encode()))
    data[-5] ^= 0xFF
    assert "truncated or damaged" in refused(path, bytes(data))


def test_an_expansion_that_no_trace_has_is_refused(path: Path) -> None:
    bomb = gzip.compress(b'{"traceEvents": [' + b" " * (4 << 20), 9)
    assert "expands more than 200 times" in refused(path, bomb, ReadLimits(unquestioned_bytes=1 << 20))


def test_a_file_over_the_limit_is_refused(path: Path) -> None:
    assert "longer than 10 bytes" in refused(path, json.dumps(DOCUMENT), ReadLimits(bytes=10))


def test_a_value_without_end_is_refused_before_it_is_all_read(path: Path) -> None:
    limits = ReadLimits(value_characters=1 << 20)
    assert "one value longer than" in refused(path, '{"traceEvents": [{"name": "' + "a" * (8 << 20), limits)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=3)), min_size=1, max_size=6), zipped=st.booleans()
)
def test_mutated_bytes_are_read_or_refused(path: Path, edits: list[tuple[int, bytes]], zipped: bool) -> None:
    data = bytearray(json.dumps(DOCUMENT).encode())
    data = bytearray(gzip.compress(data)) if zipped else data
    for position, replacement in edits:
        at = position % len(data)
        data[at : at + max(1, len(replacement))] = replacement
    path.write_bytes(data)
    try:
        read_chrome_trace(path, lambda *_: None)
    except EvidenceError as error:
        assert "\n" not in str(error)

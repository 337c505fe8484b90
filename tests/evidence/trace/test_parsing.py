from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.errors import EvidenceError
from frx_graph.evidence.dtype import DType
from frx_graph.evidence.trace.events import ActivityKind, HostThread, Operand
from frx_graph.evidence.trace.parsing import EventParser
from frx_graph.evidence.trace.raw_event import JsonFloat, convert_event, decode_events


def parsed(*events: dict[str, Any]) -> EventParser:
    parser = EventParser(Path("profile.json"))
    for index, event in enumerate(events):
        parser.add(index, convert_event(event))
    return parser


def event(category: object = "cpu_op", **fields: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": "aten::add", "pid": 1, "tid": 2, "ts": 5, "dur": 3, **fields}


def test_an_operator_of_today() -> None:
    args = {
        "External id": 8,
        "Sequence number": 3,
        "Fwd thread id": 1,
        "Input Dims": [[4, 256, 64], [], [[2], [2]], []],
        "Input type": ["float", "long int", "TensorList", "Scalar"],
        "Input Strides": [[16384, 1, 256], [], [[1], [1]], []],
        "Concrete Inputs": ["", "", "", "0.5"],
    }
    (operator,) = parsed(event(ts=JsonFloat("1712195495519689.047"), dur=JsonFloat("0.25"), args=args)).operators
    assert (operator.start_ns, operator.duration_ns, operator.end_ns) == (1712195495519689047, 250, 1712195495519689297)
    assert operator.operands == (
        Operand((4, 256, 64), DType.FLOAT32, (16384, 1, 256)),
        Operand((), DType.INT64, ()),
        None,
        None,
    )
    assert (operator.external_id, operator.sequence, operator.forward_thread) == (8, 3, 1)
    assert operator.concrete == ("", "", "", "0.5")
    assert not operator.annotation


def test_an_operator_of_torch_1_8() -> None:
    args = {
        "External id": 2,
        "Input Dims": [[3, 4], []],
        "Input type": ["c10::Half"],
        "Call stack": "a.py(1): f;b.py(2): g",
    }
    (operator,) = parsed(event("Operator", tid="25738", args=args)).operators
    assert operator.operands == (Operand((3, 4), DType.FLOAT16, None), None)
    assert (operator.start_ns, operator.duration_ns) == (5000, 3000)
    assert operator.thread == HostThread("1", "25738")
    assert operator.call_stack == "a.py(1): f;b.py(2): g"


@pytest.mark.parametrize(
    ("category", "identifier", "kind"),
    [
        ("Kernel", "external id", ActivityKind.KERNEL),
        ("kernel", "External id", ActivityKind.KERNEL),
        ("Memcpy", "external id", ActivityKind.MEMCPY),
        ("gpu_memset", "External id", ActivityKind.MEMSET),
    ],
)
def test_device_activities_of_both_generations(category: str, identifier: str, kind: ActivityKind) -> None:
    args = {
        identifier: 7,
        "device": 2,
        "stream": 20,
        "correlation": 9,
        "grid": [25, 8, 32],
        "block": [256, 1, 1],
        "bytes": 64,
    }
    (activity,) = parsed(event(category, args=args)).activities
    assert (activity.kind, activity.external_id, activity.device, activity.stream) == (kind, 7, 2, "20")
    assert (activity.correlation, activity.grid, activity.block, activity.bytes) == (9, (25, 8, 32), (256, 1, 1), 64)


@pytest.mark.parametrize("category", ["Runtime", "cuda_runtime", "cuda_driver", "xpu_runtime"])
def test_runtime_calls(category: str) -> None:
    (call,) = parsed(event(category, name="hipLaunchKernel", args={"correlation": 4})).calls
    assert (call.name, call.correlation) == ("hipLaunchKernel", 4)


def test_python_frames_and_ranges() -> None:
    parser = parsed(
        event("python_function", name="a.py(1): f", args={"CallFrom": "b.py:2"}),
        event("user_annotation", name="## x ##"),
    )
    assert [(frame.name, frame.called_from) for frame in parser.frames] == [("a.py(1): f", "b.py:2")]
    assert [operator.annotation for operator in parser.operators] == [True]


def test_other_events_are_passed_over() -> None:
    parser = parsed(event(ph="i", ts=None), event("ac2g", ts=None), event(None), {}, event("gpu_user_annotation"))
    assert not (parser.operators or parser.calls or parser.activities or parser.frames)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"ts": None}, "event 0: 'ts' is nothing, expected microseconds"),
        ({"ts": "5"}, "'ts' is \"5\", expected microseconds"),
        ({"ts": True}, "'ts' is true"),
        ({"ts": 10**30}, "'ts' is 1000"),
        ({"ts": JsonFloat("1e999999999")}, "'ts' is 1e999999999,"),
        ({"name": JsonFloat("1.5")}, "'name' is 1.5, expected a string"),
        ({"name": 3}, "'name' is 3, expected a string"),
        ({"args": [1]}, "'args' is [1], expected an object"),
    ],
)
def test_what_the_format_requires_must_be_right(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        parsed(event(**fields))
    assert expected in str(caught.value)
    assert "profile.json" in str(caught.value)


@pytest.mark.parametrize("duration", [None, -1, "3", JsonFloat("-0.5")])
def test_an_unfinished_event_is_counted_and_left_out(duration: object) -> None:
    parser = parsed(event(dur=duration), event())
    assert (len(parser.operators), parser.unfinished) == (1, 1)


@pytest.mark.parametrize(
    ("text", "expected"), [("12.3456", 12345), ("0.5", 500), ("1.5e3", 1_500_000), ("-0.25", -250)]
)
def test_fractions_of_microseconds_are_exact(text: str, expected: int) -> None:
    (operator,) = parsed(event(ts=JsonFloat(text))).operators
    assert operator.start_ns == expected


def test_optional_fields_of_the_wrong_kind_count_as_absent() -> None:
    args = {
        "External id": "x",
        "Sequence number": 2**70,
        "Input Dims": [[-1], ["a"], [2**60], [1] * 100, 5],
        "Input type": ["float", "float", "float", "float", "float"],
        "Input Strides": "no",
        "Call stack": 5,
        "Concrete Inputs": {},
    }
    (operator,) = parsed(event(args=args)).operators
    assert operator.operands == (None,) * 5
    assert (operator.external_id, operator.sequence, operator.call_stack, operator.concrete) == (None, None, "", ())


def test_strides_of_another_rank_are_not_believed() -> None:
    args = {"Input Dims": [[2, 3]], "Input type": ["float"], "Input Strides": [[1]]}
    (operator,) = parsed(event(args=args)).operators
    assert operator.operands == (Operand((2, 3), DType.FLOAT32, None),)


def test_half_a_surrogate_pair_can_still_be_printed() -> None:
    (operator,) = parsed(event(name="a\ud800b")).operators
    assert operator.name.encode() == b"a?b"


@given(
    st.dictionaries(
        st.sampled_from(["ph", "cat", "name", "ts", "dur", "pid", "tid", "args"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.text(max_size=6).map(JsonFloat),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["External id", "Input Dims", "Input type", "Input Strides", "bytes", "grid", "CallFrom"]
                    ),
                    inner,
                    max_size=3,
                )
            ),
            max_leaves=8,
        ),
    ),
    st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "python_function"]),
)
def test_any_fields_are_read_or_refused(fields: dict[str, Any], category: str) -> None:
    try:
        parsed({"ph": "X", "cat": category, "name": "k", "ts": 1, "dur": 1, **fields})
    except EvidenceError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("name", "duration", "kept"),
    [
        ("cudaEventQuery", 2, False),
        ("cudaEventRecord", JsonFloat("9.999"), False),
        ("hipGetDevicePropertiesR0600", 0, False),
        ("cudaDeviceGetStreamPriorityRange", 29_927_377, True),
        ("cudaEventQuery", JsonFloat("10.0"), True),
        ("cudaEventQuery", JsonFloat("5e9"), True),
        ("cudaLaunchKernel", 2, True),
        ("cudaMemcpyAsync", JsonFloat("1.5"), True),
        ("cudaStreamSynchronize", 1, True),
        ("cuLaunchKernelEx", 1, True),
    ],
)
def test_short_queries_of_the_runtime_are_left_out(name: str, duration: object, kept: bool) -> None:
    assert len(parsed(event("cuda_runtime", name=name, dur=duration)).calls) == kept


def test_the_size_of_a_copy_is_read_from_its_call() -> None:
    def size(name: str, value: object) -> int | None:
        (call,) = parsed(event("cuda_runtime", name=name, args={"size": value})).calls
        return call.bytes

    assert size("hipMemcpyWithStream", "2560") == 2560
    assert [size("hipMemcpyWithStream", value) for value in ("-1", "٣", "x" * 30, 2560, None)] == [None] * 5
    assert size("hipMalloc", "2560") is None


def test_events_decoded_at_once_are_the_same(tmp_path: Path) -> None:
    args = {"External id": 8, "Input Dims": [[4, 256]], "Input type": ["float"], "Concrete Inputs": [""], "stream": 7}
    events = [
        event(args=args, tid="main"),
        event("kernel", args=args | {"grid": [1, 2, 3], "bytes": "x"}, dur=JsonFloat("0.125")),
        event("cuda_runtime", args={"correlation": 1.5}),
        event("python_function", args={"CallFrom": 5}),
        event(ph="i"),
        {},
    ]
    text = json.dumps(events, default=lambda value: float(value.text))
    decoded = decode_events(text)
    assert decoded is not None
    one, other = EventParser(tmp_path), parsed(*events)
    for index, raw in enumerate(decoded):
        one.add(index, raw)
    for name in ("operators", "calls", "activities", "frames", "unfinished"):
        assert getattr(one, name) == getattr(other, name)


@pytest.mark.parametrize("text", ["[{]", "[3]", '[{"args": [1]}]', '[{"a": NaN}]', '[{"a": "\\k"}]', "[" * 100_000])
def test_unusual_events_are_not_decoded_at_once(text: str) -> None:
    assert decode_events(text) is None

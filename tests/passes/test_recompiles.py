"""Reasons as torch 2.13 and 2.15 print them, and whatever else may come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.evidence.recompile_reason import RecompileCause, parse_reason

STACK = '\nUser stack trace:\n  File "/src/model.py", line 12, in forward\n    return self.conv(x) * k'
HINT = " (HINT: torch.compile considers integer attributes of the nn.Module to be static.)"

REASONS = [
    ("0/0: tensor 'x' stride mismatch at index 1. expected 256, actual 1", RecompileCause.STRIDE, "x"),
    ("0/0: tensor 'L['x']' stride mismatch at index 1. expected 256, actual 1", RecompileCause.STRIDE, "x"),
    ("0/1: tensor 'd['a']' stride mismatch at index 2. expected 16, actual 1", RecompileCause.STRIDE, "d['a']"),
    ("0/0: x.stride()[0] == 16", RecompileCause.STRIDE, "x"),
    ("0/0: tensor 'x' size mismatch at index 0. expected 2, actual 4", RecompileCause.SIZE, "x"),
    ("0/0: 2 <= x.size()[0] <= 4  # if x.shape[0] > 4:  # model.py:12 in forward", RecompileCause.SIZE, "x"),
    ("0/0: tensor 'x' dtype mismatch. expected Float, actual BFloat16", RecompileCause.TENSOR, "x"),
    ("0/1: tensor 'b' rank mismatch. expected 3, actual 2", RecompileCause.TENSOR, "b"),
    ("0/2: tensor 'b' requires_grad mismatch. expected requires_grad=0", RecompileCause.TENSOR, "b"),
    ("0/2: tensor 'b' Tensor device index mismatch. Expected device index to be 0", RecompileCause.TENSOR, "b"),
    ("0/2: tensor 'b' dispatch key set mismatch. expected CPU", RecompileCause.TENSOR, "b"),
    ("0/3: expected type of 'b' to be a tensor type, ' but found <class 'int'>", RecompileCause.TYPE, "b"),
    ("0/3: expected type of 'b' to be <class 'torch.Tensor'>, but found <class 'int'>", RecompileCause.TYPE, "b"),
    ("0/3: ___check_type_id(b, 140), type=<class 'int'>", RecompileCause.TYPE, "b"),
    ("0/0: mask is None", RecompileCause.TYPE, "mask"),
    (
        f"0/1: k == 1.0               # return self.conv(x) * k  # model.py:12 in forward{STACK}",
        RecompileCause.VALUE,
        "k",
    ),
    (f"0/0: s.i == 0        # if s.i > 5:  # model.py:12 in forward{HINT}{STACK}", RecompileCause.VALUE, "s.i"),
    ("0/1: s.i <= 5.0  # if s.i>5: return x  # model.py:12 in forward", RecompileCause.VALUE, "s.i"),
    (
        f"0/0: G['SCALE'] == 1                 # return x * SCALE  # m.py:3 in f{STACK}",
        RecompileCause.GLOBAL,
        "G['SCALE']",
    ),
    ("0/2: ___check_obj_id(fn.__code__, 139), type=<class 'code'>  # fn(x)", RecompileCause.OBJECT, "fn.__code__"),
    ("0/0: len(xs) == 2                # sum(xs)  # m.py:3 in f", RecompileCause.CONTAINER, "xs"),
    ("0/0: len(d) != 1", RecompileCause.CONTAINER, "d"),
    ("0/0: not s.h                      # len(s.h)  # m.py:3 in f", RecompileCause.CONTAINER, "s.h"),
    ("0/0: d['a'] is d['b']             # d['a'] * d['b']  # m.py:3 in f", RecompileCause.ALIASING, "d['a']"),
    ('0/0: Duplicate tensors found: ["x", "y"]', RecompileCause.ALIASING, ""),
    ("0/0: GLOBAL_STATE changed: grad_mode ", RecompileCause.MODE, ""),
    (f"0/0: fn._modules['1'].training == True      # F.dropout{STACK}", RecompileCause.MODE, "fn._modules['1']"),
    ("0/0: BACKEND_MATCH failure: torch.compile detected different backend callables.", RecompileCause.BACKEND, ""),
    ("Unable to find recompilation reasons", RecompileCause.UNKNOWN, ""),
    ("", RecompileCause.UNKNOWN, ""),
]


@pytest.mark.parametrize(("reason", "cause", "source"), REASONS)
def test_cause_and_source(reason: str, cause: RecompileCause, source: str) -> None:
    parsed = parse_reason(reason)
    assert (parsed.cause, parsed.source) == (cause, source)


def test_a_stride_has_its_numbers() -> None:
    parsed = parse_reason("0/0: tensor 'x' stride mismatch at index 1. expected 256, actual 1")
    assert (parsed.dimension, parsed.expected, parsed.actual) == (1, 256, 1)


def test_a_parameters_stride_has_its_hint_cut_into_the_text_only() -> None:
    parsed = parse_reason(
        "0/0: tensor 'fn._parameters['weight']' stride mismatch at index 0. expected 4, actual 1. Guard failed on a "
        "parameter, consider using torch._dynamo.config.force_parameter_static_shapes = False to allow dynamism."
    )
    assert (parsed.source, parsed.expected, parsed.actual) == ("fn._parameters['weight']", 4, 1)


def test_the_guard_is_cut_out_of_comment_and_stack() -> None:
    parsed = parse_reason(f"0/1: k == 1.0               # return self.conv(x) * k  # model.py:12 in forward{STACK}")
    assert parsed.text == "k == 1.0"
    assert parsed.site is not None
    assert (parsed.site.file, parsed.site.line, parsed.site.function) == ("/src/model.py", 12, "forward")


def test_without_a_stack_there_is_no_site() -> None:
    assert parse_reason("0/0: k == 1.0").site is None


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    assert isinstance(parse_reason(text).cause, RecompileCause)

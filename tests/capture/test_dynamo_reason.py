"""Dynamo's texts, shortened; the texts are Dynamo's own."""

from __future__ import annotations

import pytest

from frx_graph.capture.dynamo_reason import short_reason

_PRINT = """Failed to trace builtin operator
  Explanation: Dynamo does not know how to trace builtin operator `print` with argument types ['str']
    (has_kwargs False)
  Hint: Avoid calling builtin `print`.

  Developer debug context: builtin print [<class 'ConstantVariable'>] False

 For more details about this graph break, please visit: https://meta-pytorch.github.io/
"""
_WITHOUT_EXPLANATION = """Some kind of break
  Explanation:
  Hint: none

  Developer debug context: call_method x
"""
_NO_FAKE = """RuntimeError when making fake tensor call
  Explanation: Dynamo failed to run FX node with fake tensors: call_function mylib.op.default(): got \
RuntimeError('There was no fake impl registered for <CustomOpDef(mylib::op)>. This is necessary')
"""
_UNSUPPORTED = """Operator does not support running with fake tensors
  Explanation: \n
  Developer debug context: unsupported operator: mylib.op.default
"""


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (
            _PRINT,
            "Failed to trace builtin operator: Dynamo does not know how to trace builtin operator `print` with "
            "argument types ['str'] (has_kwargs False)",
        ),
        (_WITHOUT_EXPLANATION, "Some kind of break: call_method x"),
        ("generic_jump TensorVariable()", "a branch depends on the value of a tensor"),
        ("plain text\nmore of it", "plain text"),
        ("", ""),
    ],
)
def test_one_short_line(text: str, short: str) -> None:
    assert short_reason(text) == short


@pytest.mark.parametrize(("text", "operator"), [(_NO_FAKE, "mylib::op"), (_UNSUPPORTED, "mylib.op.default")])
def test_an_operator_without_fake_implementation_is_named(text: str, operator: str) -> None:
    assert short_reason(text).startswith(f"the operator {operator} has no fake implementation")


def test_a_long_reason_is_cut() -> None:
    short = short_reason(f"head\n  Explanation: {'word ' * 100}")
    assert len(short) == 200
    assert short.endswith("…")

"""Every place where a program leaves its graphs is listed; what this version of torch does not tell is said."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import utils as dynamo_utils

import frx_graph
from frx_graph.capture import dynamo_events
from frx_graph.capture.dynamo_events import shorten_reason
from frx_graph.capture.model import capture_model


def _line_of(function: Callable[..., object], text: str) -> int:
    lines, start = inspect.getsourcelines(function)
    return start + next(i for i, line in enumerate(lines) if text in line)


@torch._dynamo.disable
def _disabled(x: Tensor) -> Tensor:
    return x.t().contiguous()


class Leaving(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        if x.sum() > -100:
            x = x + 1
        x = _disabled(x)
        for _ in range(2):
            torch._dynamo.graph_break()  # inside a loop
        return x * 2


def test_each_place_is_named_once_with_its_line_and_one_short_reason() -> None:
    report = frx_graph.advise(nn.Sequential(Leaving(), Leaving()), (torch.randn(3, 3),), measure=False)
    breaks = [refusal for refusal in report.refusals if refusal.subject == "graph break"]
    lines = [refusal.site.line for refusal in breaks if refusal.site is not None]
    texts = ("torch._dynamo.graph_break()", "if x.sum()", "x = _disabled", "# inside a loop")
    assert sorted(lines) == sorted(_line_of(Leaving.forward, text) for text in texts)
    assert {refusal.site.file for refusal in breaks if refusal.site is not None} == {__file__}
    for refusal in breaks:
        assert "\n" not in refusal.reason
        assert len(refusal.reason) < 260
    assert any("a branch depends on the value of a tensor" in refusal.reason for refusal in breaks)


def test_a_program_without_breaks_has_none() -> None:
    mark = dynamo_events.record_position()
    capture = capture_model(nn.Linear(3, 3), (torch.randn(2, 3),))
    assert capture.breaks == ()
    assert dynamo_events.list_breaks_since(mark) == ()
    assert list(dynamo_events.list_unreported()) == []


@pytest.mark.parametrize(
    ("missing", "subject"),
    [
        ("graph_break_reasons", "graph breaks"),
        ("get_compilation_metrics", "graph breaks"),
        ("get_metrics_context", "recompiles"),
    ],
)
def test_missing_torch_internals_are_a_refusal(monkeypatch: pytest.MonkeyPatch, missing: str, subject: str) -> None:
    class Partial:
        """torch's module without one of its names: Dynamo itself goes on using the real one."""

        def __getattr__(self, name: str) -> object:
            if name == missing:
                raise AttributeError(name)
            return getattr(dynamo_utils, name)

    monkeypatch.setattr(dynamo_events, "dynamo_utils", Partial())
    report = frx_graph.advise(Leaving(), (torch.randn(3, 3),), measure=False)
    assert subject in {refusal.subject for refusal in report.refusals}
    assert report.advice.totals.ops_scanned


def test_metrics_without_their_private_part_are_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo_events.dynamo_utils, "get_metrics_context", lambda: object())
    assert "recompiles" in dict(dynamo_events.list_unreported())
    assert dynamo_events.get_recompile_reason() is None


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
    assert shorten_reason(text) == short


@pytest.mark.parametrize(("text", "operator"), [(_NO_FAKE, "mylib::op"), (_UNSUPPORTED, "mylib.op.default")])
def test_an_operator_without_fake_implementation_is_named(text: str, operator: str) -> None:
    assert shorten_reason(text).startswith(f"the operator {operator} has no fake implementation")


def test_a_long_reason_is_cut() -> None:
    short = shorten_reason(f"head\n  Explanation: {'word ' * 100}")
    assert len(short) == 200
    assert short.endswith("…")

"""What Dynamo is told while a program is captured as eager runs it, and that it is told so for that time only."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.variables import torch as dynamo_torch
from torch.nn.modules import activation

from frx_graph.capture.eager_paths import eager_paths


def told() -> tuple[object, object]:
    return dynamo_torch.tracing_state_functions()[activation._is_make_fx_tracing], torch._dynamo.config.allow_rnn


def test_dynamos_answers_are_put_back_also_after_an_error() -> None:
    before = told()
    with pytest.raises(ZeroDivisionError), eager_paths():
        assert told() == (False, True)
        raise ZeroDivisionError
    assert told() == before


def test_a_torch_without_the_table_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    before = told()
    with monkeypatch.context() as patched:
        patched.delattr(dynamo_torch, "tracing_state_functions")
        with eager_paths():
            assert torch._dynamo.config.allow_rnn
    assert told() == before

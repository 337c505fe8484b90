"""Makes Dynamo take the ways through torch's own layers that eager takes, where a compiled program takes others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch._dynamo.variables import torch as dynamo_torch
from torch.nn.modules import activation


@contextlib.contextmanager
def eager_paths() -> Iterator[None]:
    """While it is entered, Dynamo traces torch's layers as they run in eager.

    Dynamo leaves its graph at `nn.LSTM`, `nn.GRU` and `nn.RNN` unless `allow_rnn` is set. `nn.MultiheadAttention` runs
    as one native operator in inference, unless it is told that it is being traced: Dynamo tells it so by a table of
    answers (`tracing_state_functions`, the same in torch 2.11, 2.13 and 2.15), whatever the true answer is. A torch
    without that table has the layer traced as a compiled program runs it.
    """
    with torch._dynamo.config.patch(allow_rnn=True):
        table = getattr(dynamo_torch, "tracing_state_functions", None)
        question = getattr(activation, "_is_make_fx_tracing", None)
        answers = table() if table is not None else {}
        if question not in answers:
            yield
            return
        told = answers[question]
        answers[question] = False
        try:
            yield
        finally:
            answers[question] = told

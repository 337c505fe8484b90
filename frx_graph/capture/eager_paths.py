"""Makes Dynamo take the ways through torch's own layers that eager takes, where a compiled program takes others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch
from torch._dynamo.variables.torch import tracing_state_functions
from torch.nn.modules import activation


@contextlib.contextmanager
def eager_paths() -> Iterator[None]:
    """While it is entered, Dynamo traces torch's layers as they run in eager.

    Dynamo leaves its graph at `nn.LSTM`, `nn.GRU` and `nn.RNN` unless `allow_rnn` is set. `nn.MultiheadAttention` runs
    as one native operator in inference, unless it is told that it is being traced: Dynamo tells it so by a table of
    answers (`tracing_state_functions`, the same in torch 2.13 and 2.15), whatever the true answer is.
    """
    with (
        torch._dynamo.config.patch(allow_rnn=True),
        mock.patch.dict(tracing_state_functions(), {activation._is_make_fx_tracing: False}),
    ):
        yield

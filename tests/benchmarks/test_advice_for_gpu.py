"""Predicted conversions against real traces of GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from advice_for_gpu import HIDDEN, REQUESTED, TRACES, Tally, Trace, compare

pytestmark = pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this torch is built for processors only")
FOLDER = Path(__file__).parents[1] / "data" / "traces"


FILE = FOLDER / "hta_alexnet_one_forward.json.gz"
ALEXNET = Trace(FILE.name, "", "alexnet", "A100 40GB", "float32")


def test_convolutions_of_alexnet_in_tf32() -> None:
    row = compare(ALEXNET, FILE)
    # The kernels write plain results by themselves, and the second convolution reads plain images.
    assert row.conversions == Tally(predicted=12, seen=6, both=6)
    assert len(row.different) == 4
    assert row.copies == {HIDDEN: Tally(), REQUESTED: Tally()}


def test_what_the_advice_does_not_know_is_no_prediction() -> None:
    row = compare(replace(ALEXNET, gpu="V100"), FILE)
    assert row.conversions == Tally(unknown=6)
    assert "weight 256x256x3x3: predicted unknown, there 2 in, 0 out (1 of 1 calls)" in row.different


def test_a_trace_of_another_network_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="5 convolutions, expected 1 x 13"):
        compare(replace(ALEXNET, network="vgg16"), FILE)


def test_networks_are_named_once_for_each_trace() -> None:
    assert len({trace.file for trace in TRACES}) == len(TRACES)
    assert len({trace.network for trace in TRACES if trace.gpu != "V100"}) >= 6

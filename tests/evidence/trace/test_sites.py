from __future__ import annotations

from pathlib import Path

import pytest

from frx_graph.capture.call_site import CallSite
from frx_graph.evidence.trace.events import HostThread, Operator, PythonFrame
from frx_graph.evidence.trace.sites import CallSites, find_site_in_stack
from frx_graph.evidence.trace.torch_trace import TorchTrace
from frx_graph.evidence.trace.tree import build_tree

MAIN = HostThread("1", "1")


def test_the_line_of_the_call_where_the_profiler_wrote_it() -> None:
    frames = [
        ("<built-in method conv2d of type object at 0x7f>", "torch/nn/modules/conv.py:560"),
        ("torch/nn/modules/conv.py(564): forward", "torch/nn/modules/module.py:1798"),
        ("nn.Module: Conv2d_1", "net.py:19"),
        ("net.py(18): forward", "torch/nn/modules/module.py:1798"),
        ("nn.Module: Net_0", "train.py:30"),
        ("train.py(3): <module>", "train.py:30"),
    ]
    assert find_site_in_stack(frames) == CallSite("net.py", 19, "forward", "Net_0.Conv2d_1")


def test_the_line_of_the_definition_otherwise() -> None:
    frames = [("torch/nn/functional.py(1): conv2d", ""), ("net.py(18): forward", ""), ("train.py(3): <module>", "")]
    assert find_site_in_stack(frames) == CallSite("net.py", 18, "forward")


@pytest.mark.parametrize(
    "foreign",
    [
        "/opt/lib/python3.7/site-packages/torch/nn/modules/conv.py(440): _conv_forward",
        "/usr/lib/python3/dist-packages/torch/_tensor.py(2): backward",
        "torch/_ops.py(1): __call__",
        "/usr/lib/python3.11/contextlib.py(81): inner",
        "<string>(1): <lambda>",
        "no frame at all",
    ],
)
def test_frames_that_are_not_the_users(foreign: str) -> None:
    assert find_site_in_stack([(foreign, "")]) is None
    assert find_site_in_stack([(foreign, ""), ("my_torch/net.py(3): f", "")]) == CallSite("my_torch/net.py", 3, "f")


def test_an_endless_stack_is_cut() -> None:
    assert find_site_in_stack([("torch/a.py(1): f", "")] * 100_000 + [("net.py(3): f", "")]) is None


def sites(*operators: Operator, frames: tuple[PythonFrame, ...] = ()) -> CallSites:
    return CallSites(build_tree(TorchTrace(Path("profile.json"), operators, (), (), frames, {})))


def test_stacks_written_into_the_event() -> None:
    stack = "/x/site-packages/torch/nn/modules/conv.py(440): _conv_forward;net.py(128): forward;train.py(46): <module>"
    assert sites(Operator("aten::conv2d", 0, 9, MAIN, call_stack=stack)).find_site(0) == CallSite(
        "net.py", 128, "forward"
    )


def test_frames_are_found_by_time() -> None:
    frames = (PythonFrame("net.py(18): forward", 0, 100, MAIN), PythonFrame("other.py(1): g", 20, 10, MAIN))
    assert sites(Operator("aten::add", 50, 9, MAIN), frames=frames).find_site(0) == CallSite("net.py", 18, "forward")


def test_a_backward_operator_has_the_site_of_its_forward() -> None:
    found = sites(
        Operator("aten::conv2d", 0, 9, MAIN, sequence=4, forward_thread=0, call_stack="net.py(128): forward"),
        Operator(
            "ConvolutionBackward0", 50, 30, MAIN, sequence=4, forward_thread=1, call_stack="train.py(9): <module>"
        ),
        Operator("aten::convolution_backward", 51, 20, MAIN, call_stack="train.py(9): <module>"),
    )
    assert found.find_site(2) == found.find_site(0) == CallSite("net.py", 128, "forward")


def test_site_without_stacks_is_the_trace_and_the_operator() -> None:
    found = sites(
        Operator("aten::conv2d", 0, 9, MAIN, sequence=4, forward_thread=0),
        Operator("ConvolutionBackward0", 50, 30, MAIN, sequence=4, forward_thread=1),
    )
    assert found.find_site(0) == found.find_site(1) == CallSite("profile.json", 0, "aten::conv2d")

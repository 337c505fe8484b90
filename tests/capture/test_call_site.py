"""Call sites and module paths, from Dynamo's text and from live frames."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from frx_graph.capture.call_site import (
    UNKNOWN_SITE,
    CallSite,
    find_user_frame,
    get_class_name,
    is_foreign,
    merge_module_paths,
    parse_module_path,
    parse_stack_trace,
    resolve_module_site,
    strip_resume_name,
)

_TORCH_FILE = Path(torch.__file__).parent / "nn" / "modules" / "conv.py"


def test_the_innermost_user_frame_is_the_site() -> None:
    trace = (
        '  File "/home/me/train.py", line 10, in step\n    loss = model(x)\n'
        '  File "/home/me/net.py", line 42, in forward\n    return self.conv(x)\n'
        f'  File "{_TORCH_FILE}", line 5, in forward\n    return F.conv2d(x)\n'
    )
    site = parse_stack_trace(trace, "model.conv")
    assert (site.file, site.line, site.function, site.module_path) == ("/home/me/net.py", 42, "forward", "model.conv")


@pytest.mark.parametrize("trace", [None, "", f'  File "{_TORCH_FILE}", line 5, in forward\n    x\n', "no frame here"])
def test_without_a_user_frame_the_site_is_unknown(trace: str | None) -> None:
    site = parse_stack_trace(trace, "model.x")
    assert site.line == 0
    assert site.module_path == "model.x"


def test_a_live_frame_gives_this_line() -> None:
    site = find_user_frame(sys._getframe())
    assert site.file == __file__
    assert site.function == "test_a_live_frame_gives_this_line"


def test_resumed_function_keeps_its_own_name() -> None:
    assert strip_resume_name("torch_dynamo_resume_in_forward_at_12") == "forward"
    assert strip_resume_name("forward") == "forward"


@pytest.mark.parametrize(
    ("sources", "path"),
    [
        ([], "model"),
        (["L['self']"], "model"),
        (["L['self']", "L['self'].layer3", "L['self'].layer3[2]", "L['self'].layer3[2].conv1"], "model.layer3.2.conv1"),
        (["L['self']._modules['layer3']._modules['2']"], "model.layer3.2"),
        (["L['fn'].encoder.stages.0.layers.1"], "model.encoder.stages.0.layers.1"),
        (["getattr(L['self'].stages, '0').conv"], "model.stages.0.conv"),
        (["L['self']._orig_mod.conv"], "model.conv"),
        (["L['self'].__dict__['_modules']['down']"], "model.down"),
        (["L['self'].__dict__._modules.down_blocks"], "model.down_blocks"),
    ],
)
def test_module_paths(sources: list[str], path: str) -> None:
    assert parse_module_path(sources) == path


@pytest.mark.parametrize(
    ("paths", "common"),
    [
        ([], ""),
        (["model.a.b"], "model.a.b"),
        (["model.layer.0.conv", "model.layer.1.conv", "model.layer.0.conv"], "model.layer.*.conv"),
        (["model.a", "model.a.b"], "model.a.*"),
        (["model.x.y", "other.z"], "*"),
    ],
)
def test_common_module_path(paths: list[str], common: str) -> None:
    assert merge_module_paths(paths) == common


def test_frames_of_python_s_library_are_not_the_user_s_but_installed_packages_are() -> None:
    assert is_foreign(json.__file__)
    assert is_foreign(str(_TORCH_FILE))
    assert not is_foreign(pytest.__file__)
    assert not is_foreign(__file__)


def test_site_without_a_line_falls_back_to_the_caller_then_the_class() -> None:
    known, lost = CallSite("net.py", 3, "forward", "model.0"), CallSite("<unknown>", 0, "<unknown>", "model.0")
    caller = CallSite("train.py", 9, "step")
    assert resolve_module_site(known, "Conv2d", caller) == known
    assert resolve_module_site(lost, "Conv2d", caller) == CallSite("train.py", 9, "step", "model.0")
    assert resolve_module_site(lost, "Conv2d") == CallSite("<unknown>", 0, "Conv2d.forward", "model.0")
    assert resolve_module_site(UNKNOWN_SITE, "") == UNKNOWN_SITE


@pytest.mark.parametrize("kind", [torch.nn.Conv2d, "torch.nn.modules.conv.Conv2d", "Conv2d"])
def test_class_is_shown_by_its_short_name(kind: object) -> None:
    assert get_class_name(kind) == "Conv2d"

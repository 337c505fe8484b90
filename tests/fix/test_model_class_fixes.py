"""Fixes of the model's own class: memory formats and autocast, with times and peaks that the tests make up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from frx_graph.advisor import advisor
from frx_graph.advisor.advisor import advise
from frx_graph.advisor.target import load_target
from frx_graph.fix.source_change import build_changes, collect_fixes, read_sources
from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.measure.measurement_cache import MeasuredOperators
from frx_graph.measure.operators.operator_measurement import LayoutTimes
from frx_graph.records import Finding, Fixability

MODEL = '''\
import torch
from torch import nn


class Images(nn.Module):
    """Two convolutions."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3)
        self.second = nn.Conv2d(8, 8, 3)

    def forward(self, x):
        """`x` is (batch, 4, height, width)."""
        return self.second(torch.relu(self.first(x)))


def build():
    torch.manual_seed(0)
    return Images().eval(), (torch.randn(2, 4, 12, 12),)
'''
CHANNELS_LAST = MODEL.replace(
    "        self.second = nn.Conv2d(8, 8, 3)\n",
    "        self.second = nn.Conv2d(8, 8, 3)\n        self.to(memory_format=torch.channels_last)\n",
).replace("        return self", "        x = x.to(memory_format=torch.channels_last)\n        return self")
AUTOCAST = MODEL.replace("    def forward", '    @torch.autocast("cpu", dtype=torch.bfloat16)\n    def forward')
pytestmark = pytest.mark.usefixtures("nothing_compiled")


class FastInChannelsLast:
    """Measurements by which every convolution gains."""

    def __init__(self, _device: str) -> None:
        self.failures: dict[Any, str] = {}
        self.loaded = False

    def measure(self, *_: object, **_how: object) -> None: ...

    def measurement(self, _signature: object) -> None:
        return None

    def layout_times(self, _signature: object) -> LayoutTimes:
        return LayoutTimes(1.0, 0.1)


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = DeviceProfile("cpu", "a CPU", 10e9, {torch.float32: 1e9, torch.bfloat16: 8e9}, 64)
    monkeypatch.setattr(advisor, "MeasuredOperators", FastInChannelsLast)
    monkeypatch.setattr(advisor, "get_device_profile", lambda *_, **_how: profile)


class SlowInChannelsLast(FastInChannelsLast):
    """Measurements by which every convolution loses."""

    def layout_times(self, _signature: object) -> LayoutTimes:
        return LayoutTimes(0.1, 1.0)


def find(path: Path, rule: str, *, train: bool = False) -> Finding:
    workload = load_target(f"{path}:build")
    advice = advise(workload.model, workload.args, train=train, builder=workload.builder).advice
    (found,) = (one for one in advice.findings if one.rule == rule)
    return found


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "model.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("rule", "expected"), [("FRX004", CHANNELS_LAST), ("FRX013", AUTOCAST)])
def test_the_class_of_the_model_is_changed(rule: str, expected: str, tmp_path: Path) -> None:
    found = find(write(tmp_path, MODEL), rule)
    assert found.offer is not None
    assert (found.offer.fixability, found.offer.reason) == (Fixability.UNSAFE, "")
    fixes = collect_fixes([found])
    (change,) = build_changes(fixes, read_sources(fixes))
    assert change.after.decode() == expected
    before, after = load_target(f"{tmp_path / 'model.py'}:build"), load_target(f"{write(tmp_path, expected)}:build")
    with torch.no_grad():
        result = after.model(*after.args)
        torch.testing.assert_close(result.float(), before.model(*before.args), rtol=0.02, atol=0.02)
    assert result.is_contiguous(memory_format=torch.channels_last) is (rule == "FRX004")


def test_convolutions_that_convert_images_ask_for_the_same_change(tmp_path: Path) -> None:
    """Without times FRX004 says nothing, and whether it pays is left to the trial."""
    workload = load_target(f"{write(tmp_path, MODEL)}:build")
    findings = advise(workload.model, workload.args, measure=False).advice.findings
    offers = [one.offer for one in findings if one.rule == "FRX001"]
    assert [offer.fixability for offer in offers if offer] == [Fixability.UNSAFE]
    fixes = collect_fixes([one for one in findings if one.rule == "FRX001"])
    (change,) = build_changes(fixes, read_sources(fixes))
    assert change.after.decode() == CHANNELS_LAST


@pytest.mark.parametrize("rule", ["FRX001", "FRX004"])
def test_model_of_a_class_of_torch_is_converted_where_it_is_built(rule: str, tmp_path: Path) -> None:
    before = MODEL.replace(
        "return Images().eval()", "model = nn.Sequential(nn.Conv2d(4, 8, 3))\n    return model.eval()"
    )
    path = write(tmp_path, before)
    workload = load_target(f"{path}:build")
    advice = advise(workload.model, workload.args, builder=workload.builder, measure=rule == "FRX004").advice
    fixes = collect_fixes([one for one in advice.findings if one.rule == rule])
    (change,) = build_changes(fixes, read_sources(fixes))
    expected = before.replace("model.eval(),", "model.eval().to(memory_format=torch.channels_last),").replace(
        "randn(2, 4, 12, 12)", "randn(2, 4, 12, 12).to(memory_format=torch.channels_last)"
    )
    assert change.after.decode() == expected
    # The user's function is not known to those who call advise with a model.
    unknown = advise(workload.model, workload.args, measure=rule == "FRX004").advice
    (offer,) = (one.offer for one in unknown.findings if one.rule == rule)
    assert offer is not None
    assert offer.reason == "the model's class is not yours: call `.to(memory_format=...)` where it is made"


NEAR_MISSES = {
    "what the function returns is not named or made by a call": MODEL.replace(
        "return Images().eval(),", "return nn.Sequential(nn.Conv2d(4, 8, 3)) or Images(),"
    ),
    "line 14 may need plain images": MODEL.replace(
        "    def forward", "    def heads(self, x):\n        return x.view(2, -1)\n\n    def forward"
    ),
    "the function that builds the model does not end with `return model, (images,)`": MODEL.replace(
        "    return Images()",
        "    if torch is None:\n        return None\n    return nn.Sequential(nn.Conv2d(4, 8, 3))",
    ),
    "the function that builds the model also returns other arguments than images": MODEL.replace(
        "return Images().eval(), (", "return nn.Sequential(nn.Conv2d(4, 8, 3)).eval(), (*(), "
    ),
    "what has to be converted is not an argument of the model": MODEL.replace(
        "(self.first(x))", "(self.first(x.flatten(2).unflatten(2, (12, 12))))"
    ),
    "the class does not define `__init__`": f"{MODEL}\n\nclass Other(Images):\n    def forward(self, x):\n"
    "        return self.first(x)\n",
}


@pytest.mark.parametrize(("reason", "text"), NEAR_MISSES.items(), ids=range(len(NEAR_MISSES)))
def test_channels_last_is_left_alone_with_a_reason(reason: str, text: str, tmp_path: Path) -> None:
    text = text.replace("return Images()", "return Other()") if "class Other" in text else text
    offer = find(write(tmp_path, text), "FRX004").offer
    assert offer is not None
    assert (offer.fixability, offer.reason) == (Fixability.NOT_FIXABLE, reason)


def test_training_is_not_put_under_autocast(tmp_path: Path) -> None:
    offer = find(write(tmp_path, MODEL), "FRX013", train=True).offer
    assert offer is not None
    assert offer.reason == "training in a narrower dtype takes more than a decorator"


STORED = MODEL.replace("return self.second", "x = x.to(memory_format=torch.channels_last)\n        return self.second")
PLAIN_WEIGHTS = (
    STORED.replace("x = x.to", "y = x.to")
    .replace("(self.first(x))", "(self.first(y))")
    .replace("Images().eval()", "Images().double().eval()")
    .replace("12, 12),)", "12, 12).double(),)")
)
"""In double precision, which oneDNN has no kernels for: it would pack the weights in any layout."""


@pytest.fixture
def measured(made_up: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure operators after all: whether a call converts its weight is seen by running it."""
    monkeypatch.setattr(advisor, "MeasuredOperators", MeasuredOperators)


@pytest.mark.usefixtures("measured")
def test_weights_are_stored_as_their_images_are(tmp_path: Path) -> None:
    found = find(write(tmp_path, PLAIN_WEIGHTS), "FRX007")
    assert found.offer is not None
    assert (found.offer.fixability, found.offer.fixer) == (Fixability.UNSAFE, "stored_weights")
    fixes = collect_fixes([found])
    (change,) = build_changes(fixes, read_sources(fixes))
    assert change.after.decode() == PLAIN_WEIGHTS.replace(
        "nn.Conv2d(8, 8, 3)\n", "nn.Conv2d(8, 8, 3)\n        self.to(memory_format=torch.channels_last)\n"
    )
    (tmp_path / "model.py").write_bytes(change.after)
    workload = load_target(f"{tmp_path / 'model.py'}:build")
    left = advise(workload.model, workload.args).advice.findings
    assert all(one.site.place != found.site.place for one in left if one.rule == "FRX007")


STORED_NEAR_MISSES = {
    "line 15 may need plain images": PLAIN_WEIGHTS.replace("y = x.to", "x = x.view(2, 4, 12, 12)\n        y = x.to"),
    "its `__init__` returns early": PLAIN_WEIGHTS.replace(
        "        super().__init__()\n", "        super().__init__()\n        if nn is None:\n            return\n"
    ),
}


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(("reason", "text"), STORED_NEAR_MISSES.items(), ids=range(len(STORED_NEAR_MISSES)))
def test_weights_are_left_alone_with_a_reason(reason: str, text: str, tmp_path: Path) -> None:
    offer = find(write(tmp_path, text), "FRX007").offer
    assert offer is not None
    assert (offer.fixability, offer.reason) == (Fixability.NOT_FIXABLE, reason)


TAKEN_OUT = {
    "both": CHANNELS_LAST,
    "where it is built": MODEL.replace(
        "Images().eval(),", "Images().eval().to(memory_format=torch.channels_last),"
    ).replace(
        "(torch.randn(2, 4, 12, 12),)", "(torch.randn(2, 4, 12, 12).contiguous(memory_format=torch.channels_last),)"
    ),
    "behind eval": MODEL.replace(
        "    return Images().eval(),", "    model = Images().eval()\n    return model,"
    ).replace("()\n    return model", "().to(memory_format=torch.channels_last)\n    return model"),
    "in a statement": MODEL.replace(
        "    return Images().eval(),", "    model = Images().eval()\n    return model,"
    ).replace("()\n    return model", "()\n    model.to(memory_format=torch.channels_last)\n    return model"),
}


@pytest.mark.parametrize("text", TAKEN_OUT.values(), ids=TAKEN_OUT)
def test_channels_last_is_taken_out(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advisor, "MeasuredOperators", SlowInChannelsLast)
    found = find(write(tmp_path, text), "FRX015")
    assert found.offer is not None
    assert (found.offer.fixability, found.offer.reason) == (Fixability.UNSAFE, "")
    fixes = collect_fixes([found])
    (change,) = build_changes(fixes, read_sources(fixes))
    changed = change.after.decode()
    assert "channels_last" not in changed
    assert changed.replace("    model = Images().eval()\n    return model,", "    return Images().eval(),") == MODEL


KEPT = {
    "line 17 writes in place, perhaps into the same memory": CHANNELS_LAST.replace(
        "        return self", "        x -= 1.0\n        return self"
    ),
    "the file of the model's class puts nothing in channels-last": MODEL.replace(
        "torch.randn(2, 4, 12, 12)", "torch.randn(2, 12, 12, 4).permute(0, 3, 1, 2)"
    ),
    "line 26 converts what may not be the model's own": (
        f"{CHANNELS_LAST}\n\ndef convert(x):\n    return x.to(memory_format=torch.channels_last)\n"
    ),
    "the file also uses memory formats in another way": f"{CHANNELS_LAST}\n\nmemory_format = None\n",
}


@pytest.mark.parametrize(("reason", "text"), KEPT.items(), ids=range(len(KEPT)))
def test_channels_last_stays_with_a_reason(
    reason: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advisor, "MeasuredOperators", SlowInChannelsLast)
    offer = find(write(tmp_path, text), "FRX015").offer
    assert offer is not None
    assert (offer.fixability, offer.reason) == (Fixability.NOT_FIXABLE, reason)

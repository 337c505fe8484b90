"""Our reading of Inductor's rules against Inductor itself, asked as it asks on a GPU (oneDNN switched off)."""

import pytest
import torch
from torch import nn
from torch._inductor.graph import GraphLowering

from frx_graph.capture.captured_graph import Phase
from frx_graph.capture.model import capture_model
from frx_graph.facts.build import build_graph_facts
from frx_graph.passes.layouts import inductor_layout
from frx_graph.passes.layouts.inductor_layout import is_channels_last_forced

MODELS = {
    "usual": nn.Sequential(nn.Conv2d(8, 128, 3), nn.Conv2d(128, 128, 3)),
    "small": nn.Sequential(nn.Conv2d(8, 16, 3), nn.Conv2d(16, 16, 3)),
    "narrowing": nn.Sequential(nn.Conv2d(8, 256, 3), nn.Conv2d(256, 128, 3), nn.Conv2d(128, 128, 3)),
    "narrowing 1x1": nn.Sequential(nn.Conv2d(8, 256, 3), nn.Conv2d(256, 128, 1), nn.Conv2d(128, 128, 3)),
    "depthwise": nn.Sequential(nn.Conv2d(8, 128, 3), nn.Conv2d(128, 128, 3, groups=128)),
    "grouped": nn.Sequential(nn.Conv2d(8, 128, 3), nn.Conv2d(128, 256, 3, groups=2)),
    "mostly grouped": nn.Sequential(nn.Conv2d(8, 128, 1), nn.Conv2d(128, 128, 3, groups=2)),
    "transposed": nn.Sequential(nn.Conv2d(8, 128, 3), nn.ConvTranspose2d(128, 128, 2, 2)),
    "few": nn.Sequential(nn.Conv2d(8, 128, 3), *[nn.ReLU() for _ in range(310)]),
}
X = torch.randn(2, 8, 12, 12)


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_the_rules_are_torchs_own(name: str, train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    (captured,) = capture_model(MODELS[name], (X,)).graphs
    facts = build_graph_facts(captured)
    if train:  # what a forward graph of a training step is asked
        facts = type(facts)(**{**vars(facts), "train": True})
    with torch.backends.mkldnn.flags(enabled=False):
        decided = GraphLowering.decide_layout_opt(captured.aten, is_inference=not train)
    monkeypatch.setattr(inductor_layout, "_runs_on_onednn", lambda *_: False)
    assert is_channels_last_forced(facts, Phase.FORWARD, "inductor") is decided


@pytest.mark.integration
def test_the_cases_decide_both_ways() -> None:
    def decisions(inference: bool) -> set[bool]:
        graphs = [capture_model(model, (X,)).graphs[0].aten for model in MODELS.values()]
        with torch.backends.mkldnn.flags(enabled=False):
            return {GraphLowering.decide_layout_opt(graph, is_inference=inference) for graph in graphs}

    assert decisions(inference=True) == decisions(inference=False) == {True, False}


def test_on_the_cpu_one_convolution_is_enough() -> None:
    facts = build_graph_facts(capture_model(MODELS["small"], (X,)).graphs[0])
    assert is_channels_last_forced(facts, Phase.FORWARD, "inductor")
    assert not is_channels_last_forced(facts, Phase.FORWARD, "eager")
    without = build_graph_facts(capture_model(nn.ReLU(), (X,)).graphs[0])
    assert not is_channels_last_forced(without, Phase.FORWARD, "inductor")


@pytest.mark.parametrize(("version", "counted"), [("2.13.0", False), ("2.14.1", False), ("2.15.0+cu132", True)])
def test_a_backward_graph_is_decided_on_since_torch_2_15(version: str, counted: bool) -> None:
    facts = build_graph_facts(capture_model(MODELS["usual"], (X,), train=True).graphs[0])
    assert is_channels_last_forced(facts, Phase.BACKWARD, "inductor", version) is counted
    assert is_channels_last_forced(facts, Phase.FORWARD, "inductor", version)

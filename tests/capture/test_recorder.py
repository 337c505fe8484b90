"""What the recorder keeps of a live compilation. Capture as a whole is tested in `test_model`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.capture.captured_graph import InputKind
from frx_graph.capture.recorder import GraphRecorder


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def backend_of(recorder: GraphRecorder) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    def backend(dynamo: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        recorder.record(dynamo, example_inputs, "eager")
        return dynamo.forward

    return backend


def double(x: Tensor) -> Tensor:
    return x * 2


def test_ids_stay_apart_after_a_reset_of_dynamo() -> None:
    recorder = GraphRecorder("test")
    for _ in range(3):
        torch._dynamo.reset()
        torch.compile(double, backend=backend_of(recorder))(torch.randn(3))
    first, second, third = (graph.graph_id for graph in recorder.capture().graphs)
    assert (second, third) == (f"1:{first}", f"2:{first}")


def test_a_second_compilation_of_a_frame_is_noted_with_its_reason() -> None:
    recorder = GraphRecorder("test")
    compiled = torch.compile(double, backend=backend_of(recorder), dynamic=False)
    compiled(torch.randn(3))
    assert recorder.capture().recompiles == ()
    compiled(torch.randn(4))
    (recompile,) = recorder.capture().recompiles
    assert recompile.graph_id == recorder.capture().graphs[1].graph_id
    assert "size" in recompile.reason


def test_a_graph_that_cannot_be_traced_is_a_failure_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(*_: object, **__: object) -> None:
        raise ZeroDivisionError("planted\nwith a second line")

    monkeypatch.setattr("frx_graph.capture.recorder.trace_eager", planted)
    recorder = GraphRecorder("test")
    assert torch.equal(torch.compile(double, backend=backend_of(recorder))(torch.ones(3)), torch.full((3,), 2.0))
    (failure,) = recorder.capture().failures
    assert failure.reason == "ZeroDivisionError: planted"
    assert failure.site is not None
    assert (failure.site.file, failure.site.line) == (__file__, double.__code__.co_firstlineno + 1)


def test_reported_capture_failures_are_kept() -> None:
    recorder = GraphRecorder("test")
    recorder.fail("a part", "no reason", UNKNOWN_SITE)
    (failure,) = recorder.capture().failures
    assert (failure.subject, failure.reason, failure.site) == ("a part", "no reason", UNKNOWN_SITE)
    assert recorder.capture().graphs == ()


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor + self.shift


def test_inputs_are_classified_by_what_holds_them() -> None:
    model = Scale()
    recorder = GraphRecorder("test", {id(model.factor): "factor"})
    torch.compile(model, backend=backend_of(recorder))(torch.randn(3))
    (graph,) = recorder.capture().graphs
    assert {entry.path: entry.kind for entry in graph.inputs} == {
        "x": InputKind.ARGUMENT,
        "model.factor": InputKind.PARAMETER,
        "model.shift": InputKind.BUFFER,
    }


def test_the_backward_is_traced_only_where_something_needs_it() -> None:
    recorder = GraphRecorder("test")
    compiled = torch.compile(Scale(), backend=backend_of(recorder))
    with torch.no_grad():
        compiled(torch.randn(3))
    compiled(torch.randn(3))
    assert [graph.train for graph in recorder.capture().graphs] == [False, True]


def test_operators_are_recorded_as_eager_dispatches_them() -> None:
    """Not as AOTAutograd takes them apart."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, image: Tensor) -> Tensor:
            smooth = nn.functional.interpolate(self.norm(image), scale_factor=2, mode="bilinear")
            return nn.functional.dropout(smooth, 0.5, training=True) @ smooth.transpose(-1, -2)

    recorder = GraphRecorder("test")
    torch.compile(Network(), backend=backend_of(recorder))(torch.randn(2, 3, 4, 4))
    (graph,) = recorder.capture().graphs
    operators = {str(getattr(node.target, "overloadpacket", "")) for node in graph.aten.graph.nodes}
    assert {"aten.native_batch_norm", "aten.upsample_bilinear2d", "aten.bernoulli_"} <= operators, operators


def test_a_kernel_that_knows_no_symbolic_sizes_is_not_shown_failing(capfd: pytest.CaptureFixture[str]) -> None:
    def upsampled(x: Tensor) -> Tensor:
        return nn.functional.interpolate(x, size=(5, 3), mode="bilinear", align_corners=True)

    recorder = GraphRecorder("test")
    torch.compile(upsampled, backend=backend_of(recorder), dynamic=True)(torch.randn(2, 3, 6, 4, requires_grad=True))
    assert len(recorder.capture().graphs) == 1
    assert "Traceback" not in capfd.readouterr().err

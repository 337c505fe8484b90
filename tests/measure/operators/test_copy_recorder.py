import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

from frx_graph.errors import EvidenceError
from frx_graph.measure.operators.copy_recorder import CopyRecorder
from frx_graph.measure.operators.operator_measurement import Mechanism

IMAGE, WEIGHT = torch.rand(2, 32, 28, 28), torch.rand(64, 32, 3, 3)
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")


def convolution(image: Tensor, weight: Tensor) -> Tensor:
    return torch.ops.aten.convolution.default(image, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def transposed(*sizes: int) -> Tensor:
    return torch.rand(*sizes).transpose(-1, -2)


CASES: dict[str, tuple[Callable[[], object], int]] = {
    "bmm, stepped": (lambda: torch.bmm(torch.rand(1, 16, 16)[:, ::2, ::2], torch.rand(1, 8, 8)), 1),
    "bmm, transposed": (lambda: torch.bmm(transposed(1, 8, 8), torch.rand(1, 8, 8)), 0),
    "layer_norm, transposed": (lambda: torch.native_layer_norm(transposed(4, 16, 8), [16], None, None, 1e-5), 1),
    "layer_norm, contiguous": (lambda: torch.native_layer_norm(torch.rand(4, 8, 16), [16], None, None, 1e-5), 0),
    "contiguous": (lambda: transposed(4, 8).contiguous(), 1),
    "contiguous already": (lambda: torch.rand(4, 8).contiguous(), 0),
    "reshape that copies": (lambda: transposed(4, 8).reshape(32), 1),
    "reshape that does not": (lambda: torch.rand(4, 8).reshape(32), 0),
    "clone": (lambda: torch.rand(4, 8).clone(), 1),
    "to memory format": (lambda: torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last), 1),
    "to dtype": (lambda: transposed(4, 8).to(torch.float64), 0),
    "expanded, materialised": (lambda: torch.rand(1, 8).expand(4, 8).contiguous(), 1),
    "copy_ into a slice": (lambda: torch.zeros(4, 16)[:, :8].copy_(transposed(8, 4)), 0),
    "copy_ in another order": (lambda: torch.zeros(4, 8).copy_(transposed(8, 4)), 1),
    "slice_backward": (lambda: torch.ops.aten.slice_backward(transposed(4, 4), [8, 4], 0, 0, 4, 1), 0),
    "masked_fill": (lambda: torch.masked_fill(torch.rand(8, 16)[:, ::2], torch.ones(8, 8, dtype=torch.bool), 0.0), 0),
    "addmm with a broadcast bias": (lambda: torch.addmm(torch.rand(8), torch.rand(4, 6), torch.rand(6, 8)), 0),
    "cat of permuted": (lambda: torch.cat([transposed(4, 8), transposed(4, 8)]), 0),
    "pad": (lambda: torch.ops.aten.constant_pad_nd(transposed(4, 8), [1, 1]), 0),
}


@pytest.fixture(scope="module")
def recorded() -> CopyRecorder:
    with CopyRecorder() as recorder:
        for name, (run, _) in CASES.items():
            with recorder.open_region(name):
                run()
    return recorder


@pytest.mark.parametrize("name", CASES)
def test_number_of_layout_copies(recorded: CopyRecorder, name: str) -> None:
    assert len(recorded.get_copies(name)) == CASES[name][1], recorded.get_copies(name)


def test_a_copy_is_described(recorded: CopyRecorder) -> None:
    (copy,) = recorded.get_copies("layer_norm, transposed")
    assert (copy.mechanism, copy.shape, copy.itemsize) == (Mechanism.ATEN, (4, 8, 16), 4)
    assert (copy.source, copy.target) == ("[128, 1, 8]", "[128, 16, 1]")
    assert (copy.role, copy.operand) == ("input", 0)


def test_a_key_that_was_never_used(recorded: CopyRecorder) -> None:
    assert recorded.get_copies("nothing") == ()
    assert recorded.get_implementations("nothing") == ()


@needs_onednn
def test_a_plain_convolution_converts_input_weight_and_result() -> None:
    with torch.no_grad(), CopyRecorder() as recorder:
        with recorder.open_region("plain"):
            convolution(IMAGE, WEIGHT)
        convolution(IMAGE, WEIGHT)
        with recorder.open_region("channels last"):
            convolution(IMAGE.to(memory_format=torch.channels_last), WEIGHT.to(memory_format=torch.channels_last))
    plain = [c for c in recorder.get_copies("plain") if c.mechanism is Mechanism.ONEDNN]
    assert [(c.role, c.operand) for c in plain] == [("input", 0), ("weight", 1), ("output", None)]
    assert [c.shape for c in plain] == [(2, 32, 28, 28), (64, 32, 3, 3), (2, 64, 28, 28)]
    assert len(recorder.get_implementations("plain")) == 1
    reordered = [c for c in recorder.get_copies("channels last") if c.mechanism is Mechanism.ONEDNN]
    assert {c.role for c in reordered} <= {"weight"}
    assert sum(c.mechanism is Mechanism.ATEN for c in recorder.get_copies("channels last")) == 2


@needs_onednn
def test_operands_of_a_convolution_backward() -> None:
    gradient = torch.rand(2, 64, 28, 28)
    settings = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    with CopyRecorder() as recorder, recorder.open_region("backward"):
        torch.ops.aten.convolution_backward.default(gradient, IMAGE, WEIGHT, *settings)
    roles = [(c.role, c.operand) for c in recorder.get_copies("backward")]
    assert sorted(roles, key=str) == sorted(
        [("input", 0), ("input", 0), ("input", 1), ("weight", 2), ("output", None), ("weight", None)], key=str
    )


def test_a_key_that_is_used_twice_adds_up() -> None:
    with CopyRecorder() as recorder:
        for _ in range(3):
            with recorder.open_region(("any", "hashable")):
                transposed(4, 8).contiguous()
    assert len(recorder.get_copies(("any", "hashable"))) == 3


def test_under_a_dispatch_mode_forward_and_backward() -> None:
    class Regions(TorchDispatchMode):
        def __init__(self, recorder: CopyRecorder) -> None:
            super().__init__()
            self.recorder, self.operators = recorder, []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.operators.append(str(func))
            with self.recorder.open_region(len(self.operators) - 1):
                return func(*args, **(kwargs or {}))

    x = torch.rand(4, 16, 8, requires_grad=True)
    with CopyRecorder() as recorder, Regions(recorder) as regions:
        torch.nn.functional.layer_norm(x.transpose(1, 2), (16,)).sum().backward()
    copied = {name for i, name in enumerate(regions.operators) if recorder.get_copies(i)}
    assert {"aten.native_layer_norm.default", "aten.native_layer_norm_backward.default"} <= copied


def test_output_of_others_appears_afterwards(capfd: pytest.CaptureFixture[str]) -> None:
    with CopyRecorder() as recorder, recorder.open_region("noisy"):
        os.write(1, b"loss 0.5\n")
        os.write(1, b"no newline")
        convolution(IMAGE, WEIGHT)
    out, err = capfd.readouterr()
    assert out == "loss 0.5\nno newline"
    assert "USDT" not in err


def test_results_are_there_after_an_exception(capfd: pytest.CaptureFixture[str]) -> None:
    recorder = CopyRecorder()
    with pytest.raises(ZeroDivisionError), recorder, recorder.open_region("before it"):
        transposed(4, 8).contiguous()
        raise ZeroDivisionError
    assert len(recorder.get_copies("before it")) == 1
    print("still here", flush=True)
    assert "still here" in capfd.readouterr().out
    with CopyRecorder() as again, again.open_region(0):
        transposed(4, 8).contiguous()
    assert len(again.get_copies(0)) == 1


def test_recorders_do_not_nest() -> None:
    with CopyRecorder() as recorder:
        with pytest.raises(EvidenceError, match="already running"), CopyRecorder():
            pass
        with recorder.open_region("outer still works"):
            transposed(4, 8).contiguous()
    assert len(recorder.get_copies("outer still works")) == 1


def test_a_running_profiler_is_left_alone() -> None:
    with profile() as running:
        with pytest.raises(EvidenceError, match="profiler is already running"), CopyRecorder():
            pass
        torch.ones(3) + 1
    assert any(event.key == "aten::add" for event in running.key_averages())
    with CopyRecorder():
        pass


def test_regions_do_not_nest_and_need_a_running_recorder() -> None:
    with CopyRecorder() as recorder:
        with (
            recorder.open_region("outer"),
            pytest.raises(RuntimeError, match="do not nest"),
            recorder.open_region("inner"),
        ):
            pass
        with recorder.open_region("next"):
            transposed(4, 8).contiguous()
    assert len(recorder.get_copies("next")) == 1
    with pytest.raises(RuntimeError, match="running"), recorder.open_region("too late"):
        pass


def test_standard_output_may_be_closed(tmp_path: Path) -> None:
    before = os.dup(1)
    os.close(1)
    try:
        with CopyRecorder() as recorder, recorder.open_region(0):
            convolution(IMAGE, WEIGHT)
    finally:
        os.dup2(before, 1)
        os.close(before)
    if torch.backends.mkldnn.is_available():
        assert recorder.get_implementations(0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_conversion_kernels_of_a_gpu_convolution() -> None:
    image, weight = IMAGE.cuda().half(), WEIGHT.cuda().half()
    with CopyRecorder() as recorder:
        convolution(image, weight)
        with recorder.open_region("plain"):
            convolution(image, weight)
            torch.cuda.synchronize()
    converted = [c for c in recorder.get_copies("plain") if c.mechanism is Mechanism.KERNEL]
    assert all(c.shape in {tuple(image.shape), tuple(weight.shape), (2, 64, 28, 28)} for c in converted)
    assert recorder.get_implementations("plain")

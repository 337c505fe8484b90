"""Advice for a GPU that is not there: what is placed on it, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

import frx_graph
from frx_graph.advice import Advice
from frx_graph.advisor import absent_gpu
from frx_graph.advisor.absent_gpu import (
    describe_absent,
    load_on_absent_gpu,
    place_on_absent_gpu,
    profile_documented_gpu,
)
from frx_graph.advisor.advisor import advise
from frx_graph.advisor.target import load_target
from frx_graph.capture.absent_gpu import AbsentGpu, capture_for
from frx_graph.capture.model import capture_model
from frx_graph.errors import OptionError, TargetError
from frx_graph.passes import confidence
from frx_graph.rules.gpu_profile import require_gpu
from frx_graph.support.torch_internals import FakeTensor

BUILT = torch.backends.cuda.is_built()
needs_build = pytest.mark.skipif(not BUILT, reason="this torch is built for processors only")
TARGET = """\
import torch
from torch import nn

def build():
    rate = torch.linspace(0, 0.1, 3)[1]{item}
    model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.Dropout(0.1))
    return model.eval(), (torch.randn(8, 64, 32, 32),)
"""


class Attended(nn.Module):
    """Holds tensors in every way that a module can."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.linear.weight
        self.register_buffer("scale", torch.ones(8))
        self.index = torch.arange(8)
        self.extra = [torch.zeros(8)]

    def forward(self, x: Tensor) -> Tensor:
        return self.tied(self.linear(x))[:, self.index] * self.scale + self.extra[0]


@needs_build
def test_every_tensor_is_on_the_gpu_and_the_program_is_left_alone() -> None:
    model, x = Attended(), torch.randn(4, 8)
    placed = place_on_absent_gpu(model, (x,), None, torch.bfloat16)
    there = placed.model
    held = [*there.parameters(), *there.buffers(), there.index, there.extra[0], *placed.args]  # type: ignore[attr-defined]
    assert all(isinstance(tensor, FakeTensor) and tensor.device.type == "cuda" for tensor in held)
    assert {tensor.dtype for tensor in held} == {torch.bfloat16, torch.int64}
    assert there.tied.weight is there.linear.weight  # type: ignore[attr-defined]
    assert isinstance(there.linear.weight, nn.Parameter)  # type: ignore[attr-defined]
    assert model.linear.weight.device.type == "cpu"
    assert not any(isinstance(tensor, FakeTensor) for tensor in (*model.parameters(), model.index, x))
    torch.testing.assert_close(model(x), model(x))


@needs_build
@pytest.mark.parametrize(
    ("dtype", "image", "weight", "last"),
    [
        (torch.float32, True, False, True),
        (torch.bfloat16, True, True, True),
        (torch.bfloat16, False, True, True),
        (torch.float16, False, False, False),
        (torch.float64, True, True, False),
    ],
)
@pytest.mark.parametrize("rank", [4, 5])
def test_convolutions_make_the_strides_of_cudnn(
    dtype: torch.dtype, image: bool, weight: bool, last: bool, rank: int
) -> None:
    memory_format = torch.channels_last if rank == 4 else torch.channels_last_3d
    model = nn.Conv2d(8, 8, 1) if rank == 4 else nn.Conv3d(8, 8, 1)
    x = torch.randn(2, 8, *[4] * (rank - 2))
    model = model.to(memory_format=memory_format) if weight else model
    x = x.to(memory_format=memory_format) if image else x
    placed = place_on_absent_gpu(model, (x,), {}, dtype)
    assert placed.args[0].stride() == x.stride()
    with placed.mode, capture_for(AbsentGpu()):
        (graph,) = capture_model(placed.model, placed.args, {}, train=True).graphs
    made = {str(node.target): node.meta["val"] for node in graph.aten.graph.nodes if "val" in node.meta}
    result = made["aten.convolution.default"]
    assert result.is_contiguous(memory_format=memory_format) is last
    assert result.device.type == "cuda"


@needs_build
@pytest.mark.parametrize("item", ["", ".item()"])
def test_target_is_built_without_memory_unless_it_needs_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, item: str
) -> None:
    path = tmp_path / "model.py"
    path.write_text(TARGET.format(item=item))
    built: list[bool] = []

    def load(target: str, **how: object) -> object:
        built.append(bool(how))
        return load_target(target, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(absent_gpu, "load_target", load)
    workload = load_on_absent_gpu(f"{path}:build", torch.float16)
    assert built == ([True, False] if item else [True])
    assert workload.args[0].dtype is torch.float16
    assert workload.args[0].device.type == "cuda"


def load_built(tmp_path: Path, body: str) -> nn.Sequential:
    """The model of a builder with this body, on the GPU."""
    path = tmp_path / "model.py"
    path.write_text(f"import torch\nfrom torch import nn\n\ndef build():\n{body}")
    model = load_on_absent_gpu(f"{path}:build", None).model
    assert isinstance(model, nn.Sequential)
    return model


@needs_build
def test_modules_are_converted_while_they_are_built(tmp_path: Path) -> None:
    model = load_built(
        tmp_path,
        "    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3))\n"
        "    model[1].weight = model[0].weight\n"
        "    model = model.half().to(memory_format=torch.channels_last)\n"
        "    return model, (torch.randn(2, 8, 16, 16).half(),)\n",
    )
    first, second = (convolution.weight for convolution in model)
    assert first is second
    assert isinstance(first, nn.Parameter)
    assert first.dtype is torch.float16
    assert first.is_contiguous(memory_format=torch.channels_last)
    assert nn.Linear(2, 2).double().weight.dtype is torch.float64


@needs_build
def test_other_errors_of_a_builder_are_its_own(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("def build():\n    raise RuntimeError('no weights')\n")
    with pytest.raises(TargetError, match="no weights"):
        load_on_absent_gpu(f"{path}:build", None)


@needs_build
def test_model_that_cannot_be_copied_is_refused() -> None:
    class Held(nn.Module):
        def __deepcopy__(self, _: object) -> Held:
            raise TypeError("a handle of its own")

    with pytest.raises(TargetError, match="cannot be copied for a GPU that is not here"):
        place_on_absent_gpu(Held(), (), None)


def find(dtype: torch.dtype, *, channels_last: bool = False, train: bool = False, gpu: str = "h100") -> Advice:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1))
    x = torch.randn(8, 64, 32, 32)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return advise(model.to(dtype), (x.to(dtype),), train=train, device=gpu).advice


@needs_build
def test_plain_convolutions_in_half_precision_convert_on_an_h100() -> None:
    advice = find(torch.bfloat16)
    converted = [copy for copy in advice.copies if copy.operator == "aten.convolution"]
    # Each converts the image, the weight and the result.
    assert sum(copy.count for copy in converted) == 6
    assert all("documented, not measured" in copy.cause for copy in converted)
    assert "FRX004" in {finding.rule for finding in advice.findings}
    assert advice.environment.device_name == "H100 SXM"
    assert "data sheet" in advice.environment.documented
    assert advice.environment.bandwidth_bytes_per_s == 3350e9


@needs_build
def test_channels_last_convolutions_convert_nothing() -> None:
    advice = find(torch.bfloat16, channels_last=True)
    assert not [copy for copy in advice.copies if copy.operator == "aten.convolution"]
    assert "FRX004" not in {finding.rule for finding in advice.findings}


def count_conversions(advice: Advice) -> int:
    return sum(copy.count for copy in advice.copies if copy.operator == "aten.convolution")


@needs_build
@pytest.mark.parametrize(("gpu", "tf32"), [("v100", True), ("t4", True), ("h100", False)])
def test_single_precision_without_tf32_is_unknown_and_not_none(
    gpu: str, tf32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    advice = find(torch.float32, gpu=gpu)
    assert not count_conversions(advice)
    assert any("convolution" in refusal.subject for refusal in advice.refusals)


@needs_build
@pytest.mark.parametrize("gpu", ["v100", "t4", "mi300x"])
def test_half_precision_that_no_document_covers_is_unknown(gpu: str) -> None:
    """GPUs before Ampere have no tensor cores for bfloat16, and of AMD's nothing is documented."""
    advice = find(torch.bfloat16, gpu=gpu)
    assert not count_conversions(advice)
    assert "FRX004" not in {finding.rule for finding in advice.findings}
    assert gpu == "mi300x" or any("convolution" in refusal.subject for refusal in advice.refusals)


@needs_build
def test_half_precision_before_ampere() -> None:
    advice = find(torch.float16, gpu="v100")
    assert count_conversions(advice) == 6
    assert "FRX004" in {finding.rule for finding in advice.findings}


@needs_build
def test_documents_are_less_certain_than_measurements() -> None:
    (finding,) = {found.confidence for found in find(torch.bfloat16).findings if found.rule == "FRX001"}
    assert finding == confidence.ASSUMED


@needs_build
@pytest.mark.parametrize("gpu", ["h100", "a100", "rtx 5070 ti"])
def test_single_precision_in_tf32_converts(gpu: str) -> None:
    assert torch.backends.cudnn.allow_tf32
    assert count_conversions(find(torch.float32, gpu=gpu)) == 6
    assert not count_conversions(find(torch.float32, gpu=gpu, channels_last=True))


@needs_build
def test_a_gpu_without_tf32_is_not_told_to_use_it() -> None:
    fixes = {
        gpu: [finding.fix for finding in find(torch.float32, gpu=gpu).findings if finding.rule == "FRX013"]
        for gpu in ("t4", "v100")
    }
    assert all(len(found) == 1 and "TF32" not in found[0] for found in fixes.values())


@needs_build
def test_amds_convolutions_return_plain_images(monkeypatch: pytest.MonkeyPatch) -> None:
    def list_strides() -> list[tuple[int, ...]]:
        model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()).to(memory_format=torch.channels_last)
        placed = place_on_absent_gpu(model, (torch.randn(2, 64, 8, 8),), None, torch.bfloat16)
        with placed.mode, capture_for(describe_absent(require_gpu("mi300x"))):
            (graph,) = capture_model(placed.model, placed.args, {}).graphs
        nodes = graph.aten.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
        return [node.meta["val"].stride() for node in nodes]

    assert list_strides() == [(4096, 64, 8, 1)]
    monkeypatch.setenv("PYTORCH_MIOPEN_SUGGEST_NHWC", "1")
    assert list_strides() == [(4096, 1, 512, 64)]


@needs_build
def test_tensors_that_name_no_device_are_on_the_gpu() -> None:
    class Counting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.t().contiguous() + torch.arange(8) + torch.zeros(8)

    advice = advise(Counting(), (torch.randn(8, 4),), device="h100").advice
    assert [copy.operator for copy in advice.copies] == ["aten.clone"]
    assert not advice.refusals


@needs_build
def test_autocast_narrows_attention() -> None:
    class Narrowed(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return nn.functional.scaled_dot_product_attention(q, q, q)

    placed = place_on_absent_gpu(Narrowed(), (torch.randn(2, 4, 32, 64),), None)
    with placed.mode, capture_for(AbsentGpu()):
        (graph,) = capture_model(placed.model, placed.args, {}).graphs
    assert "aten._scaled_dot_product_flash_attention.default" in {str(node.target) for node in graph.aten.graph.nodes}


@needs_build
def test_tensors_of_other_classes_are_refused() -> None:
    with pytest.raises(TargetError, match=r"a Tensor \(torch.sparse_coo\) cannot be put on a GPU"):
        advise(nn.ReLU(), (torch.eye(2).to_sparse(),), device="h100")


@needs_build
def test_images_of_three_channels_stay_as_they_are_in_tf32() -> None:
    model, x = nn.Conv2d(3, 64, 7, stride=2), torch.randn(2, 3, 64, 64)
    assert not count_conversions(advise(model, (x,), device="a100").advice)
    assert count_conversions(advise(model.bfloat16(), (x.bfloat16(),), device="a100").advice) == 3


@needs_build
def test_a_tensor_of_one_number_made_on_the_way() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.t().contiguous() * torch.tensor([2.0], dtype=x.dtype, device=x.device) + torch.tensor(1.0)

    advice = advise(Scaled(), (torch.randn(8, 4),), device="h100").advice
    assert not advice.refusals
    assert [copy.operator for copy in advice.copies if copy.bytes > 8] == ["aten.clone"]


@needs_build
def test_backward_is_analysed_as_well() -> None:
    advice = find(torch.bfloat16, train=True)
    assert advice.graphs[0].ops > find(torch.bfloat16).graphs[0].ops
    assert any("convolution_backward" in refusal.subject for refusal in advice.refusals)


def capture(model: nn.Module, x: Tensor, dtype: torch.dtype) -> list[str]:
    """The operators of a training step."""
    placed = place_on_absent_gpu(model, (x,), None, dtype)
    with placed.mode, capture_for(AbsentGpu()):
        captured = capture_model(placed.model, placed.args, {}, train=True)
    assert not captured.failures
    return [str(node.target) for graph in captured.graphs for node in graph.aten.graph.nodes]


@needs_build
def test_backward_has_the_operators_that_autograd_calls() -> None:
    operators = capture(nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU()), torch.randn(2, 8, 4, 4), torch.float32)
    assert {"aten.silu_backward.default", "aten.native_group_norm_backward.default"} <= set(operators)


@needs_build
def test_autocast_narrows_products() -> None:
    class Narrowed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return self.linear(x)

    assert "aten._to_copy.default" in capture(Narrowed(), torch.randn(4, 8), torch.float32)


@needs_build
def test_a_network_that_torch_converts_in_its_own_way(tmp_path: Path) -> None:
    built = load_built(tmp_path, "    return nn.Sequential(nn.LSTM(8, 8)).half(), (torch.randn(4, 2, 8).half(),)\n")
    recurrent = built[0]
    assert isinstance(recurrent, nn.LSTM)
    held = {id(weight) for weight in recurrent._flat_weights}
    assert held == {id(weight) for weight in recurrent.parameters()}


@needs_build
def test_a_function_with_tensors_of_its_own_is_refused() -> None:
    weight = torch.ones(4)
    with pytest.raises(TargetError, match="a function holds tensors"):
        advise(lambda x: x * weight, (torch.ones(4),), device="h100")


@needs_build
def test_values_that_a_model_asks_for_end_what_is_captured() -> None:
    class Asking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.transpose(0, 1).contiguous() * 2
            return y * 3 if y.sum().item() > 0 else y

    advice = advise(Asking(), (torch.randn(8, 8),), device="h100").advice
    assert advice.copies
    assert any("needs values" in refusal.reason for refusal in advice.refusals)


@needs_build
def test_a_lazy_parameter_is_an_error_for_people() -> None:
    with pytest.raises(TargetError, match="cannot be copied for a GPU that is not here"):
        place_on_absent_gpu(nn.LazyLinear(4), (torch.ones(2, 3),), None)


@needs_build
@pytest.mark.parametrize("train", [False, True])
def test_a_program_that_runs_here_is_advised_for_a_gpu(train: bool) -> None:
    frx_graph.clear()

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(64, 64, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.convolution(x)
            return y * torch.ones(32, device="cpu")

    model, x = Masked(), torch.randn(8, 64, 32, 32)
    options = {"mode": "advise", "for": "h100", "inner": "eager"}
    try:
        with torch.set_grad_enabled(train):
            made = torch.compile(model, backend="frx", options=options)(x)
            torch.compile(nn.Linear(8, 8), backend="frx", options={"inner": "eager"})(torch.ones(8))
        assert torch.equal(made, model(x))
        advice = frx_graph.report().advice
        (graph,) = advice.graphs
        assert graph.train is train
        assert (advice.environment.device, advice.environment.device_name) == ("cuda:0", "H100 SXM")
        assert advice.environment.documented
        assert "aten.convolution" in {copy.operator for copy in advice.copies}
        with pytest.raises(BackendCompilerFailed, match="already advises for H100 SXM, not A100 80GB SXM"):
            torch.compile(nn.ReLU(), backend="frx", options={**options, "for": "a100"})(x)
        # Another spelling of the same one.
        torch.compile(nn.Tanh(), backend="frx", options={**options, "for": "H100 SXM"})(torch.ones(2))
    finally:
        frx_graph.clear()


def test_options_that_take_a_gpu_are_errors() -> None:
    with pytest.raises(OptionError, match="cannot be observed here"):
        advise(nn.ReLU(), (torch.ones(2),), device="a100", observe=True)
    with pytest.raises(OptionError, match="no GPU is known by the name 'h10'"):
        advise(nn.ReLU(), (torch.ones(2),), device="h10")


def test_a_gpu_without_listed_peaks_has_no_profile() -> None:
    assert profile_documented_gpu(require_gpu("sm_90")) is None
    found = profile_documented_gpu(require_gpu("l4"))
    assert found is not None
    assert set(found.peak_flops) == {torch.float32, torch.bfloat16, torch.float16}


class Attending(nn.Module):
    """An attention of heads, with a mask or without."""

    def __init__(self, mask: Tensor | None = None) -> None:
        super().__init__()
        self.products = nn.Linear(64, 192)
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.products(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        return y.transpose(1, 2).flatten(2)


@needs_build
@pytest.mark.parametrize(
    ("dtype", "mask", "kernel"),
    [
        (torch.bfloat16, None, "flash"),
        (torch.float32, None, "efficient"),
        (torch.bfloat16, torch.ones(32, 32, dtype=torch.bool), "efficient"),
    ],
)
@pytest.mark.parametrize("train", [False, True])
def test_attention_is_fused_as_on_a_gpu(dtype: torch.dtype, mask: Tensor | None, kernel: str, train: bool) -> None:
    placed = place_on_absent_gpu(Attending(mask), (torch.randn(2, 32, 64),), None, dtype)
    with placed.mode, capture_for(AbsentGpu()):
        captured = capture_model(placed.model, placed.args, {}, train=train)
    (graph,) = captured.graphs
    called = [str(node.target) for node in graph.aten.graph.nodes if "scaled_dot_product" in str(node.target)]
    backward = [f"aten._scaled_dot_product_{kernel}_attention_backward.default"] if train else []
    assert called == [f"aten._scaled_dot_product_{kernel}_attention.default", *backward]
    assert not captured.failures
    assert not find_attention(dtype, mask, train)


def find_attention(dtype: torch.dtype, mask: Tensor | None, train: bool) -> list[str]:
    """The findings about stored scores."""
    advice = advise(
        Attending(mask).to(dtype), (torch.randn(2, 32, 64, dtype=dtype),), train=train, device="a100"
    ).advice
    return [finding.rule for finding in advice.findings if finding.rule == "FRX012"]


@needs_build
@pytest.mark.parametrize(
    ("row", "dtype", "causal", "kernel"),
    [
        (512, torch.bfloat16, False, "efficient"),
        (20, torch.bfloat16, False, "flash"),
        (20, torch.float32, False, "efficient"),
        (18, torch.float32, False, ""),
        (64, torch.bfloat16, True, "efficient"),
        (64, torch.float64, False, ""),
    ],
)
def test_the_kernel_depends_on_rows_dtype_and_lengths(row: int, dtype: torch.dtype, causal: bool, kernel: str) -> None:
    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.scaled_dot_product_attention(x[:, :, :16], x, x, is_causal=causal)

    placed = place_on_absent_gpu(Attention(), (torch.randn(2, 4, 32, row),), None, dtype)
    with placed.mode, capture_for(AbsentGpu()):
        (graph,) = capture_model(placed.model, placed.args, {}).graphs
    called = [str(node.target) for node in graph.aten.graph.nodes if "scaled_dot_product" in str(node.target)]
    assert called == ([f"aten._scaled_dot_product_{kernel}_attention.default"] if kernel else [])
    assert graph.aten.graph.output_node().args[0][0].meta["val"].shape == (2, 4, 16, row)


@needs_build
def test_backward_of_a_convolution_is_attributed_to_its_line() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    placed = place_on_absent_gpu(model, (torch.randn(2, 8, 16, 16),), None, torch.float16)
    with placed.mode, capture_for(AbsentGpu()):
        (graph,) = capture_model(placed.model, placed.args, {}, train=True).graphs
    sites = {str(node.target): graph.sites[node.name] for node in graph.aten.graph.nodes if node.name in graph.sites}
    assert sites["aten.convolution_backward.default"].module_path == sites["aten.convolution.default"].module_path


@pytest.mark.skipif(BUILT, reason="this torch is built for GPUs")
def test_a_torch_for_processors_is_refused() -> None:
    with pytest.raises(OptionError, match="built for processors only"):
        advise(nn.ReLU(), (torch.ones(2),), device="h100")

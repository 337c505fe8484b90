"""What a step runs, on real small models: compiled, eager, and computed in a worse way on purpose."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import profile

from frx_graph.errors import EvidenceError
from frx_graph.evidence.kernel_name import normalize_kernel_name, strip_serial_number
from frx_graph.measure.operators.implementation_rank import Rank, Work, rank_implementation
from frx_graph.measure.operators.kernel_identities import (
    Kernel,
    KernelCount,
    KernelIdentities,
    Source,
    count_loops,
    observe_kernels,
)
from frx_graph.measure.operators.unexpected_dispatch import find_unexpected_dispatch, list_changed_kernels

IDENTITIES = TypeAdapter(KernelIdentities)
WITH_ONEDNN = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch is without oneDNN")
WITH_AVX512 = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="oneDNN's preferences are those of AVX-512"
)
WITH_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class Attention(nn.Module):
    def __init__(self, fused: bool = True) -> None:
        super().__init__()
        self.fused = fused

    def forward(self, q: Tensor) -> Tensor:
        if self.fused:
            return functional.scaled_dot_product_attention(q, q, q)
        # Not a softmax, of which Inductor would make fused attention again.
        return (q @ q.transpose(-1, -2)).sigmoid() @ q


def convolution(groups: int = 3, channels_last: bool = False) -> Callable[[], Tensor]:
    torch.manual_seed(0)
    conv = nn.Conv2d(15, 15, 3, groups=groups).requires_grad_(False)
    image = torch.randn(2, 15, 16, 16)
    if channels_last:
        conv, image = conv.to(memory_format=torch.channels_last), image.to(memory_format=torch.channels_last)
    return lambda: conv(image)


def kernels(*counts: tuple[Source, str, str, int]) -> KernelIdentities:
    return KernelIdentities(tuple(KernelCount(Kernel(source, name, problem), n) for source, name, problem, n in counts))


def onednn(name: str, problem: str = "convolution forward src:f32:2x3x8x8", count: int = 1) -> KernelIdentities:
    return kernels((Source.ONEDNN, name, problem, count))


def both(*parts: KernelIdentities) -> KernelIdentities:
    return KernelIdentities(tuple(entry for part in parts for entry in part.kernels))


@pytest.fixture
def compiled(nothing_compiled: None) -> Iterator[Callable[[nn.Module, Tensor], Callable[[], object]]]:
    """A step of a compiled model, which has run once."""

    def build(model: nn.Module, x: Tensor) -> Callable[[], object]:
        program = torch.compile(model, backend="inductor")

        def step() -> object:
            with torch.no_grad():
                return program(x)

        step()
        return step

    yield build


@pytest.mark.integration
@WITH_ONEDNN
def test_a_compiled_step_shows_loops_primitives_and_operators(
    compiled: Callable[[nn.Module, Tensor], Callable[[], object]],
) -> None:
    model = nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 4))
    step = compiled(model, torch.randn(2, 16, 8, 8))
    seen = observe_kernels(step)
    assert seen.untold == ()
    assert seen.count_kernels(Source.ATEN)["aten::addmm"] == 1
    assert seen.count_kernels(Source.GENERATED)["cpp_fused_relu"] == 1
    (primitive,) = [entry.kernel for entry in seen.kernels if entry.kernel.kind == "convolution"]
    assert primitive.problem == "convolution forward src:f32:2x16x8x8 wei:f32:16x16x3x3 dst:f32:2x16x6x6"
    assert seen == observe_kernels(step)
    assert list_changed_kernels(seen, seen) == ()
    assert find_unexpected_dispatch(seen, seen) == ()
    assert IDENTITIES.validate_json(IDENTITIES.dump_json(seen)) == seen


@pytest.mark.integration
def test_the_loops_of_a_program_are_counted_only_while_asked(
    compiled: Callable[[nn.Module, Tensor], Callable[[], object]],
) -> None:
    step = compiled(nn.Sequential(nn.Tanh(), nn.Softmax(-1)), torch.randn(4, 8))
    with count_loops() as counts:
        step()
        step()
    step()
    assert list(counts.values()) == [2]
    assert "tanh" in next(iter(counts))
    assert not any(part.isdigit() for part in next(iter(counts)).split("_"))


@pytest.mark.integration
def test_two_processes_agree() -> None:
    script = textwrap.dedent(
        """
        import sys, torch
        from pydantic import TypeAdapter
        from frx_graph.measure.operators.kernel_identities import KernelIdentities, observe_kernels
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
        print("not of the log", flush=True)
        x = torch.ones(2, 3, 8, 8)
        seen = observe_kernels(lambda: model(x).sum().backward())
        sys.stdout.buffer.write(TypeAdapter(KernelIdentities).dump_json(seen))
        """
    )
    texts = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, env=os.environ)
        foreign, _, text = done.stdout.decode().partition("\n")
        assert foreign == "not of the log"
        texts.append(text)
    assert texts[0] == texts[1]
    assert len(IDENTITIES.validate_json(texts[0]).kernels) > 5


@WITH_ONEDNN
@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # the flags' own default
def test_convolution_that_leaves_onednn_is_reported() -> None:
    step = convolution(groups=1)
    before = observe_kernels(step)
    with torch.backends.mkldnn.flags(enabled=False):
        after = observe_kernels(step)
    (worse,) = find_unexpected_dispatch(before, after)
    assert (worse.work, worse.after, worse.count) == (Work.CONVOLUTION, "aten::_slow_conv2d_forward", 1)
    assert set(worse.before) <= before.count_kernels(Source.ONEDNN).keys()
    assert find_unexpected_dispatch(after, before) == ()


@WITH_ONEDNN
@WITH_AVX512
def test_grouped_convolution_that_loses_its_kernel_is_reported() -> None:
    """Five channels in a group: oneDNN has a kernel for them in channels-last, and a matrix product otherwise."""
    last, first = observe_kernels(convolution(channels_last=True)), observe_kernels(convolution())
    (worse,) = find_unexpected_dispatch(last, first)
    assert (worse.before, worse.after, worse.count) == (("jit:avx512_core",), "x64:gemm:jit", 1)
    assert worse.problem.startswith("convolution forward src:f32:2x15x16x16")
    assert str(worse).endswith("1 × x64:gemm:jit instead of jit:avx512_core")
    assert find_unexpected_dispatch(first, last) == ()


@WITH_ONEDNN
@WITH_AVX512
def test_other_fast_kernels_and_added_reorders_are_evidence_and_nothing_else() -> None:
    def step(channels_last: bool) -> Callable[[], Tensor]:
        conv, image = nn.Conv2d(32, 32, 3).requires_grad_(False), torch.randn(2, 32, 16, 16)
        if channels_last:
            image = image.to(memory_format=torch.channels_last)
        return lambda: conv(image)

    last, first = observe_kernels(step(True)), observe_kernels(step(False))
    assert find_unexpected_dispatch(last, first) == find_unexpected_dispatch(first, last) == ()
    changes = list_changed_kernels(last, first)
    assert any(change.kernel.kind == "reorder" and change.after > change.before for change in changes)
    assert {change.before for change in changes if change.kernel.kind == "convolution"} == {0, 1}


@pytest.mark.integration
@pytest.mark.parametrize("fused", [True, False])
def test_compiled_attention_that_is_no_longer_fused_is_reported(
    fused: bool, compiled: Callable[[nn.Module, Tensor], Callable[[], object]]
) -> None:
    q = torch.randn(1, 2, 16, 8)
    before, after = (observe_kernels(compiled(Attention(kind), q)) for kind in (True, fused))
    worse = find_unexpected_dispatch(before, after)
    assert [(one.work, one.count) for one in worse] == ([] if fused else [(Work.ATTENTION, 1)])
    assert find_unexpected_dispatch(after, before) == ()


def test_math_attention_in_eager_is_reported() -> None:
    q = torch.randn(1, 2, 16, 8)
    attend = Attention()
    before = observe_kernels(lambda: attend(q))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        after = observe_kernels(lambda: attend(q))
    (worse,) = find_unexpected_dispatch(before, after)
    assert worse.after == "aten::_scaled_dot_product_attention_math"
    assert find_unexpected_dispatch(after, before) == ()


@pytest.mark.parametrize(
    ("before", "after", "flagged"),
    [
        (onednn("brgconv:avx512_core"), onednn("jit:avx512_core"), []),
        (onednn("brgconv:avx512_core"), onednn("ref:any"), [("ref:any", 1)]),
        (onednn("jit:avx512_core"), onednn("gemm:ref"), [("gemm:ref", 1)]),
        (onednn("gemm:ref"), onednn("gemm:ref"), []),
        (onednn("x64:gemm:jit"), onednn("ref:any"), [("ref:any", 1)]),
        (onednn("conv:any+jit:avx2"), onednn("conv:any+x64:gemm:jit"), [("conv:any+x64:gemm:jit", 1)]),
        (onednn("jit:avx2"), onednn("from_the_future:avx4096"), []),
        (onednn("from_the_future:avx4096"), onednn("ref:any"), []),
        (onednn("wino:acl"), onednn("ref:any"), []),
        (onednn("jit:uni", "reorder undef"), onednn("simple:any", "reorder undef", 3), []),
        (onednn("jit:avx2"), both(onednn("jit:avx2"), onednn("ref:any", "convolution forward src:f32:9")), []),
        (
            both(onednn("jit:avx2"), onednn("jit:avx2", "convolution forward src:f32:7")),
            both(onednn("jit:avx2"), onednn("ref:any", "convolution forward src:f32:9")),
            [("ref:any", 1)],
        ),
        (onednn("jit:avx2", "matmul x"), onednn("ref:any"), []),
        (
            onednn("jit:avx2", count=3),
            both(onednn("ref:any"), onednn("gemm:jit", count=2)),
            [("ref:any", 1), ("gemm:jit", 2)],
        ),
        (both(onednn("jit:avx2"), onednn("ref:any")), both(onednn("jit:avx2"), onednn("gemm:jit")), []),
    ],
)
def test_a_step_down_by_onednns_names(
    before: KernelIdentities, after: KernelIdentities, flagged: list[tuple[str, int]]
) -> None:
    assert [(worse.after, worse.count) for worse in find_unexpected_dispatch(before, after)] == flagged


def test_a_log_that_one_side_lacks_is_not_compared() -> None:
    fast, slow = onednn("jit:avx2"), onednn("ref:any")
    assert find_unexpected_dispatch(fast, slow)
    assert find_unexpected_dispatch(fast, KernelIdentities(slow.kernels, (Source.ONEDNN,))) == ()


@pytest.mark.parametrize(
    ("name", "work", "rank"),
    [
        ("cutlass_80_tensorop_s1688gemm_128x128_nn_align4", Work.MATMUL, Rank.SPECIAL),
        ("cutlass_80_simt_sgemm_128x64_8x5_nn_align1", Work.MATMUL, Rank.GENERAL),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_nn", Work.MATMUL, Rank.SPECIAL),
        ("volta_sgemm_128x64_nn", Work.MATMUL, Rank.GENERAL),
        ("volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", Work.CONVOLUTION, Rank.GENERAL),
        (
            "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x16_stage4_warpsize2x2x1_g1_"
            "tensor16x8x8_kernel_cudnn",
            Work.CONVOLUTION,
            Rank.SPECIAL,
        ),
        ("implicit_convolve_sgemm<float>", Work.CONVOLUTION, Rank.GENERAL),
        ("at::native::im2col_kernel<float>", Work.CONVOLUTION, Rank.REFERENCE),
        ("pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits>", Work.ATTENTION, Rank.SPECIAL),
    ],
)
def test_a_device_kernels_rank_is_in_its_name(name: str, work: Work, rank: Rank) -> None:
    found = rank_implementation(Kernel(Source.DEVICE, name))
    assert found is not None
    assert (found.work, found.rank) == (work, rank)


@pytest.mark.parametrize(
    "name",
    [
        "nvjet_hsh_128x64_64x9_2x1_v_bz_TNT",
        "gemv2T_kernel_val<int, float>",
        "at::native::conv_depthwise2d_forward_kernel<float, int>",
        "triton_poi_fused_add_relu",
        "cudnn::ops::nchwToNhwcKernel<float>",
        "Memcpy HtoD (Pageable -> Device)",
    ],
)
def test_uninformative_kernel_name_has_no_rank(name: str) -> None:
    assert rank_implementation(Kernel(Source.DEVICE, name)) is None


@pytest.mark.parametrize(
    ("demangled", "name"),
    [
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(cutlass_80_simt_sgemm::Params)",
            "cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>",
        ),
        (
            "void at::native::elementwise_kernel<128, 4, at::native::Add<float> >(int)",
            "at::native::elementwise_kernel<at::native::Add>",
        ),
        (
            "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>(float*)",
            "cudnn::ops::nchwToNhwcKernel<float>",
        ),
        (
            "void at::native::(anonymous namespace)::softmax_warp_forward<float, 10, true>(float*, int)",
            "at::native::softmax_warp_forward<float>",
        ),
        ("triton_per_fused_add_native_layer_norm_12", "triton_per_fused_add_native_layer_norm"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("ampere_sgemm_32x32_sliced1x4_tn", "ampere_sgemm_32x32_sliced1x4_tn"),
        ("void broken<unclosed", "broken"),
    ],
)
def test_device_kernel_names(demangled: str, name: str) -> None:
    assert normalize_kernel_name(demangled) == name


def test_generated_names_lose_their_numbers() -> None:
    assert strip_serial_number("cpp_fused_convolution_relu_3") == "cpp_fused_convolution_relu"
    assert strip_serial_number("cpp_fused_conv2d_log1p_12_3") == "cpp_fused_conv2d_log1p"


def test_one_profiler_at_a_time() -> None:
    with profile(), pytest.raises(EvidenceError, match="already running"):
        observe_kernels(lambda: None)


@pytest.mark.integration
def test_an_error_of_the_step_leaves_nothing_behind(
    compiled: Callable[[nn.Module, Tensor], Callable[[], object]], capfd: pytest.CaptureFixture[str]
) -> None:
    step = compiled(nn.Tanh(), torch.randn(4, 8))

    def fails() -> None:
        step()
        raise RuntimeError("the step's own")

    with pytest.raises(RuntimeError, match="the step's own"):
        observe_kernels(fails)
    convolution()()
    assert "onednn_verbose" not in capfd.readouterr().out
    assert observe_kernels(step).count_kernels(Source.GENERATED).total() == 1


@pytest.mark.cuda
@WITH_CUDA
def test_gpu_kernels_are_listed_and_a_lost_tensor_core_is_reported() -> None:
    a = torch.randn(512, 512, device="cuda")
    half = a.half()
    single, fast = observe_kernels(lambda: a @ a), observe_kernels(lambda: half @ half)
    assert single.count_kernels(Source.DEVICE).total() >= 1
    assert fast.count_kernels(Source.DEVICE).total() >= 1
    assert find_unexpected_dispatch(single, single) == find_unexpected_dispatch(fast, fast) == ()
    ranks = [rank_implementation(entry.kernel) for entry in (*single.kernels, *fast.kernels)]
    if {Rank.GENERAL, Rank.SPECIAL} <= {found.rank for found in ranks if found is not None}:
        assert find_unexpected_dispatch(fast, single)
        assert find_unexpected_dispatch(single, fast) == ()


@pytest.mark.cuda
@WITH_CUDA
def test_math_attention_on_gpu_is_reported() -> None:
    q = torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.float16)
    attend = Attention()
    before = observe_kernels(lambda: attend(q))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        after = observe_kernels(lambda: attend(q))
    assert any(worse.work is Work.ATTENTION for worse in find_unexpected_dispatch(before, after))
    assert not any(worse.work is Work.ATTENTION for worse in find_unexpected_dispatch(after, before))

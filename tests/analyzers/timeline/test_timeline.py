"""What is measured of a run: its windows, devices, kernels and operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import FEW_EXAMPLES

from frx_graph.analyze.trace import analyze_run
from frx_graph.analyzers.timeline.host_time import Part
from frx_graph.analyzers.timeline.kernel_table import Launcher
from frx_graph.analyzers.trace.kernel_names import KernelFamily, classify_kernel_family, is_on_tensor_cores

TRACES = Path(__file__).parents[2] / "data" / "traces"


def test_a_first_step_that_takes_much_longer_is_left_out(run: Any) -> None:
    for number, (start, end) in enumerate([(0, 210), (210, 310), (310, 410)]):
        run.step(number, start, end)
        run.op("aten::mm", start, start + 5)
        run.kernel(start + 1, start + 2, start + 12)
    windows = run.analyse().run.timeline.windows
    assert [step.number for step in windows.used] == [1, 2]
    assert [step.number for step in windows.left_out] == [0]
    assert windows.host_ns == 200_000


def test_steps_that_are_about_equal_all_count(run: Any) -> None:
    for number, (start, end) in enumerate([(0, 200), (200, 300), (300, 400)]):
        run.step(number, start, end)
        run.op("aten::mm", start, start + 5)
    assert len(run.analyse().run.timeline.windows.used) == 3


def test_the_last_step_lasts_until_its_work_is_done(run: Any) -> None:
    run.step(1, 0, 100)
    run.op("aten::mm", 0, 5)
    run.kernel(1, 50, 250)
    timeline = run.analyse().run.timeline
    assert (timeline.windows.host_ns, timeline.windows.span_ns) == (100_000, 250_000)
    assert timeline.busy_share == pytest.approx(0.8)


def test_overlapping_work_counts_once_and_transfers_are_kept_apart(run: Any) -> None:
    run.step(1, 0, 1000)
    run.op("aten::mm", 0, 5)
    run.kernel(1, 100, 300)
    run.kernel(2, 200, 400, stream=8)
    run.device("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 3, 350, 450, stream=9, bytes=100)
    run.device("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 3, 500, 600, stream=9)
    run.device("gpu_memset", "Memset (Device)", 4, 600, 650)
    timeline = run.analyse().run.timeline
    (device,) = timeline.devices
    assert device.name == "Tesla V100-SXM2-32GB"
    assert (device.kernel_ns, device.memcpy_ns, device.memset_ns) == (300_000, 200_000, 50_000)
    assert (device.busy_ns, device.idle_ns) == (500_000, 500_000)
    assert (device.host_to_device_ns, device.exposed_host_to_device_ns) == (100_000, 50_000)
    assert {(one.stream, one.kernels, one.copies) for one in device.streams} == {("7", 1, 0), ("8", 1, 0), ("9", 0, 2)}
    assert [(one.direction, one.host_memory, one.bytes) for one in timeline.transfers] == [
        ("HtoD", "pinned", 100),
        ("DtoH", "pageable", None),
    ]


@settings(FEW_EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spans=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 40), st.integers(7, 8)), min_size=1, max_size=12))
def test_busy_time_is_that_of_each_microsecond(run: Any, spans: list[tuple[int, int, int]]) -> None:
    run.events.clear()
    run.step(1, 0, 100)
    run.op("aten::mm", 0, 5)
    for start, length, stream in spans:
        run.kernel(None, start, start + length, stream=stream)
    timeline = run.analyse().run.timeline
    ends = [start + length for start, length, _ in spans if start < 100]
    window = range(max([100, *ends]))
    busy = sum(any(start <= moment < start + length for start, length, _ in spans) for moment in window)
    (device,) = timeline.devices
    assert device.span_ns == 1000 * len(window)
    assert (device.busy_ns, device.kernel_ns) == (1000 * busy, 1000 * busy)
    assert device.idle_ns == 1000 * (len(window) - busy)


def test_kernels_belong_to_the_operators_around_their_launch(run: Any) -> None:
    run.step(1, 0, 1000)
    run.op("aten::conv2d", 10, 90)
    run.op("aten::cudnn_convolution", 20, 80)
    run.kernel(30, 100, 200)
    run.op("autograd::engine::evaluate_function: ConvolutionBackward0", 200, 300, engine=True)
    run.event("user_annotation", "Optimizer.step#SGD.step", 400, 500, {"pid": 1, "tid": 1})
    run.op("aten::add_", 410, 490)
    run.kernel(420, 430, 440, "other_kernel")
    run.kernel(600, 610, 620, "nobody_s_kernel")
    table = run.analyse().run.timeline.kernels
    assert (table.count, table.attributed, table.attributed_ns) == (3, 2, 110_000)
    assert [(one.launcher, one.part, one.total_ns) for one in table.operators] == [
        (Launcher("aten::cudnn_convolution", "aten::conv2d"), Part.FORWARD, 100_000),
        (Launcher("aten::add_", "aten::add_"), Part.OPTIMIZER, 10_000),
    ]
    assert table.parts == {Part.FORWARD: 100_000, Part.OPTIMIZER: 10_000, Part.OTHER: 10_000}


def test_external_id_replaces_an_unrecorded_launch(run: Any) -> None:
    run.op("aten::mm", 0, 50, **{"External id": 17})
    run.kernel(None, 60, 70, **{"External id": 17})
    table = run.analyse().run.timeline.kernels
    assert (table.attributed, table.operators[0].launcher.inner) == (1, "aten::mm")


def test_parts_of_a_step_on_the_host(run: Any) -> None:
    run.step(1, 0, 1000)
    run.load(0, 100)
    run.op("aten::stack", 10, 90)
    run.op("aten::linear", 100, 250)
    run.op("autograd::engine::evaluate_function: AddmmBackward0", 250, 400, engine=True)
    run.op("aten::mm", 260, 390, engine=True)
    run.event("user_annotation", "Optimizer.zero_grad#Adam.zero_grad", 400, 420, {"pid": 1, "tid": 1})
    run.event("user_annotation", "Optimizer.step#Adam.step", 420, 500, {"pid": 1, "tid": 1})
    parts = run.analyse().run.timeline.host.parts
    assert {part: time // 1000 for part, time in parts.items()} == {
        Part.LOADING: 100,
        Part.FORWARD: 150,
        Part.BACKWARD: 150,
        Part.ZERO_GRAD: 20,
        Part.OPTIMIZER: 80,
    }


def test_python_frame_reveals_a_data_loader_without_a_range(run: Any) -> None:
    run.step(1, 0, 1000)
    run.op("aten::mm", 0, 5)
    run.event("python_function", "torch/utils/data/dataloader.py(630): __next__", 100, 400, {"pid": 1, "tid": 1})
    assert run.analyse().run.timeline.loading_share == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("name", "family", "tensor_cores"),
    [
        ("volta_sgemm_64x64_nt", KernelFamily.GEMM, False),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn", KernelFamily.GEMM, True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64>(P)", KernelFamily.GEMM, True),
        ("Cijk_Alik_Bljk_SB_MT64x16x32_MI16x16x1_SN", KernelFamily.GEMM, True),
        ("void splitKreduce_kernel<32, 16, int, float>(int)", KernelFamily.GEMM, None),
        ("void cudnn::cnn::wgrad_alg0_engine<float, 128>(int)", KernelFamily.CONVOLUTION, None),
        ("cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1", KernelFamily.CONVOLUTION, False),
        (
            "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tensor16x8x8_alignc4",
            KernelFamily.CONVOLUTION,
            True,
        ),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>(P)", KernelFamily.ATTENTION, None),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(P)", KernelFamily.ATTENTION, None),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", KernelFamily.COMMUNICATION, None),
        ("void nchwToNhwcKernel<float, float, float>(int)", KernelFamily.LAYOUT_CONVERSION, None),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::Add>(int)", KernelFamily.ELEMENTWISE, None),
        ("void at::native::reduce_kernel<512, 1>(int)", KernelFamily.REDUCTION, None),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>(int)", KernelFamily.NORMALIZATION, None),
        ("mystery", KernelFamily.OTHER, None),
        # Neither an argument that talks of convolutions, nor the elementwise half of a name, makes one.
        ("void my_kernel<conv2d_params>(conv2d_params)", KernelFamily.OTHER, None),
    ],
)
def test_kernel_families(name: str, family: KernelFamily, tensor_cores: bool | None) -> None:
    assert (classify_kernel_family(name), is_on_tensor_cores(name)) == (family, tensor_cores)


def test_an_amd_trace_has_sizes_of_its_copies_from_their_calls() -> None:
    timeline = analyze_run(TRACES / "hta_mi250_minitoy_train.json.gz").run.timeline
    (transfer,) = timeline.transfers
    assert (transfer.direction, transfer.host_memory, transfer.count, transfer.bytes) == ("HtoD", None, 2, 5120)
    assert timeline.kernels.attributed == timeline.kernels.count == 14
    assert {wait.call for wait in timeline.host.waits} == {"hipMemcpyWithStream"}


@settings(FEW_EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["cpu_op", "user_annotation", "kernel", "gpu_memcpy", "cuda_runtime", "python_function"]),
            st.sampled_from(
                ["aten::mm", "ProfilerStep#1", "ProfilerStep#2", "Memcpy HtoD", "ncclX", "Optimizer.step#A"]
            ),
            st.integers(-20, 60),
            st.integers(-5, 60),
            st.integers(0, 3),
        ),
        max_size=14,
    )
)
def test_any_order_overlap_and_id_is_survived_and_shares_stay_within_one(run: Any, events: list[Any]) -> None:
    run.events.clear()
    run.op("aten::add", 0, 5)
    for category, name, start, length, number in events:
        where = {"pid": number, "tid": number}
        args = {"correlation": number, "External id": number, "device": number % 2}
        run.event(category, name, start, start + length, where, **args)
    timeline = run.analyse().run.timeline
    for name, value in timeline.collect_values().items():
        if name.endswith("_pct") and name != "layout_change_pct":
            assert -1e-9 <= value <= 100.0 + 1e-9, name

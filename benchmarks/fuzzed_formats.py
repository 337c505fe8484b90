"""The readers that `fuzz_parsers.py` damages files for: how each is read, and what its files are made of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fuzzed_runs import event_streams, events_report, samples_of_devices, samples_report
from ncu_exports import MEMORY, OCCUPANCY, RAW, SOL, Launch, long_export, metric, wide_export
from run_traces import RunTrace

from frx_graph.analyze.cuda_source import analyze_cuda
from frx_graph.analyze.nsight_compute import analyze_ncu
from frx_graph.analyze.trace import analyze_run
from frx_graph.analyzers.kernels.ptx_analysis import analyze_ptx_module
from frx_graph.analyzers.observations.log_observations import observe_generated_code, observe_onednn_log
from frx_graph.analyzers.observations.observation import RunFile
from frx_graph.evidence.measurement import Measurement
from frx_graph.evidence.ptx.parsing import read_ptx
from frx_graph.evidence.run_log import read_inductor_file, read_onednn_log
from frx_graph.reports.kernels import cuda_document, kernel_document, ptx_document
from frx_graph.reports.kernels.cuda_report import render_cuda
from frx_graph.reports.kernels.kernel_report import render_kernels
from frx_graph.reports.kernels.ptx_report import render_ptx
from frx_graph.reports.render.document import to_json
from frx_graph.reports.runs import trace_document
from frx_graph.reports.runs.trace_report import render_trace
from frx_graph.support.plain_text import clean_line

_DATA = Path(__file__).parent.parent / "tests" / "data"
Report = tuple[Mapping[str, Any], Callable[[], str]]


@dataclass(frozen=True)
class Parser:
    """`report` reads a file, and gives its JSON and what makes its text; `pieces` gives parts of a file that are
    read for themselves, `words` are what its format is made of."""

    report: Callable[[Path], Report]
    own: Callable[[], Iterator[bytes]]
    pieces: Callable[[bytes], Iterator[bytes]]
    words: tuple[bytes, ...]
    suffix: str


def _ptx_report(path: Path) -> Report:
    # The assembler is not asked: what it makes of damaged files is its own affair.
    module = read_ptx(path)
    document = ptx_document.build_ptx_document(module, analyze_ptx_module(module, {}), "not asked")
    return to_json(document), lambda: render_ptx(document.result, top=3, width=100, color=False)


def _ptx_pieces(data: bytes) -> Iterator[bytes]:
    """Each function behind the file's header."""
    begins = [found.start() for found in re.finditer(rb"^[ \t]*(?:\.\w+\s+)*\.(?:entry|func)\b", data, re.MULTILINE)]
    for begin, end in zip(begins, (*begins[1:], len(data)), strict=False):
        yield data[: min(begins[0], 2000)] + data[begin:end]


def _ncu_report(path: Path) -> Report:
    document = kernel_document.build_ncu_document(*analyze_ncu(path))
    return to_json(document), lambda: render_kernels(document.result, top=3, width=100, color=False)


def _ncu_exports() -> Iterator[bytes]:
    launches = [Launch(number=number, kernel=f"void kernel<{number}, float>(float *)") for number in range(3)]
    rows = [
        metric(launch, section, name, unit, value)
        for launch in launches
        for section, name, unit, value in (
            (SOL, "Duration", "us", "6.75"),
            (SOL, "Compute (SM) Throughput", "%", "9.15"),
            (SOL, "Memory Throughput", "%", "79.66"),
            (MEMORY, "Memory Throughput", "Gbyte/s", "1,345.14"),
            (MEMORY, "L2 Hit Rate", "%", "100.39"),
            (OCCUPANCY, "Block Limit Registers", "block", "2"),
            (OCCUPANCY, "Achieved Occupancy", "%", "n/a"),
            (RAW, "dram__bytes_read.sum", "Mbyte", "2.33"),
        )
    ]
    yield long_export(*rows).encode()
    yield (b"==PROF== Connected to process 1\nhello, world\n" + long_export(*rows, rules=True, end="\r\n").encode())
    names = [
        "gpu__time_duration.sum",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "launch__registers_per_thread",
    ]
    names += ["sm__throughput.avg.pct_of_peak_sustained_elapsed", "launch__block_size"]
    values = ["12.3", "88.1", "32", "45.6", "256"]
    yield wide_export(names, ["ns", "%", "register/thread", "%", ""], *((one, values) for one in launches)).encode()


def _ncu_pieces(data: bytes) -> Iterator[bytes]:
    """The header with rows behind it."""
    lines = data.splitlines(keepends=True)
    first = next((number for number, line in enumerate(lines) if b'"ID"' in line), 0)
    for begin in range(first + 1, len(lines), 20):
        yield b"".join((*lines[: first + 1], *lines[begin : begin + 20]))


def _cuda_report(path: Path) -> Report:
    document = cuda_document.build_cuda_document(*analyze_cuda(path))
    return to_json(document), lambda: render_cuda(document.result, top=3, width=100, color=False)


def _trace_report(path: Path) -> Report:
    found = analyze_run(path)
    document = trace_document.build_trace_document(found.trace, found.run, found.findings, path.parent)
    return to_json(document), lambda: render_trace(document.result, top=3, width=100, color=False)


def _traces() -> Iterator[bytes]:
    run = RunTrace()
    for number in range(3):
        begin = 1000.0 * number
        run.step(number, begin, begin + 900)
        run.op("aten::conv2d", begin + 10, begin + 90, ((8, 3, 32, 32), (3072, 1024, 32, 1)), ((16, 3, 3, 3), None))
        run.op("aten::copy_", begin + 100, begin + 190, ((8, 16, 32), (512, 1, 16)), ((8, 16, 32), (512, 32, 1)))
        run.frame("net.py(12): forward", begin + 5, begin + 200)
        run.kernel("void cudnn::nchwToNhwcKernel<float>(int)", begin + 20, begin + 300, begin + 400)
        run.kernel("Memcpy HtoD (Pageable -> Device)", begin + 120, begin + 410, begin + 450)
    yield json.dumps({"deviceProperties": [{"id": 0, "totalGlobalMem": 1 << 34}], "traceEvents": run.events}).encode()
    yield json.dumps(run.events[:6], indent=1).encode()


def _trace_pieces(data: bytes) -> Iterator[bytes]:
    """Eight events at a time, from places all over the trace."""
    try:
        trace = json.loads(data)
    except ValueError:
        return
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list):
        return
    for begin in range(0, len(events), max(8, len(events) // 200)):
        yield json.dumps({"traceEvents": events[begin : begin + 8]}).encode()


def _onednn_report(path: Path) -> Report:
    primitives = read_onednn_log(path)
    facts = [fact for primitive in primitives for fact in primitive.list_measurements(str(path))]
    return _run_report(facts, observe_onednn_log(primitives, str(path)))


def _inductor_report(path: Path) -> Report:
    code = read_inductor_file(path)
    facts = [fact for copy in code.copies for fact in copy.list_measurements(str(path))]
    return _run_report(facts, observe_generated_code(code, str(path)))


def _run_report(facts: list[Measurement], file: RunFile) -> Report:
    """Neither has a report of its own: what they show goes into those of findings."""
    said = [f"{one.where} {one.work} {one.copied} {one.detail} {' '.join(one.kernels)}" for one in file.observations]
    return {"measurements": [asdict(fact) for fact in facts], "sightings": said}, lambda: "\n".join(
        map(clean_line, said)
    )


def _logs() -> Iterator[bytes]:
    return (path.read_bytes() for path in sorted((_DATA / "onednn").glob("*.log")))


def _inductor_code() -> Iterator[bytes]:
    begin = b"from torch._inductor.async_compile import AsyncCompile\nasync_compile = AsyncCompile()\n"
    body = b"""    def call(self, args):
        arg0_1, = args
        args.clear()
        assert_size_stride(arg0_1, (8, 16, 32), (512, 32, 1))
        buf0 = empty_strided_cpu((8, 16, 32), (512, 1, 16), torch.float32)
        cpp_fused_clone_0(arg0_1, buf0)
        del arg0_1
        buf1 = reinterpret_tensor(buf0, (8, 512), (512, 1), 0)
        buf2 = empty_strided_cuda((8, 4), (4, 1), torch.bfloat16)
        triton_poi_fused_clone_1.run(buf1, buf2, 32, stream=stream0)
        return (buf2, )
"""
    yield begin + body
    yield b"".join(
        b"V0601 12:00:00.000000 7 graph.py:1] [0/0] [__output_code] " + line
        for line in (begin + body).splitlines(keepends=True)
    )


def _lines_of(data: bytes) -> Iterator[bytes]:
    """Twenty lines at a time."""
    lines = data.splitlines(keepends=True)
    return (b"".join(lines[begin : begin + 20]) for begin in range(0, len(lines), 20))


PARSERS: Mapping[str, Parser] = {
    "ptx": Parser(
        _ptx_report,
        lambda: (path.read_bytes() for path in sorted((_DATA / "ptx").glob("*.ptx"))),
        _ptx_pieces,
        tuple(
            b"""{ } ; : :: ( ) [ ] < > , @ ! " /* */ // # .entry .func .visible .extern .weak .version .target
            .reg .local .shared .param .align .b8 .b64 .pred .loc .file .section .pragma .branchtargets
            .callprototype .alias .maxntid .attribute bra brx.idx call ret exit mma.sync wmma wgmma tcgen05
            cp.async.bulk ld. st. atom %r<9> $L__BB0_1: @%p1 0f3F800000 0x inlined_at""".split()
        ),
        "ptx",
    ),
    "ncu": Parser(
        _ncu_report,
        _ncu_exports,
        _ncu_pieces,
        (
            *b'"ID" "Kernel Name" "Metric Name" "Metric Unit" "Metric Value" "," " , ; "" \n ==PROF== nan n/a'.split(
                b" "
            ),
            *b"% us ns msecond byte Kbyte Gbyte/s furlong register/thread cycle/nsecond Ghz 1,5 1.234,5".split(),
            b'"Memory Throughput"',
            b"(1, 1, 1)",
        ),
        "csv",
    ),
    "cuda": Parser(
        _cuda_report,
        lambda: (path.read_bytes() for path in sorted((_DATA / "cuda").glob("*.cu"))),
        lambda _: iter(()),
        tuple(
            b"""{ } ; ( ) [ ] < > <<< >>> , . -> :: & * + - % / << >> ? : = == != // /* */ # #define #if
            #endif __global__ __shared__ __device__ __launch_bounds__(256,2) __restrict__ extern template<int
            threadIdx.x blockIdx.x blockDim.x __syncthreads() __syncwarp() atomicAdd for while if else return
            float4 double int unsigned L" 0x7fffffff 1e38f""".split()
        ),
        "cu",
    ),
    "trace": Parser(
        _trace_report,
        _traces,
        _trace_pieces,
        tuple(
            rb"""{ } [ ] , : " \ \u0000 \ud800 null true false NaN Infinity -0 1e999 1e-999 0.5 "ts": "dur":
            "args": "cat": "ph": "X" "i" "[memory]" "kernel" "cpu_op" "cuda_runtime" "gpu_memcpy"
            "correlation": "bytes": "ProfilerStep#1" "traceEvents": "deviceProperties":""".split()
        ),
        "json",
    ),
    "onednn": Parser(
        _onednn_report,
        _logs,
        _lines_of,
        tuple(
            b"""onednn_verbose, dnnl_verbose, v1, primitive, exec, create, info, template: cpu, reorder,
            convolution, matmul, jit:uni, undef, forward_inference, backward_data, backward_weights,
            src:f32::blocked:abcd::f0 dst: , : x 1e400 wei:bf16:a:blocked:Acdb16a:: src_f32
            mb8_ic3oc64_ih32oh32kh3sh1dh0ph1_iw32ow32kw3sw1dw0pw1 g4 64x3x7x7 0.0419922""".split()
        ),
        "log",
    ),
    "inductor": Parser(
        _inductor_report,
        _inductor_code,
        _lines_of,
        tuple(
            b"""( ) , = . buf0 buf1 buf2 arg0_1 empty_strided_cpu empty_strided_cuda empty_strided_cpu_pinned
            del call s0 reinterpret_tensor torch.float32 torch.bfloat16 torch.load torch.nothing
            cpp_fused_clone_0 [__output_code] triton_poi_fused_clone_1.run ((8, 16), (16, 1), ((), (),""".split()
        ),
        "py",
    ),
    "events": Parser(
        events_report,
        event_streams,
        _lines_of,
        tuple(
            rb"""{ } [ ] , : " \ \u0000 \ud800 null true false NaN Infinity -0 1e999 1e-999 0.5 -1 9223372036854775807
            "event_type": "timestamp_ns": "pid": "step_id": "duration_ns": "payload": "step_end" "step_start"
            "phase_span" "dataloader_span" "shape_snapshot" "shapes": "strides": "batch_layout": "loss": "status":
            "NaN" "ok" "error" "next" "h2d" "forward" "parameters" """.split()
        ),
        "jsonl",
    ),
    "gpu_metrics": Parser(
        samples_report,
        samples_of_devices,
        _lines_of,
        tuple(
            b"""timestamp index utilization.gpu utilization.memory memory.used memory.total [%] [MiB] [N/A] %
            MiB GiB , " "" -1 1e999 nan inf 2023/11/14 22:13:20.000 2023-11-14T22:13:20+00:00 +25:00
            9999-12-31""".split()
        ),
        "csv",
    ),
}

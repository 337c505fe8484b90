"""What would make a diagnosis surer, and commands that survive a shell."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.analyzers.layers import Layers
from frx_graph.analyzers.reconcile import DIAGNOSES
from frx_graph.analyzers.reconcile.missing_evidence import MissingEvidence, build_ncu_command, escape_kernel_name
from frx_graph.analyzers.reconcile.reconciliation import reconcile
from frx_graph.evidence.ncu.metrics import resolve_metric
from frx_graph.evidence.ptx.ptxas import Assembled

MEMORY, REGISTERS, BANKS, BARRIERS, OCCUPANCY, TENSOR = DIAGNOSES
SOL = {"compute_throughput": 20.0, "memory_throughput": 50.0}
LOAD = "ld.global.f32 %f1, [%rd1]; "


def missing(program, rule) -> list[MissingEvidence]:
    return [one for one in reconcile(Layers(**program.layers)).missing if one.rule is rule]


def test_source_alone_wants_the_counter(program) -> None:
    (one,) = missing(program.zoo("uncoalesced_access_bad"), MEMORY)
    assert (one.layer.value, one.confidence.label, one.confirmed.label) == ("ncu", "medium", "confirmed")
    assert one.command == (
        "ncu --metrics sm__throughput.avg.pct_of_peak_sustained_elapsed,"
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed,"
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio,"
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio "
        "--kernel-name transpose --csv --page raw ./your_app > missing_memory_transpose.csv"
    )
    assert one.fallback == "ncu --set full --csv --page raw ./your_app > full.csv"


def test_counter_alone_asks_for_the_source(program) -> None:
    values = {**SOL, "sectors_per_load": 20.0, "sectors_per_store": 4.0}
    (one,) = missing(program.ncu(k=values), MEMORY)
    assert (one.layer.value, one.confirmed.label, one.command) == ("source", "confirmed", None)


def test_register_evidence_may_come_from_the_assembler(program) -> None:
    wanted = dict.fromkeys(REGISTERS.decides.metrics, 1.0) | SOL | {"local_load_sectors": 900.0}
    found = missing(program.counters({"k(float*)": wanted}), REGISTERS)
    assert [one.layer.value for one in found] == ["source", "ptx"]
    assert found[1].command == "nvcc -ptx -arch=sm_86 -o ./kernel.ptx kernel.cu"
    program.source("__global__ void k(float* a) { a[threadIdx.x] = 0; }", "my kernels/it's.cu")
    (one,) = missing(program, REGISTERS)
    assert shlex.split(one.command or "")[-3:] == ["-o", "./it's.ptx", "my kernels/it's.cu"][-3:]


@pytest.mark.parametrize("path", ["-x.cu", "$(reboot).cu", 'a"b.cu', "a`b`.cu"])
def test_paths_that_nvcc_would_take_for_something_else(program, path: str) -> None:
    wanted = dict.fromkeys(REGISTERS.decides.metrics, 1.0) | SOL | {"local_load_sectors": 900.0}
    program.counters({"k(float*)": wanted}).source("__global__ void k(float* a) { a[threadIdx.x] = 0; }", path)
    (one,) = missing(program, REGISTERS)
    last = shlex.split(one.command or "")[-1]
    assert last == ("./-x.cu" if path.startswith("-") else "kernel.cu")


def test_a_trace_is_recorded_in_python(program) -> None:
    values = dict.fromkeys(TENSOR.decides.metrics, 1.0) | SOL | {"achieved_occupancy": 40.0}
    found = missing(program.ncu(volta_sgemm_128x64_nn=values), TENSOR)
    (trace,) = [one for one in found if one.layer.value == "profiler"]
    compile(trace.command or "", "record", "exec")


def test_settled_diagnosis_asks_for_no_evidence(program) -> None:
    program.zoo("uncoalesced_access_bad")
    program.ncu(transpose={**SOL, "sectors_per_load": 4.0, "sectors_per_store": 20.0})
    assert missing(program, MEMORY) == []
    program.ncu(transpose={**SOL, "sectors_per_load": 4.0, "sectors_per_store": 4.0})
    assert missing(program, MEMORY) == []


def test_layers_that_disagree_want_a_counter(program) -> None:
    program.zoo("sync_inside_tight_loop_bad").ptx(_Z5totalPKfPf=LOAD)
    (one,) = missing(program, BARRIERS)
    assert (one.confidence, one.confirmed.label, one.layer.value) == (None, "high", "ncu")


def test_a_spill_wants_to_be_seen_at_run_time(program) -> None:
    name = "_Z1kPf"
    program.ptx({name: Assembled(32, 1144, 1396, 2244, 0)}, **{name: LOAD})
    (one,) = missing(program, REGISTERS)
    assert (one.confidence.label, one.confirmed.label) == ("high", "confirmed")
    assert "--kernel-name k " in (one.command or "")
    assert "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum" in one.metrics


@pytest.mark.parametrize("rule", DIAGNOSES, ids=lambda rule: rule.name)
def test_requested_counters_can_be_read(rule) -> None:
    for metric in rule.decides.counters:
        assert any(_read(metric, unit) for unit in ("", "%", "s", "byte"))


def _read(metric: str, unit: str) -> bool:
    try:
        return resolve_metric(metric, unit) is not None
    except ValueError:
        return False


@given(st.text())
def test_any_name_survives_a_shell_and_is_a_filter(name: str) -> None:
    words = shlex.split(build_ncu_command(MEMORY, name))
    at = words.index("--kernel-name")
    assert words[at + 1] == escape_kernel_name(name)
    *command, file = words[at + 2 :]
    assert command == ["--csv", "--page", "raw", "./your_app", ">"]
    assert re.fullmatch(r"missing_memory_\w{0,60}\.csv", file, re.ASCII)
    if words[at + 1].startswith("regex:"):
        assert re.match(words[at + 1].removeprefix("regex:"), name, re.DOTALL)
    assert words[at + 1].isprintable()


@pytest.mark.parametrize(
    "name", ["k; touch owned", "$(touch owned)", "`touch owned`", "a'b\"; touch owned #", "k > owned"]
)
def test_no_name_is_run(name: str, tmp_path) -> None:
    command = build_ncu_command(MEMORY, name).replace("ncu ", "printf '%s\\n' ", 1)
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(r"missing_memory_\w+\.csv", path.name, re.ASCII)


def test_each_kernel_is_measured_into_a_file_of_its_own() -> None:
    commands = {build_ncu_command(MEMORY, name).rpartition("> ")[2] for name in ("copy", "copy2", "ns::copy")}
    assert commands == {"missing_memory_copy.csv", "missing_memory_copy2.csv", "missing_memory_ns_copy.csv"}

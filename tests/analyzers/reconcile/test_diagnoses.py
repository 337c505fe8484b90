"""Each diagnosis: what each layer says of it alone, layers that agree, and layers that contradict."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from frx_graph.analyzers.reconcile import DIAGNOSES
from frx_graph.analyzers.reconcile.reconciliation import Why
from frx_graph.evidence.ncu.launch import NcuRule
from frx_graph.evidence.ptx.ptxas import Assembled

MEMORY, REGISTERS, BANKS, BARRIERS, OCCUPANCY, TENSOR = (rule.name for rule in DIAGNOSES)
SOL = {"compute_throughput": 20.0, "memory_throughput": 50.0}
STALLS = {
    "stall_share.barrier": 60.0,
    "stall_share.long_scoreboard": 20.0,
    "stall_share.selected": 10.0,
}
NO_SPILLS, SPILLS = Assembled(30, 0, 0, 0, 0), Assembled(32, 1144, 1396, 2244, 0)
MUCH_MEMORY = "ld.global.f32 %f1, [%rd1]; st.global.f32 [%rd1], %f1; " * 12
ONE_LOAD = "ld.global.f32 %f1, [%rd1]; st.global.f32 [%rd1], %f1; "
SHARED = "ld.shared.f32 %f1, [%rd1]; bar.sync 0; "
MMA = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1}, {%r1}, {%r2}, {%f1}; "
FRAME = Assembled(30, 512, 0, 0, 0)
VECTORS = "__global__ void k(const float* a, float* b) { b[threadIdx.x] = a[%s]; }"
STRIDED, ADJACENT = VECTORS % "2 * threadIdx.x", VECTORS % "threadIdx.x"


def of(name: str, found: Mapping[tuple[str, str], str]) -> str | None:
    """How sure this diagnosis is, of the only kernel that has it."""
    return next((confidence for (diagnosis, _), confidence in found.items() if diagnosis == name), None)


class TestMemory:
    def test_each_layer_alone(self, program) -> None:
        program.zoo("uncoalesced_access_bad").ptx(_Z9transposePKfPfii=MUCH_MEMORY)
        program.ncu(transpose={**SOL, "sectors_per_load": 4.0, "sectors_per_store": 32.0})
        assert of(MEMORY, program.told("source")) == "medium"
        assert of(MEMORY, program.told("ptx")) == "low"
        assert of(MEMORY, program.told("ncu")) == "high"
        assert of(MEMORY, program.told("source", "ptx")) == "high"
        assert of(MEMORY, program.told("source", "ncu")) == "confirmed"
        assert of(MEMORY, program.told("ptx", "ncu")) == "high"
        assert of(MEMORY, program.told()) == "confirmed"

    def test_whole_sectors_refute_it(self, program) -> None:
        program.zoo("uncoalesced_access_bad")
        program.ncu(transpose={**SOL, "sectors_per_load": 4.0, "sectors_per_store": 4.0})
        found = program.reconcile()
        assert found.diagnoses == ()
        (refuted,) = [one for one in found.unreconciled if one.why is Why.REFUTED]
        assert (refuted.label, refuted.line) == ("uncoalesced_access", 6)
        assert refuted.diagnosis is not None
        assert refuted.diagnosis.name == MEMORY
        assert "4.0 sectors for each global store of a warp" in refuted.reason

    def test_load_counters_do_not_apply_to_a_store(self, program) -> None:
        program.zoo("uncoalesced_access_bad").ncu(transpose={**SOL, "sectors_per_load": 4.0})
        assert of(MEMORY, program.told()) == "medium"
        program.ncu(transpose={**SOL, "sectors_per_load": 20.0, "sectors_per_store": 4.0})
        found = program.reconcile()
        (diagnosis,) = found.diagnoses
        assert (diagnosis.confidence.label, [one.layer for one in diagnosis.agreeing]) == ("high", ["ncu"])
        assert [one.label for one in found.unreconciled if one.why is Why.REFUTED] == ["uncoalesced_access"]

    def test_eight_sectors_are_judged_by_the_source(self, program) -> None:
        program.ncu(k={**SOL, "sectors_per_load": 8.0, "sectors_per_store": 4.0})
        assert program.told() == {}
        assert of(MEMORY, program.source(STRIDED).told()) == "confirmed"
        assert of(MEMORY, program.source(ADJACENT).told()) == "medium"
        assert program.source(ADJACENT.replace("float", "double")).told() == {}

    def test_words_of_eight_bytes_need_eight_sectors(self, program) -> None:
        counted = {**SOL, "sectors_per_load": 8.0, "sectors_per_store": 8.0}
        doubles = STRIDED.replace("float", "double")
        assert program.source(doubles).ncu(k=counted).told() == {}
        assert [one.why for one in program.reconcile().unreconciled] == [Why.REFUTED]
        assert of(MEMORY, program.ncu(k={**counted, "sectors_per_load": 16.0}).told()) == "confirmed"
        program.layers.clear()
        named = "void k<double>(const T1 *, T1 *)"
        assert program.counters({named: {**counted, "sectors_per_load": 8.9}}).told() == {(MEMORY, "k"): "low"}
        assert program.counters({named: {**counted, "sectors_per_load": 12.0}}).told() == {(MEMORY, "k"): "high"}

    @pytest.mark.parametrize(("sectors", "told"), [(4.0, None), (4.5, "low"), (5.0, "low"), (5.2, "high")])
    def test_one_sector_more_is_a_row_that_begins_elsewhere(self, program, sectors: float, told: str | None) -> None:
        assert of(MEMORY, program.ncu(k={**SOL, "sectors_per_load": sectors}).told()) == told

    def test_an_average_with_loads_of_one_sector_hides_others(self, program) -> None:
        program.source(
            "__global__ void k(const float* a, float* b, int n) { b[threadIdx.x] = a[threadIdx.x * n] * a[0]; }"
        )
        program.ncu(k={**SOL, "sectors_per_load": 3.0, "sectors_per_store": 4.0})
        found = program.reconcile()
        (diagnosis,) = found.diagnoses
        assert diagnosis.confidence.label == "low"
        assert "an average" in diagnosis.contradicting[0].evidence

    def test_compute_bound_kernel_is_only_weak_evidence(self, program) -> None:
        program.ncu(k={"compute_throughput": 90.0, "memory_throughput": 30.0, "sectors_per_load": 20.0})
        assert of(MEMORY, program.told()) == "low"

    def test_adjacent_source_takes_from_a_counter(self, program) -> None:
        program.source(ADJACENT).ncu(k={**SOL, "sectors_per_load": 20.0})
        found = program.reconcile()
        assert found.diagnoses[0].confidence.label == "medium"
        assert found.diagnoses[0].contradicting[0].label == "coalesced"

    def test_waiting_for_memory_is_a_symptom(self, program) -> None:
        stalls = {**STALLS, "stall_share.long_scoreboard": 70.0}
        program.ncu(k={**SOL, **stalls})
        found = program.reconcile()
        assert found.diagnoses == ()
        (symptom,) = [one for one in found.unreconciled if one.label == "warp_stall_memory"]
        assert symptom.why is Why.SYMPTOM
        assert of(MEMORY, program.source(STRIDED).told()) == "confirmed"

    def test_a_kernel_without_global_memory_has_no_access_of_it(self, program) -> None:
        program.source(STRIDED).ptx(_Z1kPKfPf="add.f32 %f1, %f2, %f3; ")
        found = program.reconcile()
        assert found.diagnoses == ()
        assert [one.why for one in found.unreconciled] == [Why.DISPUTED]


LIMITED = {
    **SOL,
    "achieved_occupancy": 20.0,
    "theoretical_occupancy": 25.0,
    "block_limit_registers": 2.0,
    "block_limit_shared_memory": 8.0,
}
LOCAL = {"local_load_sectors": 900.0, "local_store_sectors": 100.0, "load_sectors": 500.0, "store_sectors": 500.0}


class TestRegisters:
    NAME = "_Z6windowPKfPfi"

    def test_each_layer_alone(self, program) -> None:
        program.zoo("high_register_pressure_bad").ptx({self.NAME: SPILLS}, **{self.NAME: ONE_LOAD})
        program.ncu(window={**SOL, **LOCAL})
        assert of(REGISTERS, program.told("source")) == "medium"
        assert of(REGISTERS, program.told("ptx")) == "high"
        assert of(REGISTERS, program.told("ncu")) == "high"
        assert of(REGISTERS, program.told("source", "ptx")) == "high"
        assert of(REGISTERS, program.told("ptx", "ncu")) == "confirmed"
        assert of(REGISTERS, program.told("source", "ncu")) == "confirmed"

    def test_many_registers_and_few_blocks(self, program) -> None:
        program.ptx({self.NAME: Assembled(128, 0, 0, 0, 0)}, **{self.NAME: ONE_LOAD})
        assert of(REGISTERS, program.told()) == "medium"
        assert of(REGISTERS, program.ncu(window=LIMITED).told()) == "confirmed"
        full = {**SOL, "achieved_occupancy": 90.0, "theoretical_occupancy": 100.0}
        assert of(REGISTERS, program.ncu(window=full).told()) is None

    def test_virtual_registers_are_a_hint(self, program) -> None:
        many = ".reg .b32 %r<500>; " + ONE_LOAD
        assert of(REGISTERS, program.ptx(**{self.NAME: many}).told()) == "low"

    def test_stack_frame_alone_is_not_a_spill(self, program) -> None:
        program.ptx({self.NAME: FRAME}, **{self.NAME: ONE_LOAD})
        assert of(REGISTERS, program.told()) is None
        assert of(REGISTERS, program.zoo("high_register_pressure_bad").told()) == "high"

    def test_no_local_memory_refutes_what_the_source_looks_like(self, program) -> None:
        program.zoo("high_register_pressure_bad").ptx({self.NAME: NO_SPILLS}, **{self.NAME: ONE_LOAD})
        found = program.reconcile()
        assert found.diagnoses == ()
        assert [one.why for one in found.unreconciled if one.diagnosis is not None] == [Why.REFUTED]

    def test_spills_that_move_no_sector_cost_nothing(self, program) -> None:
        program.ptx({self.NAME: SPILLS}, **{self.NAME: ONE_LOAD})
        program.ncu(window={**SOL, "local_load_sectors": 0.0, "local_store_sectors": 0.0})
        assert of(REGISTERS, program.told()) is None

    def test_little_local_memory_is_a_hint(self, program) -> None:
        program.ncu(window={**SOL, **LOCAL, "load_sectors": 50_000.0})
        assert of(REGISTERS, program.told()) == "low"


class TestBankConflicts:
    def test_each_layer_alone(self, program) -> None:
        program.zoo("possible_shared_memory_bank_conflict_bad")
        program.ncu(columns={"shared_bank_conflicts": 3100.0, "shared_wavefronts": 3200.0})
        assert of(BANKS, program.told("source")) == "medium"
        assert of(BANKS, program.told("ncu")) == "high"
        assert of(BANKS, program.told()) == "confirmed"

    @pytest.mark.parametrize(("conflicts", "wavefronts"), [(0.0, None), (0.0, 3200.0), (300.0, 3200.0)])
    def test_few_conflicts_refute_it(self, program, conflicts: float, wavefronts: float | None) -> None:
        counted = {"shared_bank_conflicts": conflicts}
        if wavefronts is not None:
            counted["shared_wavefronts"] = wavefronts
        program.zoo("possible_shared_memory_bank_conflict_bad").ncu(columns=counted)
        found = program.reconcile()
        assert found.diagnoses == ()
        assert found.unreconciled[0].why is Why.REFUTED

    def test_a_count_without_wavefronts_is_a_hint(self, program) -> None:
        program.ncu(columns={"shared_bank_conflicts": 3100.0})
        assert of(BANKS, program.told()) == "low"
        assert of(BANKS, program.zoo("possible_shared_memory_bank_conflict_bad").told()) == "high"

    def test_conflicts_of_loads_alone_refute_nothing(self, program) -> None:
        program.zoo("possible_shared_memory_bank_conflict_bad")
        program.ncu(columns={"shared_load_bank_conflicts": 0.0, "shared_wavefronts": 3200.0})
        assert of(BANKS, program.told()) == "medium"
        program.ncu(
            columns={"shared_load_bank_conflicts": 0.0, "shared_store_bank_conflicts": 3.0, "shared_wavefronts": 3e3}
        )
        assert of(BANKS, program.told()) == "medium"
        program.ncu(columns={"shared_store_bank_conflicts": 3100.0, "shared_wavefronts": 3200.0})
        assert of(BANKS, program.told("ncu")) == "high"
        assert of(BANKS, program.told()) == "confirmed"

    def test_ncus_own_rule_is_a_measurement(self, program) -> None:
        rule = NcuRule("SharedMemoryConflicts", "OPT", "a 32.0 - way bank conflict", None)
        assert of(BANKS, program.ncu(columns=SOL, rules=(rule,)).told()) == "high"
        known = NcuRule("SharedMemoryConflicts", "INF", "nothing", None)
        assert of(BANKS, program.ncu(columns=SOL, rules=(known,)).told()) is None

    def test_a_kernel_without_shared_memory_has_none(self, program) -> None:
        program.zoo("possible_shared_memory_bank_conflict_bad").ptx(_Z7columnsPKfPf=ONE_LOAD)
        assert of(BANKS, program.told()) is None
        program.ptx(_Z7columnsPKfPf=SHARED)
        assert of(BANKS, program.told()) == "medium"

    def test_source_without_a_conflict_takes_from_a_counter(self, program) -> None:
        program.source("__global__ void k(float* a) { __shared__ float t[64]; t[threadIdx.x] = a[threadIdx.x]; }")
        program.ncu(k={"shared_bank_conflicts": 3100.0, "shared_wavefronts": 3200.0})
        assert of(BANKS, program.told()) == "medium"


class TestBarriers:
    def test_each_layer_alone(self, program) -> None:
        program.zoo("sync_inside_tight_loop_bad").ncu(total={**SOL, **STALLS})
        assert of(BARRIERS, program.told("source")) == "medium"
        assert of(BARRIERS, program.told("ncu")) == "high"
        assert of(BARRIERS, program.told()) == "confirmed"

    def test_warps_that_hardly_wait_refute_it(self, program) -> None:
        waits = {**STALLS, "stall_share.barrier": 2.0}
        program.zoo("sync_inside_tight_loop_bad").ncu(total={**SOL, **waits})
        assert of(BARRIERS, program.told()) is None
        assert of(BARRIERS, program.ncu(total={**SOL, **waits, "stall_share.barrier": 12.0}).told()) == "medium"

    def test_no_barrier_in_the_compiled_kernel(self, program) -> None:
        program.zoo("sync_inside_tight_loop_bad").ptx(_Z5totalPKfPf=ONE_LOAD)
        assert of(BARRIERS, program.told()) is None
        assert of(BARRIERS, program.ptx(_Z5totalPKfPf=SHARED).told()) == "medium"

    def test_no_barrier_in_the_source(self, program) -> None:
        program.source(ADJACENT).ncu(k={**SOL, **STALLS})
        assert of(BARRIERS, program.told()) == "medium"


LOW = {**LIMITED, "block_limit_registers": 8.0, "block_limit_shared_memory": 2.0}


class TestOccupancy:
    def test_each_layer_alone(self, program) -> None:
        program.zoo("low_theoretical_occupancy_bad").ncu(stage=LOW)
        program.run("stage(float const*, float*)", grid=(1, 1, 1))
        assert of(OCCUPANCY, program.told("source")) == "medium"
        assert of(OCCUPANCY, program.told("ncu")) == "high"
        assert of(OCCUPANCY, program.told("trace")) == "medium"
        assert of(OCCUPANCY, program.told("source", "trace")) == "high"
        assert of(OCCUPANCY, program.told("source", "ncu")) == "confirmed"
        assert of(OCCUPANCY, program.told("ncu", "trace")) == "confirmed"

    def test_occupancy_that_is_there_or_does_not_matter_refutes_it(self, program) -> None:
        program.zoo("low_theoretical_occupancy_bad").ncu(stage={**SOL, "achieved_occupancy": 60.0})
        assert of(OCCUPANCY, program.told()) is None
        busy = {**LOW, "compute_throughput": 95.0}
        assert of(OCCUPANCY, program.ncu(stage=busy).told()) is None

    @pytest.mark.parametrize(
        ("grid", "block", "told"),
        [((2, 1, 1), (128, 1, 1), None), ((64, 1, 1), (4, 4, 1), "medium"), ((64, 1, 1), (5, 4, 1), None)],
    )
    def test_launches_of_a_run(self, program, grid, block, told) -> None:
        assert of(OCCUPANCY, program.run("stage", grid=grid, block=block).told()) == told

    def test_registers_are_another_diagnosis(self, program) -> None:
        program.ncu(window=LIMITED)
        assert program.told() == {(REGISTERS, "window"): "high"}


class TestTensorCores:
    def test_each_layer_alone(self, program) -> None:
        program.zoo("fp32_only_matmul_bad").ptx(_Z7productILi16EEvPKfS1_Pfi=ONE_LOAD)
        program.counters({"void product<16>(float const*, float const*, float*, int)": {**SOL, "tensor_pipe": 0.0}})
        assert of(TENSOR, program.told("source")) == "medium"
        assert of(TENSOR, program.told("ptx")) is None
        assert of(TENSOR, program.told("ncu")) is None
        assert of(TENSOR, program.told("source", "ptx")) == "high"
        assert of(TENSOR, program.told("source", "ncu")) == "confirmed"

    def test_library_kernel_is_recognized_by_its_name(self, program) -> None:
        program.run("volta_sgemm_128x64_nn")
        assert of(TENSOR, program.told()) == "medium"
        slow = {**SOL, "tensor_pipe": 2.0, "achieved_occupancy": 40.0}
        program.ncu(volta_sgemm_128x64_nn=slow)
        assert of(TENSOR, program.told("ncu")) == "high"
        assert of(TENSOR, program.told()) == "confirmed"
        assert of(TENSOR, program.ncu(volta_sgemm_128x64_nn={**SOL, "tensor_pipe": 50.0}).told()) is None

    def test_tensor_instructions_dispute_the_source(self, program) -> None:
        program.zoo("fp32_only_matmul_bad")
        program.ptx(_Z7productILi16EEvPKfS1_Pfi=MMA)
        found = program.reconcile()
        assert of(TENSOR, program.told()) is None
        assert [one.why for one in found.unreconciled if one.diagnosis is not None] == [Why.DISPUTED]

    def test_any_kernel_may_leave_them_alone(self, program) -> None:
        program.source(ADJACENT).ptx(_Z1kPKfPf=ONE_LOAD).ncu(k={**SOL, "tensor_pipe": 0.0}).run(
            "k(float const*, float*)"
        )
        found = program.reconcile()
        assert found.diagnoses == ()
        assert [one for one in found.missing if one.rule.name == TENSOR] == []


def test_there_are_six() -> None:
    assert len({rule.name for rule in DIAGNOSES}) == len(DIAGNOSES) == 6

"""What the gates say that were passed."""

from __future__ import annotations

from dataclasses import replace

from frx_graph.capture.capture_facts import Break, CaptureFacts, CompiledFrame, RecompiledFrame
from frx_graph.measure.memory_use import MemoryRecord, MemoryUse, StepMemory
from frx_graph.measure.operators.kernel_identities import Kernel, KernelCount, KernelIdentities, Source
from frx_graph.records import Candidate
from frx_graph.trials import gates
from frx_graph.trials.arm_messages import Examined, Judged
from frx_graph.trials.policy import TrialPolicy

FACTS = CaptureFacts(
    steps=3,
    graphs=2,
    breaks=(Break("model.py:3", "print"),),
    frames=(
        CompiledFrame("forward", "model.py:1", ("a", "b"), (2,)),
        CompiledFrame("rest", "model.py:4", ("c",), (1,)),
    ),
    recompiles=(RecompiledFrame("forward", 1, "size"),),
    cudagraph_skips=0,
    cudagraph_skip_reasons=(),
    untold=(),
)


def memory(host: int, device: int | None = None) -> MemoryRecord:
    on_device = None if device is None else MemoryUse(device, (StepMemory(0, 0),) * 3)
    return MemoryRecord(MemoryUse(host, (StepMemory(5, 0),) * 3), on_device, (1,) * 3)


def identities(*counts: tuple[Source, str, int], untold: tuple[Source, ...] = ()) -> KernelIdentities:
    return KernelIdentities(tuple(KernelCount(Kernel(source, name), count) for source, name, count in counts), untold)


def test_shared_facts_are_stated_once() -> None:
    assert (
        gates.describe_both(gates.count_graphs, FACTS, FACTS) == "graphs 2, graph breaks 1, guards 3, as the baseline"
    )
    assert (
        gates.describe_both(gates.count_recompiles, FACTS, FACTS)
        == "recompiles 1, CUDA-graph skips 0 in 3 steps, as the baseline"
    )
    assert (
        gates.describe_both(gates.format_memory, memory(10), memory(10)) == "peak on the host 15 bytes, as the baseline"
    )


def test_differing_facts_are_stated_for_both() -> None:
    fewer = replace(FACTS, breaks=(), recompiles=())
    assert gates.describe_both(gates.count_graphs, FACTS, fewer) == (
        "graphs 2, graph breaks 0, guards 3; the baseline: graphs 2, graph breaks 1, guards 3"
    )
    assert gates.describe_both(gates.count_recompiles, FACTS, fewer).startswith("recompiles 0, ")
    assert gates.describe_both(gates.format_memory, memory(10, 4), memory(8, 2)) == (
        "peak on the host 13 bytes, on the device 2 bytes; "
        "the baseline: peak on the host 15 bytes, on the device 4 bytes"
    )


def test_facts_missing_from_torch_are_not_numbers() -> None:
    untold = replace(FACTS, untold=("graph breaks", "compilations", "guards"))
    assert gates.describe_both(gates.count_graphs, FACTS, untold).startswith(
        "graphs not told, graph breaks not told, guards not told; "
    )
    assert gates.describe_both(gates.count_recompiles, FACTS, untold).startswith("recompiles not told, ")


def test_which_kernels_changed_and_how() -> None:
    before = identities((Source.ATEN, "aten::conv", 1), (Source.ONEDNN, "jit", 2), (Source.GENERATED, "cpp_relu", 1))
    after = identities((Source.ATEN, "aten::conv", 2), (Source.ONEDNN, "brgconv", 2), (Source.GENERATED, "cpp_relu", 1))
    assert gates.describe_kernels(before, after) == (
        "3 changed, of 3 that the baseline has; brgconv (onednn) from 0 to 2; jit (onednn) from 2 to 0; "
        "aten::conv (aten) from 1 to 2"
    )
    assert gates.describe_kernels(before, before) == "0 changed, of 3 that the baseline has"


def test_unknown_kernel_source_is_not_a_change() -> None:
    before = identities((Source.ATEN, "aten::conv", 1), (Source.ONEDNN, "jit", 2))
    after = identities((Source.ATEN, "aten::conv", 1), untold=(Source.ONEDNN,))
    assert gates.describe_kernels(before, after) == "0 changed, of 1 that the baseline has; onednn not told"


def test_all_changed_kernels_are_in_the_detail() -> None:
    found = gates.describe_kernels(identities(), identities(*((Source.GENERATED, f"cpp_{n:02}", 1) for n in range(20))))
    assert found.startswith("20 changed, of 0 that the baseline has; cpp_00 (generated) from 0 to 1; ")
    assert found.endswith("; cpp_19 (generated) from 0 to 1")


def onednn(*counts: tuple[str, str, int]) -> tuple[KernelCount, ...]:
    return tuple(KernelCount(Kernel(Source.ONEDNN, name, problem), count) for name, problem, count in counts)


def test_kernels_are_summarized_by_kind() -> None:
    loops = tuple(KernelCount(Kernel(Source.GENERATED, f"cpp_{n}"), 1) for n in range(3))
    calls = (KernelCount(Kernel(Source.ATEN, "aten::conv"), 9),)
    before = onednn(("jit", "reorder f32", 6), ("gemm", "convolution forward", 2), ("ref", "batch_normalization x", 1))
    after = onednn(("jit", "reorder f32", 1), ("brg", "convolution forward", 2), ("ref", "batch_normalization x", 2))
    old, new = KernelIdentities(before), KernelIdentities((*after, *loops, *calls))
    assert gates.summarize_kernels(old, new) == "8 changed: 5 fewer reorders, 3 more generated loops"
    assert gates.summarize_kernels(KernelIdentities(before[1:2]), KernelIdentities(after[1:2])) == (
        "2 changed: 2 other convolutions"
    )
    assert gates.summarize_kernels(KernelIdentities(before[2:]), KernelIdentities(after[2:])) == (
        "1 changed: 1 more batch normalization"
    )


def test_calls_are_summarized_only_without_changed_kernels() -> None:
    old, new = identities((Source.ATEN, "aten::conv", 1)), identities((Source.ATEN, "aten::conv", 3))
    assert gates.summarize_kernels(old, new) == "1 changed: 2 more ATen calls"
    assert gates.summarize_kernels(old, old) == "0 changed"
    assert gates.summarize_kernels(old, identities(untold=(Source.ONEDNN,))) == (
        "1 changed: 1 fewer ATen call, onednn not told"
    )


def test_summaries_are_short() -> None:
    fewer = replace(FACTS, breaks=(), recompiles=())
    assert gates.summarize_both(gates.tally_graphs, FACTS, FACTS) == "graphs 2, breaks 1, guards 3, as the baseline"
    assert gates.summarize_both(gates.tally_graphs, FACTS, fewer) == "graphs 2, breaks 0, guards 3 (baseline 2, 1, 3)"
    assert gates.summarize_both(gates.tally_recompiles, FACTS, fewer) == (
        "recompiles 0, CUDA-graph skips 0 (baseline 1, 0)"
    )
    big = memory(3 * 2**20 - 5, 2**20)
    assert gates.summarize_both(gates.tally_memory, memory(2**20 - 5, 2**19), big) == (
        "host 3.0, device 1.0 (baseline 1.0, 0.5)"
    )
    untold = replace(FACTS, untold=("graph breaks", "compilations", "guards"))
    assert gates.summarize_both(gates.tally_graphs, untold, untold) == (
        "graphs unknown, breaks unknown, guards unknown, as the baseline"
    )
    assert gates.summarize_numerics(Judged((), (), 7, exact=True, share=0.5)) == (
        "7 results beside float64: 50 % of the limit"
    )
    assert gates.summarize_numerics(Judged((), (), 7, exact=False)) == "7 results beside the baseline"


def test_numerics_description_names_the_reference() -> None:
    assert gates.describe_numerics(Judged((), (), 7, exact=True, share=0.5)) == (
        "7 results against float64, and not eager, which fails or does not repeat; "
        "the largest error is 50 % of what is allowed"
    )
    assert gates.describe_numerics(Judged((), (), 7, exact=True, eager=True)) == "7 results against eager and float64"
    assert gates.describe_numerics(Judged((), (), 7, exact=False)) == (
        "7 results against the baseline, as the program does not run in float64, "
        "and not eager, which fails or does not repeat"
    )


def test_plan_description_counts_the_rewrites() -> None:
    made = [Candidate("hoist_copy", "a", ("clone",)), Candidate("hoist_copy", "b", ("clone",)), Candidate("x", "a", ())]
    assert gates.describe_plan(made) == "made: 2 × hoist_copy, 1 × x"
    assert gates.describe_plan([]) == "nothing to make"


def test_copies_of_weights_are_allowed_for_if_the_candidate_freezes_them() -> None:
    def find_failed(candidate: int, *, freezes: bool) -> list[gates.Gate]:
        sides = (Examined((), (), identities(), memory(size * 2**20)) for size in (10, candidate))
        judged = Judged((), (), compared=1, exact=True, placed=1, share=0.0, departed=(), eager=True)
        seen = gates.Comparison((FACTS, FACTS), *sides, judged, (), TrialPolicy(), freezes)
        return [result.name for result in gates.examine_gates(seen) if result.passed is False]

    assert find_failed(28, freezes=True) == []
    assert find_failed(28, freezes=False) == [gates.Gate.MEMORY]
    assert find_failed(35, freezes=True) == [gates.Gate.MEMORY]

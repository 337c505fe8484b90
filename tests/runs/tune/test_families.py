from __future__ import annotations

import ctypes.util
import platform
import re
from dataclasses import replace

import pytest

from frx_graph.runs.tune.families import (
    ALLOCATOR,
    ALLOCATOR_VARIABLE,
    BATCH_SIZE,
    COMPILATION,
    CUDA_GRAPHS,
    DATALOADER,
    DYNAMIC,
    FAMILIES,
    HOST_ALLOCATOR,
    LAYOUT,
    PRECISION,
    make_custom_family,
)
from frx_graph.runs.tune.workload_facts import WorkloadFacts, gather_workload_facts
from frx_graph.support.allocator import POOLING_VARIABLES
from frx_graph.trials.configuration_trial import RunSeen, Tier

SEEN = RunSeen(
    exit_code=0, ending="it ends", in_time=True, steps=26, step_seconds=(0.01,) * 20, samples=160, batch_size=32,
    losses=(2.0,) * 20, outputs=(), workers=None, batch_layouts=1, peak_bytes=1, memory_ratio=0.1,
    device_busy_percent=None, bottleneck=None,
)  # fmt: skip
CPU = WorkloadFacts(2, (), False, True, {}, SEEN, True)
GPU = replace(CPU, gpus=("NVIDIA H100",), bf16=True, processors=16)


def labels(family, facts) -> list[str]:
    return [candidate.label for candidate in family.propose(facts)]


def refusals(family, facts) -> dict[str, str]:
    return {c.label: reason for c in family.propose(facts) if (reason := family.refuse(c, facts)) is not None}


def test_ids_are_names_of_folders_and_differ():
    for facts in (CPU, GPU):
        ids = [candidate.id for family in FAMILIES for candidate in family.propose(facts)]
        assert len(ids) == len(set(ids))
        assert all(
            set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._") for name in ids
        )
        assert not {"baseline", "race", "final"} & set(ids)


def test_workers_go_with_the_processors_and_memory_is_pinned_for_a_gpu_only():
    assert labels(DATALOADER, CPU) == [
        "dl:nw=0,pin=F", "dl:nw=1,pin=F", "dl:nw=2,pin=F", "dl:nw=4,pin=F", "dl:nw=2,pin=F,pf=4", "dl:nw=4,pin=F,pf=4",
    ]  # fmt: skip
    assert "dl:nw=16,pin=T" in labels(DATALOADER, GPU)
    assert "dl:nw=32,pin=T" not in labels(DATALOADER, GPU)


def test_current_configuration_is_not_tried():
    assert "dl:nw=0,pin=F" not in labels(DATALOADER, replace(CPU, seen=replace(SEEN, workers=0)))


def test_without_workers_there_is_nothing_to_fetch_ahead():
    without = next(c for c in DATALOADER.propose(CPU) if c.label == "dl:nw=0,pin=F")
    assert dict(without.variables) == {"FRX_NUM_WORKERS": "0", "FRX_PIN_MEMORY": "false"}
    with_some = next(c for c in DATALOADER.propose(CPU) if c.label == "dl:nw=4,pin=F,pf=4")
    assert dict(with_some.variables)["FRX_PREFETCH_FACTOR"] == "4"


@pytest.mark.parametrize(("base", "sizes"), [(32, [40, 48, 64]), (1, [2]), (2, [3, 4]), (None, [])])
def test_batch_sizes(base, sizes):
    facts = replace(CPU, seen=replace(SEEN, batch_size=base))
    assert [int(dict(c.variables)["FRX_BATCH_SIZE"]) for c in BATCH_SIZE.propose(facts)] == sizes


def test_a_batch_that_would_take_nine_tenths_of_the_memory_is_refused():
    half = replace(CPU, seen=replace(SEEN, memory_ratio=0.45))
    assert list(refusals(BATCH_SIZE, half)) == ["bs:64"]
    assert refusals(BATCH_SIZE, replace(CPU, seen=replace(SEEN, memory_ratio=0.449))) == {}


def test_precision_takes_hardware_and_something_to_judge_it_by():
    assert set(refusals(PRECISION, CPU)) == {"amp:bf16", "amp:fp16"}
    assert set(refusals(PRECISION, replace(CPU, bf16=True))) == {"amp:fp16"}
    assert refusals(PRECISION, GPU) == {}
    silent = replace(GPU, seen=replace(SEEN, losses=()))
    assert set(refusals(PRECISION, silent)) == {"amp:bf16", "amp:fp16"}
    assert refusals(PRECISION, replace(silent, quality_checks=False)) == {}


def test_graphs_take_cuda_and_shapes_that_stay():
    assert set(refusals(CUDA_GRAPHS, CPU)) == {"cudagraphs:static"}
    assert refusals(CUDA_GRAPHS, GPU) == {}
    changing = replace(GPU, seen=replace(SEEN, batch_layouts=DYNAMIC + 1))
    assert set(refusals(CUDA_GRAPHS, changing)) == {"cudagraphs:static"}
    assert set(refusals(COMPILATION, changing)) == {"compile:reduce-overhead"}
    assert refusals(CUDA_GRAPHS, replace(GPU, seen=replace(SEEN, batch_layouts=DYNAMIC))) == {}


def test_what_compiles_takes_a_compiler_and_a_program_that_may_be_compiled():
    without = replace(CPU, compiler=False)
    assert set(refusals(COMPILATION, without)) == {"compile:default"}
    assert set(refusals(LAYOUT, without)) == {"frx:apply", "frx:autopilot"}
    marked = replace(CPU, environment={"FRX_TORCH_COMPILE": "unsupported"})
    assert set(refusals(COMPILATION, marked)) == {"compile:default"}
    assert set(refusals(LAYOUT, marked)) == {"frx:apply", "frx:autopilot"}
    assert refusals(COMPILATION, CPU) == {}


def test_the_allocator_is_cudas_and_what_the_user_has_set_stays():
    assert len(refusals(ALLOCATOR, CPU)) == 2
    assert refusals(ALLOCATOR, GPU) == {}
    assert len(refusals(ALLOCATOR, replace(GPU, environment={ALLOCATOR_VARIABLE: "x"}))) == 2


GLIBC = replace(CPU, glibc=True)


def test_freed_memory_is_kept_by_variables_or_by_an_installed_allocator():
    (pooled,) = HOST_ALLOCATOR.propose(GLIBC)
    assert (pooled.label, pooled.tier, pooled.id) == ("malloc:pooled", Tier.SAFE, "malloc-pooled")
    assert dict(pooled.variables) == POOLING_VARIABLES
    installed = replace(GLIBC, allocators=(("jemalloc", "libjemalloc.so.2"), ("tcmalloc", "libtcmalloc.so.4")))
    _, other = HOST_ALLOCATOR.propose(installed)
    assert (other.label, other.tier, dict(other.variables)) == (
        "malloc:jemalloc", Tier.SAFE, {"LD_PRELOAD": "libjemalloc.so.2"},
    )  # fmt: skip
    assert refusals(HOST_ALLOCATOR, installed) == {}


def test_what_is_preloaded_already_stays():
    facts = replace(GLIBC, allocators=(("jemalloc", "libjemalloc.so.2"),), environment={"LD_PRELOAD": "libiomp5.so"})
    _, other = HOST_ALLOCATOR.propose(facts)
    assert dict(other.variables) == {"LD_PRELOAD": "libjemalloc.so.2:libiomp5.so"}
    assert refusals(HOST_ALLOCATOR, facts) == {}


@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_TRIM_THRESHOLD_", "1"), ("LD_PRELOAD", "/usr/lib/libtcmalloc.so.4")]
)
def test_an_allocator_that_the_environment_chooses_stays(name, value):
    facts = replace(GLIBC, allocators=(("jemalloc", "libjemalloc.so.2"),), environment={name: value})
    assert set(refusals(HOST_ALLOCATOR, facts)) == {"malloc:pooled", "malloc:jemalloc"}


def test_facts_name_the_allocators_that_are_installed(monkeypatch):
    installed = {"jemalloc": None, "tcmalloc": "libtcmalloc.so.4"}
    monkeypatch.setattr(ctypes.util, "find_library", installed.get)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    facts = gather_workload_facts(SEEN, {}, quality_checks=True)
    assert (facts.glibc, facts.allocators) == (True, (("tcmalloc", "libtcmalloc.so.4"),))


def test_the_variables_are_glibcs():
    installed = replace(CPU, allocators=(("jemalloc", "libjemalloc.so.2"),))
    assert set(refusals(HOST_ALLOCATOR, installed)) == {"malloc:pooled"}


def test_tiers():
    tiers = {candidate.label: candidate.tier for family in FAMILIES for candidate in family.propose(GPU)}
    assert {label for label, tier in tiers.items() if tier is Tier.RISKY} == {"frx:autopilot"}
    safe = {label.partition(":")[0] for label, tier in tiers.items() if tier is Tier.SAFE}
    assert safe == {"dl", "alloc", "malloc"}


def test_the_users_own():
    (candidate,) = make_custom_family(((("A", "1"), ("B", "x/y")),)).propose(CPU)
    assert candidate.label == "custom:A=1,B=x/y"
    assert "/" not in candidate.id
    assert candidate.variables == (("A", "1"), ("B", "x/y"))


def test_candidates_of_the_users_own_have_folders_of_their_own():
    values = ("a/b", "a:b", "a;b", "A/b", "é", "ü", "", "x" * 300, "x" * 301, ".2")
    candidates = tuple((("X", value),) for value in values)
    proposed = list(make_custom_family((*candidates, candidates[0])).propose(CPU))
    assert [dict(one.variables)["X"] for one in proposed] == list(values)
    assert len({one.id.lower() for one in proposed}) == len(values)
    assert max(len(one.id) for one in proposed) < 100
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", one.id) for one in proposed)

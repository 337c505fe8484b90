"""Define the families of candidates, each a set of environment variables that a program reads (`docs/tune.md`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from frx_graph.runs.tune.quality import MOST_MEMORY
from frx_graph.runs.tune.workload_facts import WorkloadFacts
from frx_graph.support.allocator import POOLING_VARIABLES, find_chosen_allocator
from frx_graph.trials.configuration_trial import Configuration, Tier

CUSTOM = "custom"
DYNAMIC = 3
"""Batches of more layouts than this are taken to change all the time."""
ALLOCATOR_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
_BATCH_SIZE, _AMP, _COMPILE, _MODE = "FRX_BATCH_SIZE", "FRX_AMP_DTYPE", "FRX_TORCH_COMPILE", "FRX_TORCH_COMPILE_MODE"
_BACKEND_MODE = "FRX_BACKEND_MODE"
_PRELOAD = "LD_PRELOAD"
_CAPTURED = "reduce-overhead"
_BATCH_FACTORS = (1.25, 1.5, 2.0)
_MOST_WORKERS = 16
_PREFETCH, _MORE_PREFETCH = 2, 4
"""torch's default is 2."""
_LONGEST_NAME = 80
"""Length of a folder's name; file systems take 255 bytes."""
_NO_NAME = re.compile(r"[^A-Za-z0-9._]+")


@dataclass(frozen=True, slots=True)
class Family:
    """Candidates that are tried in one stage, since they exclude each other.

    `bottlenecks` are the labels of diagnoses that the family may remedy. `refuse` says why a candidate is not run here.
    """

    name: str
    bottlenecks: frozenset[str]
    propose: Callable[[WorkloadFacts], Iterator[Configuration]]
    refuse: Callable[[Configuration, WorkloadFacts], str | None] = lambda _candidate, _facts: None


def make_configuration(family: str, label: str, tier: Tier, variables: Mapping[str, str]) -> Configuration:
    """Return one candidate; its folder is named after its label."""
    name = _NO_NAME.sub("-", label.replace("=", "")).strip("-.")
    return Configuration(name, label, family, tier, tuple(variables.items()))


def _propose_loading(facts: WorkloadFacts) -> Iterator[Configuration]:
    """Propose the grid of workers and pinned memory, then more prefetched batches.

    Workers help if a sample waits (for a disk, a network), or takes longer to process than a step. More workers than
    twice the processors only help against waiting, and cost memory. Pinned memory makes copies to a GPU faster, but
    adds copies on the host; without a GPU it has no use.
    """

    def make_candidate(workers: int, pin: bool, prefetch: int) -> Configuration:
        more = f",pf={prefetch}" if prefetch != _PREFETCH else ""
        variables = {"FRX_NUM_WORKERS": str(workers), "FRX_PIN_MEMORY": str(pin).lower()}
        if workers:
            variables |= {"FRX_PERSISTENT_WORKERS": "true", "FRX_PREFETCH_FACTOR": str(prefetch)}
        label = f"dl:nw={workers},pin={'T' if pin else 'F'}{more}"
        return make_configuration("dataloader", label, Tier.SAFE, variables)

    pins = (True, False) if facts.gpus else (False,)
    wanted = {0, max(1, facts.processors // 2), facts.processors, 2 * facts.processors}
    counts = sorted({min(workers, _MOST_WORKERS) for workers in wanted})
    for workers in counts:
        for pin in pins:
            if workers != facts.seen.workers or facts.gpus:
                yield make_candidate(workers, pin, _PREFETCH)
    for workers in [workers for workers in counts if workers][-2:]:
        yield make_candidate(workers, pins[0], _MORE_PREFETCH)


def _propose_allocators(_facts: WorkloadFacts) -> Iterator[Configuration]:
    """Propose settings against fragmentation, which costs memory, and time when the cache is emptied."""
    for name, setting in (("expandable", "expandable_segments:True"), ("split128", "max_split_size_mb:128")):
        yield make_configuration("allocator", f"alloc:{name}", Tier.SAFE, {ALLOCATOR_VARIABLE: setting})


def _refuse_allocator(_candidate: Configuration, facts: WorkloadFacts) -> str | None:
    if not facts.gpus:
        return "there is no NVIDIA GPU here: the CUDA allocator is not used"
    if ALLOCATOR_VARIABLE in facts.environment:
        return f"{ALLOCATOR_VARIABLE} is set already, and a candidate would replace it"
    return None


def _propose_host_allocators(facts: WorkloadFacts) -> Iterator[Configuration]:
    """Propose to keep freed memory, then an installed allocator that does so by itself.

    glibc gives large freed blocks back to the kernel, and the next step faults every page of them in again. The
    price is that a process keeps its peak memory.
    """
    yield make_configuration("host allocator", "malloc:pooled", Tier.SAFE, POOLING_VARIABLES)
    preloaded = facts.environment.get(_PRELOAD, "")
    for name, library in facts.allocators[:1]:
        variables = {_PRELOAD: f"{library}:{preloaded}" if preloaded else library}
        yield make_configuration("host allocator", f"malloc:{name}", Tier.SAFE, variables)


def _refuse_host_allocator(candidate: Configuration, facts: WorkloadFacts) -> str | None:
    if (chosen := find_chosen_allocator(facts.environment)) is not None:
        return f"the environment chooses the allocator already ({chosen}), and a candidate would replace it"
    if _PRELOAD not in dict(candidate.variables) and not facts.glibc:
        return "the C library is not glibc, and does not read these variables"
    return None


def _propose_batch_sizes(facts: WorkloadFacts) -> Iterator[Configuration]:
    """Propose larger batches, which use a device better until it is full. The time per sample is compared.

    They change the training: the learning rate may have to follow, and the gates on the loss only see the few steps of
    the trial.
    """
    base = facts.seen.batch_size or 0
    for size in sorted({round(base * factor) for factor in _BATCH_FACTORS} - {base}):
        yield make_configuration("batch size", f"bs:{size}", Tier.VALIDATED, {_BATCH_SIZE: str(size)})


def _refuse_batch_size(candidate: Configuration, facts: WorkloadFacts) -> str | None:
    """Refuse if memory that grows with the batch, as most does, would leave no headroom."""
    base, ratio = facts.seen.batch_size, facts.seen.memory_ratio
    if base is None or ratio is None:
        return None
    expected = ratio * int(dict(candidate.variables)[_BATCH_SIZE]) / base
    if expected < MOST_MEMORY:
        return None
    return f"memory: {100 * ratio:.0f} % are in use at batch size {base}, so up to {100 * expected:.0f} % would be"


def _propose_precisions(_facts: WorkloadFacts) -> Iterator[Configuration]:
    """Propose bfloat16 first: it needs no scaling of the loss."""
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        yield make_configuration("precision", f"amp:{name}", Tier.VALIDATED, {_AMP: dtype})


def _refuse_precision(candidate: Configuration, facts: WorkloadFacts) -> str | None:
    half = dict(candidate.variables)[_AMP]
    if half == "float16" and not facts.gpus:
        return "CUDA is unavailable, and float16 is for GPUs"
    if half == "bfloat16" and not facts.bf16:
        where = (
            "this GPU has no bfloat16: that takes compute capability 8.0" if facts.gpus else "this processor has none"
        )
        return f"bfloat16 is unsupported: {where}"
    if facts.quality_checks and not facts.seen.losses:
        return "quality checks are required, and the program reports no loss (--no-quality-checks tries it anyway)"
    return None


def _propose_layouts(_facts: WorkloadFacts) -> Iterator[Configuration]:
    """Propose channels-last weights, then the frx backend.

    Convolutions are often faster on channels-last tensors, and then everything between them has to keep that layout; on
    some shapes and devices they are slower. `frx:apply` runs what `frx trial` has promoted for this model's graphs;
    `frx:autopilot` makes such trials while it compiles, which takes minutes and records decisions in the ledger.
    """
    backend = {_COMPILE: "true", "FRX_TORCH_COMPILE_BACKEND": "frx"}
    yield make_configuration("layout", "layout:channels_last", Tier.VALIDATED, {"FRX_CHANNELS_LAST": "true"})
    yield make_configuration("layout", "frx:apply", Tier.VALIDATED, backend | {_BACKEND_MODE: "apply"})
    yield make_configuration("layout", "frx:autopilot", Tier.RISKY, backend | {_BACKEND_MODE: "autopilot"})


def _refuse_layout(candidate: Configuration, facts: WorkloadFacts) -> str | None:
    return _explain_no_compilation(facts) if _BACKEND_MODE in dict(candidate.variables) else None


def _propose_compilations(facts: WorkloadFacts) -> Iterator[Configuration]:
    """Propose the default mode, and on a GPU recorded launches."""
    yield make_configuration("compilation", "compile:default", Tier.VALIDATED, {_COMPILE: "true"})
    if facts.gpus:
        captured = {_COMPILE: "true", _MODE: _CAPTURED}
        yield make_configuration("compilation", f"compile:{_CAPTURED}", Tier.VALIDATED, captured)


def _refuse_compilation(candidate: Configuration, facts: WorkloadFacts) -> str | None:
    reason = _explain_no_compilation(facts)
    if reason is None and dict(candidate.variables).get(_MODE) == _CAPTURED:
        return _explain_changing_shapes(facts)
    return reason


def _explain_no_compilation(facts: WorkloadFacts) -> str | None:
    """Return the reason against compiling: the user's setting, or no C++ compiler, which Inductor needs on a CPU."""
    if facts.environment.get(_COMPILE, "").lower() in ("0", "false", "unsupported"):
        return f"{_COMPILE} in the environment marks torch.compile as unsupported for this program"
    if not facts.gpus and not facts.compiler:
        return "there is no C++ compiler (g++, clang++, or CXX) for torch.compile"
    return None


def _explain_changing_shapes(facts: WorkloadFacts) -> str | None:
    """Return the reason against recording launches: recorded launches need the same shapes in every step."""
    seen = facts.seen.batch_layouts
    return f"shapes appear dynamic: batches had {seen} different layouts" if seen > DYNAMIC else None


def _propose_graphs(_facts: WorkloadFacts) -> Iterator[Configuration]:
    """Propose CUDA graphs, which record all launches of a step once and send them as one."""
    variables = {"FRX_CUDA_GRAPHS": "try_if_static_shapes"}
    yield make_configuration("cuda graphs", "cudagraphs:static", Tier.VALIDATED, variables)


def _refuse_graphs(_candidate: Configuration, facts: WorkloadFacts) -> str | None:
    return _explain_changing_shapes(facts) if facts.gpus else "CUDA is unavailable"


DATALOADER = Family("dataloader", frozenset({"input_bound", "copy_bound"}), _propose_loading)
ALLOCATOR = Family("allocator", frozenset({"memory_pressure"}), _propose_allocators, _refuse_allocator)
HOST_ALLOCATOR = Family(
    "host allocator",
    frozenset({"input_bound", "launch_bound", "host_bound"}),
    _propose_host_allocators,
    _refuse_host_allocator,
)
_IDLE_GPU = frozenset({"underutilized_gpu", "launch_bound", "host_bound"})
BATCH_SIZE = Family("batch size", _IDLE_GPU, _propose_batch_sizes, _refuse_batch_size)
_SLOW_GPU = frozenset({"memory_pressure", "underutilized_gpu"})
PRECISION = Family("precision", _SLOW_GPU, _propose_precisions, _refuse_precision)
LAYOUT = Family("layout", frozenset({"layout_churn", "underutilized_gpu"}), _propose_layouts, _refuse_layout)
COMPILATION = Family("compilation", _IDLE_GPU, _propose_compilations, _refuse_compilation)
CUDA_GRAPHS = Family("cuda graphs", _IDLE_GPU, _propose_graphs, _refuse_graphs)
FAMILIES = (DATALOADER, ALLOCATOR, HOST_ALLOCATOR, BATCH_SIZE, PRECISION, LAYOUT, COMPILATION, CUDA_GRAPHS)
"""In the order of their stages: data loading first, because a program that waits for data hides gains of the model."""


def make_custom_family(candidates: Sequence[tuple[tuple[str, str], ...]]) -> Family:
    """Return a family with one candidate for each set of variables. It is tried for every bottleneck, and counts as
    safe, because the user has chosen it."""

    def propose(_facts: WorkloadFacts) -> Iterator[Configuration]:
        taken: set[str] = set()
        for variables in dict.fromkeys(candidates):
            label = ",".join(f"{name}={value}" for name, value in variables)
            made = make_configuration(CUSTOM, f"custom:{label}", Tier.SAFE, dict(variables))
            # A folder's name holds less than a value may: `X=a/b` and `X=a:b` are two candidates.
            short = made.id[:_LONGEST_NAME]
            names = (short if number == 1 else f"{short}.{number}" for number in count(1))
            free = next(name for name in names if name.lower() not in taken)
            taken.add(free.lower())
            yield replace(made, id=free)

    return Family(CUSTOM, frozenset(), propose)

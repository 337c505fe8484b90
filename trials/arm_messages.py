"""Define the questions to an arm and its answers, which both sides of the pipe check.

An arm gets `Load` first. To judge a program, its arm gets `Compile` and `Examine`, and then the baseline's arm gets
`Judge` for the candidate's results. To time a program, its arm gets `Warm`, and then `Measure` for each block.
`CountFaults` may follow `Warm`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from frx_graph.capture.capture_facts import CaptureFacts
from frx_graph.measure.memory_use import MemoryRecord
from frx_graph.measure.operators.kernel_identities import KernelIdentities
from frx_graph.measure.page_faults import PageFaults
from frx_graph.records import Candidate
from frx_graph.trials.arm_process import NO_ANSWER, ArmError, Cause
from frx_graph.trials.environment_record import TrialEnvironment
from frx_graph.trials.numerics import Difference
from frx_graph.trials.samples import Disturbance


@dataclass(frozen=True, slots=True)
class TargetWorkload:
    """The return value of a callable: `module:callable` or `file.py:callable`, imported in the arm's process, whose
    folder is that of the process that starts it. It is called with the sizes of `shape` by their names. `overlay` pairs
    files with those that are imported in their place."""

    target: str
    device: str | None = None
    dtype: str | None = None
    shape: tuple[tuple[str, int], ...] = ()
    overlay: tuple[tuple[str, str], ...] = ()
    kind: Literal["target"] = "target"


@dataclass(frozen=True, slots=True)
class GraphWorkload:
    """A captured graph in a folder that `frx_graph.trial_worker.graph_file` has written."""

    folder: str
    kind: Literal["graph"] = "graph"


Workload: TypeAlias = Annotated[TargetWorkload | GraphWorkload, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class Load:
    """Load the workload, and get ready to compile it: with `candidates`, each with its graph's signature as `graph_id`,
    and with the rewrites that measured times favour among `proposes`; with neither, without frx-graph. `random` says
    that the program draws random numbers, and makes both arms draw the same; None: run the program to find out. Both
    arms of a pair get the same value, so that state that the program keeps is the same. `pool`: keep freed memory
    from the beginning (`frx_graph.support.allocator`). `plain`: run the program as it is, without Dynamo. `timed`: the
    results are not compared, and random numbers are drawn as in the user's program."""

    workload: Workload
    train: bool
    inner: str
    seed: int
    inner_mode: str | None = None
    candidates: tuple[Candidate, ...] = ()
    proposes: tuple[str, ...] | None = None
    random: bool | None = None
    pool: bool = False
    plain: bool = False
    timed: bool = False
    ask: Literal["load"] = "load"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The workload is there. `repeats` is False if it was run and did not compute the same twice from one seed."""

    random: bool
    environment: TrialEnvironment
    repeats: bool = True


@dataclass(frozen=True, slots=True)
class Warm:
    """Run the program until nothing is compiled any more, and at least so many steps."""

    steps: int
    ask: Literal["warm"] = "warm"


@dataclass(frozen=True, slots=True)
class MadeGraph:
    """One graph of Dynamo, and its plan. The `graph_id` of `applied` is the signature of the graph that the inner
    compiler gets. `untried` are the rewrites that measured times cannot judge."""

    signature: str
    applied: tuple[Candidate, ...] = ()
    untried: tuple[Candidate, ...] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Warmed:
    """`seconds` it took until the first step had ended. `failures` left graphs unchanged."""

    seconds: float
    graphs: tuple[MadeGraph, ...]
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Compile:
    """Compile the program, and run some steps."""

    ask: Literal["compile"] = "compile"


@dataclass(frozen=True, slots=True)
class Compiled:
    """The capture of the program by Dynamo."""

    capture: CaptureFacts


@dataclass(frozen=True, slots=True)
class Examine:
    """Describe the compiled program, and write the results of `draws` draws to files named `file`.*."""

    file: str
    draws: int
    ask: Literal["examine"] = "examine"


@dataclass(frozen=True, slots=True)
class Examined:
    """The observations of the program."""

    graphs: tuple[MadeGraph, ...]
    failures: tuple[str, ...]
    kernels: KernelIdentities
    memory: MemoryRecord


@dataclass(frozen=True, slots=True)
class Judge:
    """Compare the results of `draws` draws in the files `theirs` with those in `ours`, and both with float64."""

    ours: str
    theirs: str
    draws: int
    multiplier: float
    multiplier_half: float
    ask: Literal["judge"] = "judge"


@dataclass(frozen=True, slots=True)
class Judged:
    """The `values` that differ among `compared` results, and the `forms` among `placed` outputs and gradients. `exact`
    is False if the program does not run in float64; `share` is the largest fraction of the allowed error that is used
    where nothing differs. `departed` are results of the baseline that differ from eager's; `eager` is False if
    the program does not run without a compiler."""

    values: tuple[Difference, ...]
    forms: tuple[Difference, ...]
    compared: int
    exact: bool
    placed: int = 0
    share: float | None = None
    departed: tuple[Difference, ...] = ()
    eager: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """Run a block of steps, timed one by one; none: only tell the distance between the processors. `ours` are the other
    arms' processes."""

    steps: int
    ours: tuple[int, ...] = ()
    ask: Literal["measure"] = "measure"


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of each step, what disturbed the block, and the larger distance between the processors before and after
    it (`measure/machine/processor_distance.py`)."""

    seconds: tuple[float, ...]
    disturbance: Disturbance | None = None
    distance: float | None = None


@dataclass(frozen=True, slots=True)
class CountFaults:
    """Run some steps, and count the page faults of each."""

    ask: Literal["count_faults"] = "count_faults"


@dataclass(frozen=True, slots=True)
class CountedFaults:
    """The page faults; None if the system does not count them."""

    faults: PageFaults | None


Question: TypeAlias = Annotated[
    Load | Compile | Warm | Examine | Judge | Measure | CountFaults, Field(discriminator="ask")
]
QUESTION: TypeAdapter[Question] = TypeAdapter(Question)
Answer: TypeAlias = Loaded | Compiled | Warmed | Examined | Judged | Measured | CountedFaults
Answered = TypeVar("Answered", Loaded, Compiled, Warmed, Examined, Judged, Measured, CountedFaults)


class ArmClient(Protocol):
    """An arm's process, or a substitute."""

    def begin(self, message: Mapping[str, Any]) -> None:
        """Start on `message`, the next question, if it can while its caller does other things."""

    def ask(self, message: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        """Return its answer. Raises `ArmError`."""


def ask(arm: ArmClient, question: Question, answered: type[Answered], seconds: float) -> Answered:
    """Return the answer to `question`, of the kind `answered`. Raises `ArmError`."""
    answer = arm.ask(_make_message(question), seconds=seconds)
    try:
        return TypeAdapter(answered).validate_python(answer)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ArmError(Cause.RAISED, f"{NO_ANSWER}: {place}: {first['msg']}") from error


def begin(arm: ArmClient, question: Question) -> None:
    """Let `arm` work on the question that it is asked next."""
    arm.begin(_make_message(question))


def _make_message(question: Question) -> dict[str, Any]:
    found: dict[str, Any] = TypeAdapter(type(question)).dump_python(question, mode="json")
    return found

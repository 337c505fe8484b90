"""Records of a CUDA source file: kernels with the memory accesses of their threads, and launches."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from frx_graph.evidence.cuda.concrete import LoopValues, SymbolChoice, SymbolOperation, Test, TestGroup
from frx_graph.evidence.cuda.polynomial import Polynomial
from frx_graph.evidence.record import record


class Space(enum.StrEnum):
    """Memory that holds an array; UNKNOWN for a pointer of unknown origin."""

    GLOBAL = "global"
    SHARED = "shared"
    CONSTANT = "constant"
    LOCAL = "local"
    UNKNOWN = "unknown"


class Use(enum.StrEnum):
    """Use of an element."""

    READ = "read"
    WRITE = "write"
    ATOMIC = "atomic"


class StrideKind(enum.StrEnum):
    """Distance between the elements of neighbouring threads of a warp."""

    BROADCAST = "broadcast"
    COALESCED = "coalesced"
    STRIDED = "strided"
    SYMBOLIC = "symbolic"
    UNKNOWN = "unknown"


class BarrierKind(enum.StrEnum):
    """Threads that a barrier waits for."""

    BLOCK = "block"
    WARP = "warp"
    GROUP = "group"
    GRID = "grid"
    ASYNC = "async"
    """`mbarrier`, `cuda::barrier`, pipelines."""


@record
class Stride:
    """Distance from one thread to the next in x, in elements. `elements` is None unless it is a number; `text`
    describes it."""

    kind: StrideKind
    elements: int | None
    text: str | None
    factor: int = 0
    """A number that divides a symbolic stride: 2 for `2*s`."""


@record
class Condition:
    """A condition that decides if a thread continues.

    Flags are True only if certain: for a condition on loaded data, all are False except `data`.
    """

    line: int = 0
    text: str = ""
    thread: bool = False
    """It differs between threads of a block."""
    lane: bool = False
    """It differs between threads of a warp."""
    single: bool = False
    """It holds for one thread of a warp at most."""
    bounds: bool = False
    """It compares the thread's work with a limit."""
    modulo: bool = False
    """It holds for every second, third, … thread of a warp."""
    data: bool = False
    early: bool = False
    """It precedes a `return`: threads that do not continue have ended."""
    ragged: bool = False
    """Its limit is a number from the launch, which need not be a multiple of a warp."""
    width: int | None = None
    """It holds for all threads of a block with this width in x; None if unknown."""
    varies: frozenset[str] = frozenset()
    """Values that it depends on: x, y, z, block, lane, data."""
    tests: Test | TestGroup | None = field(default=None, repr=False, compare=False)
    """The parsed condition, for evaluation on one thread."""


@record
class Step:
    """Place and context of an event in a kernel. `arms` are the branches around it, as pairs of `if` and arm."""

    order: int
    line: int
    conditions: tuple[Condition, ...]
    loops: tuple[int, ...]
    arms: tuple[tuple[int, int], ...]
    through: str | None
    """The device function that contains it."""

    @property
    def single(self) -> bool:
        """Return True if at most one thread of a warp gets here."""
        return any(condition.single for condition in self.conditions)


@record
class Access:
    """One element that a thread reads or writes. `offset` is in elements of `element`, from the start of `base`."""

    step: Step
    base: str
    space: Space
    use: Use
    text: str
    element: str
    element_bytes: int | None
    offset: Polynomial
    varies: frozenset[str]
    """Values that the offset depends on: x, y, z, block, lane, data, or a loop by its line, as `loop:12`."""
    stride: Stride
    conflict: int | None
    """For shared memory: the turns that a warp's access takes, 1 without a conflict; None if unknown."""
    volatile: bool


@record
class Barrier:
    """A wait of threads for each other; with `alone`, for copies that they themselves have begun."""

    step: Step
    kind: BarrierKind
    text: str
    alone: bool = False


@record
class WarpOperation:
    """A shuffle or a vote. `mask` is None for those that CUDA 9 has replaced; `full` means a mask of all lanes."""

    step: Step
    name: str
    mask: str | None
    full: bool


@record
class Call:
    """A call of an unknown function, or of one that was not read; `pure` if it can only compute. For each argument: its
    value, if it is a number, and its target, if it is a pointer."""

    step: Step
    name: str
    pure: bool
    values: tuple[int | None, ...]
    elements: tuple[str | None, ...]


@record
class Branch:
    """An `if`, or a chain of them with `arms` arms, or a `switch`. Steps refer to it by `number`."""

    step: Step
    number: int
    condition: Condition
    arms: int
    invariant: bool
    """In a loop: its result is the same in each iteration."""


@record
class Loop:
    """A loop. Steps refer to it by `number`. `count` is the number of iterations, if that is constant. A block behind
    an unknown macro, which may be a loop, has a number but no event."""

    step: Step
    number: int
    text: str
    count: int | None
    innermost: bool
    condition: Condition | None


@record
class Product:
    """`sum += left * right`: two loaded elements multiplied and added up."""

    step: Step
    left: Access
    right: Access


Event = Access | Barrier | WarpOperation | Call | Branch | Loop | Product


@record
class Parameter:
    """A parameter of a kernel; for a pointer, `type` is the type of an element."""

    name: str
    type: str
    pointer: bool
    const: bool
    restrict: bool


@record
class Array:
    """An array declared in a kernel; an entry of `sizes` is None unless it is a number. `dynamic` means that the launch
    gives the size."""

    name: str
    line: int
    element: str
    sizes: tuple[int | None, ...]
    bytes: int | None
    dynamic: bool
    space: Space


@dataclass(frozen=True, slots=True)
class LaunchBounds:
    """`__launch_bounds__`: as written, and as numbers if they are numbers."""

    text: str
    threads: int | None
    blocks: int | None


@dataclass(frozen=True, slots=True)
class Kernel:
    """A `__global__` function with a body. `read` are the words in the body."""

    name: str
    line: int
    template: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    launch_bounds: LaunchBounds | None
    arrays: tuple[Array, ...]
    events: tuple[Event, ...]
    read: frozenset[str]
    complete: bool
    """False if the parser met unknown syntax in it."""
    made: Mapping[str, SymbolOperation | SymbolChoice] = field(default_factory=dict, repr=False, compare=False)
    """Operations behind the symbols in numbers."""
    turns: Mapping[str, LoopValues] = field(default_factory=dict, repr=False, compare=False)
    """Values of symbols that a loop changes."""

    accesses: tuple[Access, ...] = field(init=False, repr=False, compare=False)
    """Accesses in order of events; the following fields have the same order."""
    barriers: tuple[Barrier, ...] = field(init=False, repr=False, compare=False)
    calls: tuple[Call, ...] = field(init=False, repr=False, compare=False)
    loops: Mapping[int, Loop] = field(init=False, repr=False, compare=False)
    """By number."""

    def __post_init__(self) -> None:
        # Every detector reads some of these.
        set_once = object.__setattr__
        set_once(self, "accesses", tuple(event for event in self.events if isinstance(event, Access)))
        set_once(self, "barriers", tuple(event for event in self.events if isinstance(event, Barrier)))
        set_once(self, "calls", tuple(event for event in self.events if isinstance(event, Call)))
        set_once(self, "loops", {event.number: event for event in self.events if isinstance(event, Loop)})


@dataclass(frozen=True, slots=True)
class Extent:
    """A grid or a block: its text in the launch, and the sizes that are numbers."""

    text: str
    sizes: tuple[int | None, int | None, int | None]
    rounded_up: bool = False
    """A quotient rounded up: the last block has threads without work."""

    @property
    def count(self) -> int | None:
        """Return the total number of threads or blocks."""
        x, y, z = self.sizes
        return None if x is None or y is None or z is None else x * y * z


@dataclass(frozen=True, slots=True)
class Launch:
    """`kernel<<<grid, block, shared, stream>>>`, with its template arguments in `kernel`."""

    kernel: str
    line: int
    grid: Extent
    block: Extent
    shared: str | None
    shared_bytes: int | None
    stream: str | None
    arguments: tuple[str, ...] = ()
    """As written, cut after 120 characters."""

    @property
    def name(self) -> str:
        """Return the kernel's name without template arguments and namespaces."""
        return self.kernel.split("<", 1)[0].rsplit("::", 1)[-1].strip()


def group_launches(launches: Iterable[Launch]) -> Mapping[str, tuple[Launch, ...]]:
    """Return launches by the name of their kernel."""
    found: dict[str, list[Launch]] = {}
    for launch in launches:
        found.setdefault(launch.name, []).append(launch)
    return {name: tuple(those) for name, those in found.items()}


@dataclass(frozen=True, slots=True)
class Coverage:
    """Bytes of a file, and those that the parser could not understand."""

    bytes: int
    unparsed: int

    @property
    def share(self) -> float:
        """Share of the file that was understood, 0..1."""
        return 1.0 - self.unparsed / self.bytes if self.bytes else 1.0


@dataclass(frozen=True, slots=True)
class IncludedHeader:
    """A header that was read with a file. Lines are counted on from the file's: `line` is the header's first."""

    path: str
    line: int


@dataclass(frozen=True, slots=True)
class CudaSource:
    """One file. `unread` are `__global__` functions of which only the name could be read. `hip`: it is compiled for
    AMD's GPUs, too. `headers` were read with it; `unread_headers` were not found, or could not be read."""

    source: str
    kernels: tuple[Kernel, ...]
    launches: tuple[Launch, ...]
    unread: tuple[str, ...]
    coverage: Coverage
    launches_by_name: Mapping[str, tuple[Launch, ...]] = field(repr=False, compare=False)
    hip: bool = False
    headers: tuple[IncludedHeader, ...] = ()
    unread_headers: tuple[str, ...] = ()

    def find_header(self, line: int) -> IncludedHeader | None:
        """Return the header that has this line; None for a line of the file."""
        return next((one for one in reversed(self.headers) if one.line <= line), None)

    def describe_line(self, line: int) -> str:
        """Return a line of the file or of a header as text: "line 12", "line 3 of reduce.cuh"."""
        header = self.find_header(line)
        if header is None:
            return f"line {line}"
        return f"line {line - header.line + 1} of {PurePath(header.path).name}"

"""The state while one kernel is read: values of names, conditions in force, and events so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tree_sitter import Node

from frx_graph.evidence.cuda.assignments import Change, Changes
from frx_graph.evidence.cuda.banks import estimate_pitched_turns, simulate_bank_turns
from frx_graph.evidence.cuda.constants import TYPE_BYTES
from frx_graph.evidence.cuda.polynomial import Polynomial, make_constant
from frx_graph.evidence.cuda.source import Access, Array, Call, Condition, Event, Space, Step, Stride, StrideKind, Use
from frx_graph.evidence.cuda.structures import Structure
from frx_graph.evidence.cuda.syntax import get_line, get_text
from frx_graph.evidence.cuda.values import ANYTHING, UNIFORM, Pointer, Symbols, Value, count_bank_turns

DEEPEST = 60
"""Nesting limit of expressions and statements; real kernels have a tenth. Deeper parts stay unknown."""
MOST_EVENTS = 20_000
"""Limit on events of a kernel and the functions it calls; generated kernels have a tenth."""
MOST_INLINED = 2
"""Limit on nested device functions that are read."""
MOST_CONDITIONS = 200
"""Limit on conditions kept around one place; a kernel with as many early returns is generated."""
_TEXT = 160
_LOADED = frozenset({"data"})
_NOT_KNOWN = Stride(StrideKind.UNKNOWN, None, None)


Evaluator = Callable[["State", Node], Value]


@dataclass(slots=True)
class Inlining:
    """Statements of device functions that may still be read in a file, for all its kernels: functions that call
    functions multiply."""

    left: int = 100_000


@dataclass(slots=True)
class State:
    """Mutable state of the reader. `text` is the file, `functions` are its device functions by name, `constants` its
    numbers, `macros` its macros with arguments, `structures` its structures and unions."""

    text: bytes
    constants: Mapping[str, int]
    functions: Mapping[str, Node]
    macros: frozenset[str]
    evaluators: Mapping[str, Evaluator]
    inline: Callable[[State, Node, list[Value]], Value | None]
    body: Node
    """Name of the function being read."""
    searched: dict[int, Changes]
    """Changes in loops of the file's functions, by the start of their bodies."""
    inlining: Inlining
    complete: bool = True
    """False if parts were skipped because there are too many."""
    plane: bool = False
    """The kernel's blocks have, or may have, more than one dimension."""
    width: int | None = None
    """Threads of each block in x, if the launches of the file give them."""
    generic: frozenset[str] = frozenset()
    """The template's types."""
    structures: Mapping[str, Structure] = field(default_factory=dict)
    pitches: dict[str, frozenset[str]] = field(default_factory=dict)
    """For shared arrays: the names in the sizes of their rows, which only the build knows."""
    names: dict[str, Value] = field(default_factory=dict)
    symbols: Symbols = field(default_factory=Symbols)
    events: list[Event] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)
    declared: dict[str, int] = field(default_factory=dict)
    """Where each name of an array was declared first."""
    conditions: tuple[Condition, ...] = ()
    loops: tuple[int, ...] = ()
    arms: tuple[tuple[int, int], ...] = ()
    inside: list[frozenset[str]] = field(default_factory=list)
    """For each loop being read: the symbols that change with its iterations."""
    places: set[str] = field(default_factory=set)
    """Names for one element of memory, shared variables that are not arrays, and references: using such a name reads
    it."""
    through: tuple[str, ...] = ()
    returned: list[tuple[Value, tuple[Condition, ...]]] = field(default_factory=list)
    """Results of a device function, and the conditions for each."""
    kept: dict[str, int] = field(default_factory=dict)
    """For local arrays: the event index of the read that last filled an element."""
    depth: int = 0
    made: int = 0

    def make_step(self, node: Node) -> Step:
        """Return the place of the next event."""
        through = self.through[-1] if self.through else None
        return Step(len(self.events), get_line(node), self.conditions, self.loops, self.arms, through)

    def add_event(self, event: Event) -> None:
        """Keep an event, unless there are too many."""
        if len(self.events) < MOST_EVENTS:
            self.events.append(event)
        else:
            self.complete = False

    def add_call(self, node: Node, name: str, *, pure: bool = False, values: Sequence[Value] = ()) -> None:
        """Keep a call of a function that is not read, with these values as arguments."""
        numbers = tuple(value.constant if isinstance(value, Polynomial) else None for value in values)
        elements = tuple(value.element if isinstance(value, Pointer) else None for value in values)
        self.add_event(Call(self.make_step(node), name, pure, numbers, elements))

    def require_condition(self, condition: Condition) -> None:
        """Add a condition that holds from here on."""
        if len(self.conditions) < MOST_CONDITIONS:
            self.conditions += (condition,)
        else:
            self.complete = False

    def find_loop_changes(self, loop: Node) -> Mapping[str, list[Change]]:
        """Return the changes in a loop of this function, by name."""
        start = self.body.start_byte
        if start not in self.searched:
            self.searched[start] = Changes(self.text, self.body)
        return self.searched[start].find_in_loop(loop)

    def take_number(self) -> int:
        """Return a number that no branch or loop has yet."""
        self.made += 1
        return self.made

    def record_access(self, node: Node, at: Pointer, use: Use) -> Polynomial:
        """Record the use of an element. Its value is an unknown symbol, known only by the element that it was loaded
        from."""
        name, space, volatile = at.base.name, at.base.space, at.base.volatile
        if space is Space.LOCAL:
            value = self.symbols.create_symbol(name, ANYTHING)
            if name in self.kept:
                ((symbol,),) = value.terms
                self.symbols.loaded[symbol] = self.kept[name]
            return value
        varies, stride = self.symbols.describe_offset(at.offset)
        size = TYPE_BYTES.get(at.element)
        turns = self._estimate_bank_turns(node, at, size) if space is Space.SHARED else None
        if space is Space.UNKNOWN:
            stride = _NOT_KNOWN
        step, text = self.make_step(node), get_text(self.text, node)[:_TEXT]
        # Positional arguments: one in three events is an access, and keywords would double the time.
        access = Access(step, name, space, use, text, at.element, size, at.offset, varies, stride, turns, volatile)
        self.add_event(access)
        value = self.symbols.create_symbol(name, varies | _LOADED)
        if use is Use.READ:
            ((symbol,),) = value.terms
            self.symbols.loaded[symbol] = step.order
        return value

    def _estimate_bank_turns(self, node: Node, at: Pointer, size: int | None) -> int | None:
        """Return the turns of an access; for an unknown element type, the fewest over its possible sizes."""
        if size is None and at.element in self.structures:
            return self._count_field_turns(node, at)
        sizes: tuple[int | None, ...] = (size,)
        if size is None and at.element.isidentifier():
            sizes = (4, 8) if at.element in self.generic else (2, 4, 8, 16)
            if at.element in self.generic and self.symbols.compute_stride(at.offset).elements is not None:
                sizes = (2, *sizes)
        turns = [self._count_turns(at, one) for one in sizes]
        known = [one for one in turns if one is not None]
        return min(known) if len(known) == len(turns) else None

    def _count_field_turns(self, node: Node, at: Pointer) -> int | None:
        """Return the turns of an access to one field of structures; None for one to all of a structure."""
        whole, name = self.structures[at.element].bytes, get_text(self.text, node.child_by_field_name("field"))
        field = next((one for one in self.structures[at.element].fields if one.name == name), None)
        size = None if field is None or field.pointer or field.sizes else TYPE_BYTES.get(field.element)
        if size is None or whole is None or whole % size:
            return None
        pitch = make_constant(whole // size)
        return self._count_turns(Pointer(at.base, at.offset * pitch, at.element), size)

    def _count_turns(self, at: Pointer, size: int | None) -> int | None:
        plane, width = self.plane, self.width
        turns = count_bank_turns(self.symbols, at.offset, size, plane=plane, width=width)
        if turns is not None or size is None:
            return turns
        pitch = self.pitches.get(at.base.name, frozenset())
        if any(pitch.intersection(name) for name in at.offset.terms):
            return estimate_pitched_turns(self.symbols, at.offset, size, pitch, plane=plane)
        return simulate_bank_turns(self.symbols, at.offset, size, self.conditions, plane=plane, width=width)

    def note_source(self, array: str, value: Value) -> None:
        """Record the read that an element of a local array comes from."""
        for symbol in value.iterate_symbols() if isinstance(value, Polynomial) and len(value.terms) == 1 else ():
            if symbol in self.symbols.loaded:
                self.kept[array] = self.symbols.loaded[symbol]


def evaluate(state: State, node: Node | None) -> Value:
    """Return the value of a name; an unknown one becomes a new symbol that may vary with anything."""
    if node is None:
        return state.symbols.create_symbol("none", ANYTHING)
    if state.depth >= DEEPEST:
        return state.symbols.create_symbol("deep", ANYTHING)
    state.depth += 1
    value = state.evaluators.get(node.type, _evaluate_parts)(state, node)
    state.depth -= 1
    return value


def convert_to_number(state: State, value: Value) -> Polynomial:
    """Return the value as a number; for a pointer or a group, an unknown one."""
    return value if isinstance(value, Polynomial) else state.symbols.create_symbol("address", ANYTHING)


def _evaluate_parts(state: State, node: Node) -> Value:
    varies = UNIFORM.union(*(state.symbols.get_varies(evaluate(state, child)) for child in node.named_children))
    return state.symbols.create_symbol(node.type, varies)

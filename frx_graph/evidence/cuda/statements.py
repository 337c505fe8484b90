"""A kernel's body, statement by statement, as one thread goes through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tree_sitter import Node

from frx_graph.evidence.cuda.assignments import Change, identifiers, loads
from frx_graph.evidence.cuda.concrete import Several, Test
from frx_graph.evidence.cuda.conditions import Decision, decide
from frx_graph.evidence.cuda.constants import fold
from frx_graph.evidence.cuda.declarations import declarator, declare, declare_group, element_type
from frx_graph.evidence.cuda.polynomial import ZERO, Polynomial, named, number
from frx_graph.evidence.cuda.source import Branch, Call, Condition, Loop
from frx_graph.evidence.cuda.state import DEEPEST, State, evaluate
from frx_graph.evidence.cuda.syntax import function_declarator, line_of, said
from frx_graph.evidence.cuda.values import ANYTHING, UNIFORM, Group, Pointer, Value, Varies, unknown_pointer

_LEAVES = frozenset(["return_statement", "continue_statement", "break_statement"])
_LOOPS = frozenset(["for_statement", "while_statement", "do_statement", "for_range_loop"])
_TEXT = 120


def run(state: State, node: Node | None) -> None:
    """Goes through a statement; what it cannot make sense of it passes over."""
    if node is None or state.depth >= DEEPEST:
        return
    state.depth += 1
    if state.through:
        state.inlining.left -= 1
    _run(state, node)
    state.depth -= 1


def inline(state: State, function: Node, values: list[Value]) -> Value | None:
    """Run a device function with these values, as if it stood where it is called, and return its result."""
    body = function.child_by_field_name("body")
    listed = _parameter_nodes(function)
    if body is None or len(listed) != len(values):
        return None
    outer, conditions, outside, places = state.names, state.conditions, state.returned, state.places
    state.names, state.returned, state.places = {}, [], set()
    state.body, own = body, state.body
    for node, value in zip(listed, values, strict=True):
        found = declarator(state.text, node.child_by_field_name("declarator"))
        if found is not None:
            kept = value
            if found.pointers and not isinstance(value, Pointer):
                kept = unknown_pointer(element_type(state.text, node))
            if isinstance(kept, Pointer) and "volatile" in {said(state.text, child) for child in node.children}:
                kept = replace(kept, base=replace(kept.base, volatile=True))
            state.names[found.name] = kept
    run(state, body)
    found_values, state.returned, state.names, state.places = state.returned, outside, outer, places
    state.body = own
    state.conditions = conditions
    if not found_values:
        return ZERO
    result = found_values[0][0]
    decides = UNIFORM.union(*(one.varies for _, below in found_values for one in below[len(conditions) :]))
    for other, _ in found_values[1:]:
        result = state.symbols.join(result, other, decides)
    return result


def _parameter_nodes(function: Node) -> list[Node]:
    node = function_declarator(function)
    parameters = node.child_by_field_name("parameters") if node is not None else None
    return [] if parameters is None else [one for one in parameters.named_children if "parameter" in one.type]


def _run(state: State, node: Node) -> None:
    kind = node.type
    if kind in ("compound_statement", "case_statement", "preproc_else", "ERROR", "declaration_list"):
        _block(state, node)
    elif kind == "declaration":
        declare(state, node)
    elif kind == "expression_statement":
        for child in node.named_children:
            if child.type in ("identifier", "type_identifier"):
                # `SYNC;`: a macro, which may be anything.
                state.add(Call(state.step(child), said(state.text, child), False, (), ()))
            elif not declare_group(state, child):
                evaluate(state, child)
    elif kind == "if_statement":
        _branch(state, node)
    elif kind in _LOOPS:
        _loop(state, node)
    elif kind == "switch_statement":
        _switch(state, node)
    elif kind == "return_statement":
        for child in node.named_children[:1]:
            state.returned.append((evaluate(state, child), state.conditions))
    elif kind == "function_definition":
        # A macro before a block, `FOR_EACH(i, n) { … }`, looks like one.
        state.add(
            Call(state.step(node), said(state.text, node.child_by_field_name("declarator"))[:_TEXT], False, (), ())
        )
        run(state, node.child_by_field_name("body"))
    elif kind in ("preproc_if", "preproc_ifdef", "preproc_elif"):
        _alternatives(state, node)
    elif kind in ("attributed_statement", "labeled_statement", "else_clause"):
        run(state, node.named_children[-1] if node.named_children else None)
    elif kind.endswith("_expression"):
        evaluate(state, node)


def _block(state: State, node: Node) -> None:
    before = state.conditions
    for child in node.named_children:
        run(state, child)
    state.conditions = before


def _alternatives(state: State, node: Node) -> None:
    """`#if`: what each branch leaves behind may hold, whichever is built."""
    before = dict(state.names)
    alternative = node.child_by_field_name("alternative")
    which = state.number()
    arms, state.arms = state.arms, (*state.arms, (which, 0))
    for child in node.named_children:
        if child not in (alternative, node.child_by_field_name("condition"), node.child_by_field_name("name")):
            run(state, child)
    state.arms = arms
    after, state.names = state.names, dict(before)
    if alternative is not None:
        state.arms = (*arms, (which, 1))
        run(state, alternative)
        state.arms = arms
    _merge(state, after, ANYTHING)


def _branch(state: State, node: Node) -> None:
    condition = node.child_by_field_name("condition")
    if condition is None:
        return
    decision = decide(state, condition)
    positive = decision.condition(state.symbols)
    taken, other = node.child_by_field_name("consequence"), node.child_by_field_name("alternative")
    which = state.number()
    state.add(Branch(state.step(node), which, positive, _arms(node), _invariant(state, decision)))
    before = dict(state.names)
    # Threads that leave may have met the others at separate barriers.
    leaves = taken is not None and _leaves(taken)
    _arm(state, taken, replace(positive, thread=False) if leaves else positive, (which, 0))
    after, state.names = state.names, before
    if other is not None:
        _arm(state, other, decision.condition(state.symbols, negated=True), (which, 1))
    if leaves:
        # Who goes on has not been there.
        if other is None:
            state.require(decision.condition(state.symbols, negated=True, early=_ends(taken)))
        return
    if other is not None and _leaves(other):
        state.names = after
        state.require(decision.condition(state.symbols, early=_ends(other)))
        return
    tests = state.symbols.tried(decision.tests, decision.varies)
    _merge(state, after, _decides(decision.varies), tests)


def _arm(state: State, node: Node | None, condition: Condition, arm: tuple[int, int]) -> None:
    conditions, arms = state.conditions, state.arms
    state.require(condition)
    state.arms = (*arms, arm)
    run(state, node)
    state.conditions, state.arms = conditions, arms


def _arms(node: Node) -> int:
    """Count the arms of a chain that have a body."""
    count, current = 1, node.child_by_field_name("alternative")
    while current is not None:
        count += 1
        inner = current.named_children[-1] if current.named_children else None
        current = (
            inner.child_by_field_name("alternative") if inner is not None and inner.type == "if_statement" else None
        )
    return count


def _invariant(state: State, decision: Decision) -> bool:
    """True in a loop of a condition that nothing in the loop changes."""
    if not state.loops:
        return False
    symbols = _symbols(decision)
    inside = state.inside[-1] if state.inside else frozenset()
    return "data" not in decision.varies and not any(symbol in inside or "#" in symbol for symbol in symbols)


def _symbols(decision: Decision) -> set[str]:
    waiting, found = [decision.tests], set[str]()
    while waiting:
        tests = waiting.pop()
        if isinstance(tests, Several):
            waiting.extend(tests.tests)
        else:
            found.update(tests.difference.symbols())
    return found


def _decides(varies: Varies) -> Varies:
    """Return what a choice by this condition depends on."""
    return varies | {"lane"} if varies & {"data"} else varies


def _leaves(node: Node) -> bool:
    """Return True if no thread continues behind the branch."""
    return _last(node) in _LEAVES


def _ends(node: Node | None) -> bool:
    """Return True if threads end with the branch, so that no barrier waits for them."""
    return node is not None and _last(node) == "return_statement"


def _last(node: Node) -> str:
    while node.type in ("compound_statement", "else_clause") and node.named_children:
        node = node.named_children[-1]
    return node.type


def _merge(state: State, other: Mapping[str, Value], decides: Varies, tests: Test | Several | None = None) -> None:
    """Names that two branches have left behind differently may be either: of `tests`, if they are known, that of the
    `other` branch where they hold."""
    names = state.names
    for name, value in other.items():
        mine = names.get(name)
        if mine is not None and mine is not value:
            names[name] = state.symbols.join(value, mine, decides, tests)
        elif mine is None:
            names[name] = value


def _switch(state: State, node: Node) -> None:
    condition = node.child_by_field_name("condition")
    body = node.child_by_field_name("body")
    if condition is None or body is None:
        return
    decision = decide(state, condition)
    chosen = decision.condition(state.symbols)
    cases = [child for child in body.named_children if child.type == "case_statement"]
    which = state.number()
    state.add(Branch(state.step(node), which, replace(chosen, single=False, modulo=False), len(cases), False))
    before = dict(state.names)
    for arm, case in enumerate(cases):
        known = dict(before)
        after, state.names = state.names, known
        _arm(state, case, replace(chosen, single=False, modulo=False, tests=None), (which, arm))
        _merge(state, after, ANYTHING)


def _loop(state: State, node: Node) -> None:
    _run_initializer(state, node)
    # What is a place in memory stays where it is.
    changed = {name: how for name, how in state.changes(node).items() if name not in state.places}
    which, line = state.number(), line_of(node)
    counter = f"loop:{line}"
    entry = dict(state.names)
    for name, how in changed.items():
        if name in state.names:
            state.names[name] = _at_head(state, name, how, changed, entry, counter)
    starts = {name: state.names[name] for name in changed if name in entry}
    if node.type == "for_range_loop":
        found = declarator(state.text, node.child_by_field_name("declarator"))
        if found is not None:
            state.names[found.name] = state.symbols.fresh(found.name, ANYTHING)
    own = frozenset({counter, *_new_symbols(state, changed, entry)})
    loops, state.loops = state.loops, (*state.loops, which)
    state.inside.append(own)
    condition_node = node.child_by_field_name("condition")
    before_it = node.type != "do_statement"
    condition = _holds(state, condition_node) if before_it else None
    body = node.child_by_field_name("body")
    first = len(state.events)
    head = state.step(node)
    before = state.conditions
    if condition is not None:
        state.require(condition)
    run(state, body)
    if node.type == "for_statement":
        evaluate_update = node.child_by_field_name("update")
        if evaluate_update is not None:
            evaluate(state, evaluate_update)
    for name, start in starts.items():
        state.symbols.turned(start, state.names[name])
    state.conditions = before
    if not before_it:
        condition = _holds(state, condition_node)
    innermost = not any(isinstance(event, Loop) for event in state.events[first:])
    state.loops = loops
    state.inside.pop()
    text = said(state.text, condition_node)[:_TEXT]
    state.add(Loop(head, which, text, _count(state, node, entry, changed), innermost, condition))
    varies = condition.varies if condition is not None else UNIFORM
    for name in changed:
        if name in entry:
            state.names[name] = _after(state, entry[name], state.names[name], varies)


def _holds(state: State, node: Node | None) -> Condition | None:
    """Return the condition that holds as long as a loop goes on."""
    return decide(state, node).condition(state.symbols) if node is not None else None


def _run_initializer(state: State, node: Node) -> None:
    initializer = node.child_by_field_name("initializer")
    if initializer is not None:
        run(state, initializer)


def _at_head(
    state: State,
    name: str,
    how: list[Change],
    changed: Mapping[str, list[Change]],
    entry: Mapping[str, Value],
    counter: str,
) -> Value:
    """Return the value of a name at the start of any turn."""
    before = entry[name]
    if isinstance(before, Group):
        return before
    offset = before.offset if isinstance(before, Pointer) else before
    kind = "*" if isinstance(before, Pointer) else ""
    steps = [_step_of(state, change, changed) for change in how]
    new: Polynomial
    if all(step is not None for step in steps):
        uniform = [step for step in steps if step is not None and not state.symbols.of(step) & {"lane", "data"}]
        if len(uniform) == len(steps):
            if len(steps) == 1 and how[0].once:
                new = offset + uniform[0] * state.symbols.same(counter, UNIFORM)
            else:
                varies = UNIFORM.union(*(state.symbols.of(step) for step in uniform))
                conditional = UNIFORM if all(change.once for change in how) else ANYTHING
                new = offset + state.symbols.turning(f"{counter}:{kind}{name}", varies | conditional, ZERO)
            if new.fits:
                return replace(before, offset=new) if isinstance(before, Pointer) else new
    varies = state.symbols.of(offset)
    for change in how:
        varies |= _varies_of(state, change, changed)
    unknown = state.symbols.turning(f"{counter}:{kind}{name}", varies, offset)
    return replace(before, offset=unknown) if isinstance(before, Pointer) else unknown


def _step_of(state: State, change: Change, changed: Mapping[str, list[Change]]) -> Polynomial | None:
    if change.one:
        return number(change.sign)
    if change.by is None or loads(change.by) or identifiers(state.text, change.by) & set(changed):
        return None
    value = evaluate(state, change.by)
    if not isinstance(value, Polynomial):
        return None
    return value if change.sign == 1 else ZERO - value


def _varies_of(state: State, change: Change, changed: Mapping[str, list[Change]]) -> Varies:
    """Return what a value assigned in a loop may depend on: everything that its expression names."""
    if change.one:
        return UNIFORM
    node = change.value if change.value is not None else change.by
    if node is None or not change.once or loads(node):
        return ANYTHING
    varies = UNIFORM
    for name in identifiers(state.text, node):
        if name in ("threadIdx", "blockIdx"):
            return ANYTHING
        value = state.names.get(name)
        if value is not None:
            varies |= state.symbols.of(value)
        if name in changed and any(loads(one.value) for one in changed[name] if one.value is not None):
            return ANYTHING
    return varies


def _new_symbols(state: State, changed: Mapping[str, list[Change]], entry: Mapping[str, Value]) -> set[str]:
    found: set[str] = set()
    for name in changed:
        value = state.names.get(name)
        if value is not None and not isinstance(value, Group) and value is not entry.get(name):
            offset = value.offset if isinstance(value, Pointer) else value
            found.update(symbol for symbol in offset.symbols() if symbol.startswith("loop:"))
    return found


def _count(state: State, node: Node, entry: Mapping[str, Value], changed: Mapping[str, list[Change]]) -> int | None:
    """Return the number of turns of `for (int i = a; i < b; i += c)`, if that is constant."""
    condition = node.child_by_field_name("condition")
    if node.type != "for_statement" or condition is None or condition.type != "binary_expression":
        return None
    left, sign = condition.children[0], condition.children[1].type
    first = entry.get(said(state.text, left))
    how = changed.get(said(state.text, left), [])
    if sign not in ("<", "<=") or not isinstance(first, Polynomial) or len(how) != 1:
        return None
    step = _step_of(state, how[0], changed)
    last = fold(said(state.text, condition.children[2]), state.constants)
    if step is None or last is None or first.constant is None or not step.constant or step.constant < 0:
        return None
    length = last - first.constant + (1 if sign == "<=" else 0)
    return max(0, -(-length // step.constant))


def _after(state: State, before: Value, inside: Value, varies: Varies) -> Value:
    """Return the value of a name behind a loop, after a number of turns that may differ between threads."""
    if isinstance(inside, Polynomial) and isinstance(before, Polynomial):
        known = state.symbols.of(inside)
        slope = state.symbols.lane_slope(inside)
        if slope is not None and "lane" not in varies and "data" not in varies:
            return slope * named("threadIdx.x") + state.symbols.fresh("after", (known | varies) - {"lane"})
        return state.symbols.fresh("after", known | varies)
    if isinstance(inside, Pointer):
        return replace(inside, offset=state.symbols.fresh("after", state.symbols.of(inside) | varies | {"lane"}))
    return inside

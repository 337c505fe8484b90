"""Read a kernel's body, statement by statement, as one thread executes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tree_sitter import Node

from frx_graph.evidence.cuda.assignments import Change, collect_identifiers, has_load
from frx_graph.evidence.cuda.concrete import Test, TestGroup, iterate_tests
from frx_graph.evidence.cuda.conditions import Decision, read_condition
from frx_graph.evidence.cuda.constants import fold_constant
from frx_graph.evidence.cuda.declarations import declare, declare_group
from frx_graph.evidence.cuda.declarators import parse_declarator, read_element_type
from frx_graph.evidence.cuda.polynomial import ZERO, Polynomial, make_constant, make_symbol
from frx_graph.evidence.cuda.source import Branch, Condition, Loop
from frx_graph.evidence.cuda.state import DEEPEST, State, evaluate
from frx_graph.evidence.cuda.syntax import get_line, get_text, list_parameters
from frx_graph.evidence.cuda.values import (
    ANYTHING,
    UNIFORM,
    Group,
    Pointer,
    Value,
    Varies,
    get_offset,
    make_unknown_pointer,
)

_LEAVES = frozenset(["return_statement", "continue_statement", "break_statement"])
_TEXT = 120


def run_statement(state: State, node: Node | None) -> None:
    """Read a statement, and skip it if it is not understood."""
    if node is None or state.depth >= DEEPEST:
        return
    state.depth += 1
    if state.through:
        state.inlining.left -= 1
    _dispatch_statement(state, node)
    state.depth -= 1


def inline_function(state: State, function: Node, values: list[Value]) -> Value | None:
    """Run a device function with these values, as if its body were at the call, and return its result."""
    body, listed = function.child_by_field_name("body"), list_parameters(function)
    if body is None or len(listed) != len(values):
        return None
    outer, conditions, outside, places, own = state.names, state.conditions, state.returned, state.places, state.body
    state.names, state.returned, state.places, state.body = {}, [], set(), body
    for node, value in zip(listed, values, strict=True):
        found = parse_declarator(state.text, node.child_by_field_name("declarator"))
        if found is not None:
            if found.pointers and not isinstance(value, Pointer):
                value = make_unknown_pointer(read_element_type(state.text, node))
            if isinstance(value, Pointer) and any(get_text(state.text, child) == "volatile" for child in node.children):
                value = replace(value, base=replace(value.base, volatile=True))
            state.names[found.name] = value
    run_statement(state, body)
    returned = state.returned
    state.names, state.conditions, state.returned, state.places, state.body = outer, conditions, outside, places, own
    if not returned:
        return ZERO
    result = returned[0][0]
    decides = UNIFORM.union(*(one.varies for _, below in returned for one in below[len(conditions) :]))
    for other, _ in returned[1:]:
        result = state.symbols.join_values(result, other, decides)
    return result


def _dispatch_statement(state: State, node: Node) -> None:
    match node.type:
        case "compound_statement" | "case_statement" | "preproc_else" | "ERROR" | "declaration_list":
            before = state.conditions
            for child in node.named_children:
                run_statement(state, child)
            state.conditions = before
        case "declaration":
            declare(state, node)
        case "expression_statement":
            for child in node.named_children:
                if child.type in ("identifier", "type_identifier"):
                    # `SYNC;`: an unknown macro.
                    state.add_call(child, get_text(state.text, child))
                elif not declare_group(state, child):
                    evaluate(state, child)
        case "if_statement":
            _run_if(state, node)
        case "for_statement" | "while_statement" | "do_statement" | "for_range_loop":
            _run_loop(state, node)
        case "switch_statement":
            _run_switch(state, node)
        case "return_statement":
            for child in node.named_children[:1]:
                state.returned.append((evaluate(state, child), state.conditions))
        case "function_definition":
            # A macro before a block, `FOR_EACH(i, n) { … }`, looks like one. It may be a loop, or not.
            state.add_call(node, get_text(state.text, node.child_by_field_name("declarator"))[:_TEXT])
            loops, state.loops = state.loops, (*state.loops, state.take_number())
            run_statement(state, node.child_by_field_name("body"))
            state.loops = loops
        case "preproc_if" | "preproc_ifdef" | "preproc_elif":
            _run_preprocessor_branches(state, node)
        case "attributed_statement" | "labeled_statement" | "else_clause":
            run_statement(state, next(reversed(node.named_children), None))
        case kind if kind.endswith("_expression"):
            evaluate(state, node)


def _run_preprocessor_branches(state: State, node: Node) -> None:
    """Read an `#if`: the results of each branch may hold, since the build decides."""
    before, arms, which = dict(state.names), state.arms, state.take_number()
    alternative, *read = map(node.child_by_field_name, ("alternative", "condition", "name"))
    state.arms = (*arms, (which, 0))
    for child in node.named_children:
        if child != alternative and child not in read:
            run_statement(state, child)
    after, state.names = state.names, before
    state.arms = (*arms, (which, 1))
    run_statement(state, alternative)
    state.arms = arms
    _merge(state, after, ANYTHING)


def _run_if(state: State, node: Node) -> None:
    condition = node.child_by_field_name("condition")
    if condition is None:
        return
    decision = read_condition(state, condition)
    make_condition = partial(decision.make_condition, state.symbols)
    positive = make_condition()
    taken, other = node.child_by_field_name("consequence"), node.child_by_field_name("alternative")
    last, other_last = _get_last_type(taken), _get_last_type(other)
    which = state.take_number()
    state.add_event(Branch(state.make_step(node), which, positive, _count_arms(node), _is_invariant(state, decision)))
    before = dict(state.names)
    # Threads that leave may have met the others at separate barriers.
    leaves = last in _LEAVES
    _run_arm(state, taken, replace(positive, thread=False) if leaves else positive, (which, 0))
    after, state.names = state.names, before
    if other is not None:
        _run_arm(state, other, make_condition(negated=True), (which, 1))
    if leaves:
        # Threads that continue have not been there.
        if other is None:
            state.require_condition(make_condition(negated=True, early=last == "return_statement"))
    elif other_last in _LEAVES:
        state.names = after
        state.require_condition(make_condition(early=other_last == "return_statement"))
    else:
        varies = decision.varies
        tests = state.symbols.filter_tests(decision.tests, varies)
        _merge(state, after, varies | {"lane"} if "data" in varies else varies, tests)


def _run_arm(state: State, node: Node | None, condition: Condition, arm: tuple[int, int]) -> None:
    conditions, arms = state.conditions, state.arms
    state.require_condition(condition)
    state.arms = (*arms, arm)
    run_statement(state, node)
    state.conditions, state.arms = conditions, arms


def _count_arms(node: Node | None) -> int:
    """Count the arms of a chain that have a body."""
    count = 1
    while node is not None and (other := node.child_by_field_name("alternative")) is not None:
        count += 1
        node = next(reversed(other.named_children), None)
    return count


def _is_invariant(state: State, decision: Decision) -> bool:
    """Return True for a condition in a loop that nothing in the loop changes."""
    symbols = {one for test in iterate_tests(decision.tests) for one in test.difference.iterate_symbols()}
    constant = "data" not in decision.varies and not any("#" in symbol for symbol in symbols)
    return bool(state.inside) and constant and symbols.isdisjoint(state.inside[-1])


def _get_last_type(node: Node | None) -> str:
    """Return the type of the last statement of a branch: one of `_LEAVES` if no thread continues after it."""
    while node is not None and node.type in ("compound_statement", "else_clause") and node.named_children:
        node = node.named_children[-1]
    return "" if node is None else node.type


def _merge(state: State, other: Mapping[str, Value], decides: Varies, tests: Test | TestGroup | None = None) -> None:
    """Merge names with different values after two branches; those of the `other` one hold where the `tests` do."""
    for name, value in other.items():
        mine = state.names.setdefault(name, value)
        if mine is not value:
            state.names[name] = state.symbols.join_values(value, mine, decides, tests)


def _run_switch(state: State, node: Node) -> None:
    condition = node.child_by_field_name("condition")
    body = node.child_by_field_name("body")
    if condition is None or body is None:
        return
    chosen = replace(read_condition(state, condition).make_condition(state.symbols), single=False, modulo=False)
    cases = [child for child in body.named_children if child.type == "case_statement"]
    which = state.take_number()
    state.add_event(Branch(state.make_step(node), which, chosen, len(cases), False))
    before = dict(state.names)
    for arm, case in enumerate(cases):
        after, state.names = state.names, dict(before)
        _run_arm(state, case, replace(chosen, tests=None), (which, arm))
        _merge(state, after, ANYTHING)


def _run_loop(state: State, node: Node) -> None:
    run_statement(state, node.child_by_field_name("initializer"))
    # A place in memory stays the same.
    changed = {name: how for name, how in state.find_loop_changes(node).items() if name not in state.places}
    which, counter = state.take_number(), f"loop:{get_line(node)}"
    entry = dict(state.names)
    known = [name for name in changed if name in entry]
    for name in known:
        state.names[name] = _compute_head_value(state, name, changed, entry, counter)
    starts = {name: state.names[name] for name in known}
    if node.type == "for_range_loop":
        found = parse_declarator(state.text, node.child_by_field_name("declarator"))
        if found is not None:
            state.names[found.name] = state.symbols.create_symbol(found.name, ANYTHING)
    symbols = (
        symbol
        for name in known
        for symbol in get_offset(state.names[name]).iterate_symbols()
        if symbol.startswith("loop:") and state.names[name] is not entry[name]
    )
    state.inside.append(frozenset({counter, *symbols}))
    loops, state.loops = state.loops, (*state.loops, which)
    condition_node = node.child_by_field_name("condition")
    condition = _read_loop_condition(state, condition_node) if node.type != "do_statement" else None
    first, head, before = len(state.events), state.make_step(node), state.conditions
    if condition is not None:
        state.require_condition(condition)
    run_statement(state, node.child_by_field_name("body"))
    update = node.child_by_field_name("update")
    if node.type == "for_statement" and update is not None:
        evaluate(state, update)
    for name, start in starts.items():
        state.symbols.note_next_value(start, state.names[name])
    state.conditions = before
    if node.type == "do_statement":
        condition = _read_loop_condition(state, condition_node)
    innermost = not any(isinstance(event, Loop) for event in state.events[first:])
    state.loops = loops
    state.inside.pop()
    text = get_text(state.text, condition_node)[:_TEXT]
    state.add_event(Loop(head, which, text, _count_turns(state, node, entry, changed), innermost, condition))
    varies = condition.varies if condition is not None else UNIFORM
    for name in known:
        state.names[name] = _compute_exit_value(state, entry[name], state.names[name], varies)


def _read_loop_condition(state: State, node: Node | None) -> Condition | None:
    """Return the condition under which a loop continues."""
    return read_condition(state, node).make_condition(state.symbols) if node is not None else None


def _compute_head_value(
    state: State, name: str, changed: Mapping[str, list[Change]], entry: Mapping[str, Value], counter: str
) -> Value:
    """Return the value of a name at the start of any iteration."""
    before, how, symbols = entry[name], changed[name], state.symbols
    if isinstance(before, Group):
        return before
    offset = get_offset(before)
    hint = f"{counter}:*{name}" if isinstance(before, Pointer) else f"{counter}:{name}"
    steps = [_evaluate_step(state, change, changed) for change in how]
    uniform = [step for step in steps if step is not None and not symbols.get_varies(step) & {"lane", "data"}]
    new: Polynomial | None = None
    if len(uniform) == len(steps) == 1 and how[0].once:
        new = offset + uniform[0] * symbols.get_symbol(counter, UNIFORM)
    elif len(uniform) == len(steps):
        varies = UNIFORM if all(change.once for change in how) else ANYTHING
        varies = varies.union(*map(symbols.get_varies, uniform))
        new = offset + symbols.create_loop_symbol(hint, varies, ZERO)
    if new is None or not new.fits:
        varies = symbols.get_varies(offset).union(*(_collect_change_varies(state, one, changed) for one in how))
        new = symbols.create_loop_symbol(hint, varies, offset)
    return replace(before, offset=new) if isinstance(before, Pointer) else new


def _evaluate_step(state: State, change: Change, changed: Mapping[str, list[Change]]) -> Polynomial | None:
    if change.one:
        return make_constant(change.sign)
    if change.by is None or has_load(change.by) or collect_identifiers(state.text, change.by) & set(changed):
        return None
    value = evaluate(state, change.by)
    if not isinstance(value, Polynomial):
        return None
    return value if change.sign == 1 else ZERO - value


def _collect_change_varies(state: State, change: Change, changed: Mapping[str, list[Change]]) -> Varies:
    """Return the dependencies of a value assigned in a loop: everything that its expression names."""
    if change.one:
        return UNIFORM
    node = change.value if change.value is not None else change.by
    if node is None or not change.once or has_load(node):
        return ANYTHING
    varies = UNIFORM
    for name in collect_identifiers(state.text, node):
        if name in ("threadIdx", "blockIdx") or any(one.value and has_load(one.value) for one in changed.get(name, ())):
            return ANYTHING
        if name in state.names:
            varies |= state.symbols.get_varies(state.names[name])
    return varies


def _count_turns(
    state: State, node: Node, entry: Mapping[str, Value], changed: Mapping[str, list[Change]]
) -> int | None:
    """Return the number of iterations of `for (int i = a; i < b; i += c)`, if that is constant."""
    condition = node.child_by_field_name("condition")
    if node.type != "for_statement" or condition is None or condition.type != "binary_expression":
        return None
    left, sign = condition.children[0], condition.children[1].type
    first = entry.get(get_text(state.text, left))
    how = changed.get(get_text(state.text, left), [])
    if sign not in ("<", "<=") or not isinstance(first, Polynomial) or len(how) != 1:
        return None
    step = _evaluate_step(state, how[0], changed)
    last = fold_constant(get_text(state.text, condition.children[2]), state.constants)
    if step is None or last is None or first.constant is None or not step.constant or step.constant < 0:
        return None
    return max(0, -(-(last - first.constant + (sign == "<=")) // step.constant))


def _compute_exit_value(state: State, before: Value, inside: Value, varies: Varies) -> Value:
    """Return the value of a name after a loop with a number of iterations that may differ between threads."""
    together = varies | state.symbols.get_varies(inside)
    if isinstance(inside, Pointer):
        return replace(inside, offset=state.symbols.create_symbol("after", together | {"lane"}))
    if not isinstance(inside, Polynomial) or not isinstance(before, Polynomial):
        return inside
    slope = state.symbols.compute_lane_slope(inside)
    if slope is not None and varies.isdisjoint({"lane", "data"}):
        return slope * make_symbol("threadIdx.x") + state.symbols.create_symbol("after", together - {"lane"})
    return state.symbols.create_symbol("after", together)

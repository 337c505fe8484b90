"""Read a kernel's body, statement by statement, as one thread executes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tree_sitter import Node

from frx_graph.evidence.cuda.assignments import Change, collect_identifiers, has_load
from frx_graph.evidence.cuda.concrete import Test, TestGroup
from frx_graph.evidence.cuda.conditions import Decision, read_condition
from frx_graph.evidence.cuda.constants import fold_constant
from frx_graph.evidence.cuda.declarations import declare, declare_group, parse_declarator, read_element_type
from frx_graph.evidence.cuda.polynomial import ZERO, Polynomial, make_constant, make_symbol
from frx_graph.evidence.cuda.source import Branch, Call, Condition, Loop
from frx_graph.evidence.cuda.state import DEEPEST, State, evaluate
from frx_graph.evidence.cuda.syntax import find_function_declarator, get_line, get_text
from frx_graph.evidence.cuda.values import ANYTHING, UNIFORM, Group, Pointer, Value, Varies, make_unknown_pointer

_LEAVES = frozenset(["return_statement", "continue_statement", "break_statement"])
_LOOPS = frozenset(["for_statement", "while_statement", "do_statement", "for_range_loop"])
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
    body = function.child_by_field_name("body")
    listed = _get_parameter_nodes(function)
    if body is None or len(listed) != len(values):
        return None
    outer, conditions, outside, places = state.names, state.conditions, state.returned, state.places
    state.names, state.returned, state.places = {}, [], set()
    state.body, own = body, state.body
    for node, value in zip(listed, values, strict=True):
        found = parse_declarator(state.text, node.child_by_field_name("declarator"))
        if found is not None:
            kept = value
            if found.pointers and not isinstance(value, Pointer):
                kept = make_unknown_pointer(read_element_type(state.text, node))
            if isinstance(kept, Pointer) and "volatile" in {get_text(state.text, child) for child in node.children}:
                kept = replace(kept, base=replace(kept.base, volatile=True))
            state.names[found.name] = kept
    run_statement(state, body)
    found_values, state.returned, state.names, state.places = state.returned, outside, outer, places
    state.body = own
    state.conditions = conditions
    if not found_values:
        return ZERO
    result = found_values[0][0]
    decides = UNIFORM.union(*(one.varies for _, below in found_values for one in below[len(conditions) :]))
    for other, _ in found_values[1:]:
        result = state.symbols.join_values(result, other, decides)
    return result


def _get_parameter_nodes(function: Node) -> list[Node]:
    node = find_function_declarator(function)
    parameters = node.child_by_field_name("parameters") if node is not None else None
    return [] if parameters is None else [one for one in parameters.named_children if "parameter" in one.type]


def _dispatch_statement(state: State, node: Node) -> None:
    kind = node.type
    if kind in ("compound_statement", "case_statement", "preproc_else", "ERROR", "declaration_list"):
        _run_block(state, node)
    elif kind == "declaration":
        declare(state, node)
    elif kind == "expression_statement":
        for child in node.named_children:
            if child.type in ("identifier", "type_identifier"):
                # `SYNC;`: an unknown macro.
                state.add_event(Call(state.make_step(child), get_text(state.text, child), False, (), ()))
            elif not declare_group(state, child):
                evaluate(state, child)
    elif kind == "if_statement":
        _run_if(state, node)
    elif kind in _LOOPS:
        _run_loop(state, node)
    elif kind == "switch_statement":
        _run_switch(state, node)
    elif kind == "return_statement":
        for child in node.named_children[:1]:
            state.returned.append((evaluate(state, child), state.conditions))
    elif kind == "function_definition":
        # A macro before a block, `FOR_EACH(i, n) { … }`, looks like one.
        state.add_event(
            Call(
                state.make_step(node),
                get_text(state.text, node.child_by_field_name("declarator"))[:_TEXT],
                False,
                (),
                (),
            )
        )
        run_statement(state, node.child_by_field_name("body"))
    elif kind in ("preproc_if", "preproc_ifdef", "preproc_elif"):
        _run_preprocessor_branches(state, node)
    elif kind in ("attributed_statement", "labeled_statement", "else_clause"):
        run_statement(state, node.named_children[-1] if node.named_children else None)
    elif kind.endswith("_expression"):
        evaluate(state, node)


def _run_block(state: State, node: Node) -> None:
    before = state.conditions
    for child in node.named_children:
        run_statement(state, child)
    state.conditions = before


def _run_preprocessor_branches(state: State, node: Node) -> None:
    """Read an `#if`: the results of each branch may hold, since the build decides."""
    before = dict(state.names)
    alternative = node.child_by_field_name("alternative")
    which = state.take_number()
    arms, state.arms = state.arms, (*state.arms, (which, 0))
    for child in node.named_children:
        if child not in (alternative, node.child_by_field_name("condition"), node.child_by_field_name("name")):
            run_statement(state, child)
    state.arms = arms
    after, state.names = state.names, dict(before)
    if alternative is not None:
        state.arms = (*arms, (which, 1))
        run_statement(state, alternative)
        state.arms = arms
    _merge(state, after, ANYTHING)


def _run_if(state: State, node: Node) -> None:
    condition = node.child_by_field_name("condition")
    if condition is None:
        return
    decision = read_condition(state, condition)
    positive = decision.make_condition(state.symbols)
    taken, other = node.child_by_field_name("consequence"), node.child_by_field_name("alternative")
    which = state.take_number()
    state.add_event(Branch(state.make_step(node), which, positive, _count_arms(node), _is_invariant(state, decision)))
    before = dict(state.names)
    # Threads that leave may have met the others at separate barriers.
    leaves = taken is not None and _is_leaving(taken)
    _run_arm(state, taken, replace(positive, thread=False) if leaves else positive, (which, 0))
    after, state.names = state.names, before
    if other is not None:
        _run_arm(state, other, decision.make_condition(state.symbols, negated=True), (which, 1))
    if leaves:
        # Threads that continue have not been there.
        if other is None:
            state.require_condition(decision.make_condition(state.symbols, negated=True, early=_is_returning(taken)))
        return
    if other is not None and _is_leaving(other):
        state.names = after
        state.require_condition(decision.make_condition(state.symbols, early=_is_returning(other)))
        return
    tests = state.symbols.filter_tests(decision.tests, decision.varies)
    _merge(state, after, _get_choice_varies(decision.varies), tests)


def _run_arm(state: State, node: Node | None, condition: Condition, arm: tuple[int, int]) -> None:
    conditions, arms = state.conditions, state.arms
    state.require_condition(condition)
    state.arms = (*arms, arm)
    run_statement(state, node)
    state.conditions, state.arms = conditions, arms


def _count_arms(node: Node) -> int:
    """Count the arms of a chain that have a body."""
    count, current = 1, node.child_by_field_name("alternative")
    while current is not None:
        count += 1
        inner = current.named_children[-1] if current.named_children else None
        current = (
            inner.child_by_field_name("alternative") if inner is not None and inner.type == "if_statement" else None
        )
    return count


def _is_invariant(state: State, decision: Decision) -> bool:
    """Return True for a condition in a loop that nothing in the loop changes."""
    if not state.loops:
        return False
    symbols = _collect_symbols(decision)
    inside = state.inside[-1] if state.inside else frozenset()
    return "data" not in decision.varies and not any(symbol in inside or "#" in symbol for symbol in symbols)


def _collect_symbols(decision: Decision) -> set[str]:
    waiting, found = [decision.tests], set[str]()
    while waiting:
        tests = waiting.pop()
        if isinstance(tests, TestGroup):
            waiting.extend(tests.tests)
        else:
            found.update(tests.difference.iterate_symbols())
    return found


def _get_choice_varies(varies: Varies) -> Varies:
    """Return the dependencies of a choice by this condition."""
    return varies | {"lane"} if varies & {"data"} else varies


def _is_leaving(node: Node) -> bool:
    """Return True if no thread continues after the branch."""
    return _get_last_type(node) in _LEAVES


def _is_returning(node: Node | None) -> bool:
    """Return True if threads end with the branch, so that no barrier waits for them."""
    return node is not None and _get_last_type(node) == "return_statement"


def _get_last_type(node: Node) -> str:
    while node.type in ("compound_statement", "else_clause") and node.named_children:
        node = node.named_children[-1]
    return node.type


def _merge(state: State, other: Mapping[str, Value], decides: Varies, tests: Test | TestGroup | None = None) -> None:
    """Merge names that two branches have left with different values. If their `tests` are known, the value of the
    `other` branch holds where they do."""
    names = state.names
    for name, value in other.items():
        mine = names.get(name)
        if mine is not None and mine is not value:
            names[name] = state.symbols.join_values(value, mine, decides, tests)
        elif mine is None:
            names[name] = value


def _run_switch(state: State, node: Node) -> None:
    condition = node.child_by_field_name("condition")
    body = node.child_by_field_name("body")
    if condition is None or body is None:
        return
    decision = read_condition(state, condition)
    chosen = decision.make_condition(state.symbols)
    cases = [child for child in body.named_children if child.type == "case_statement"]
    which = state.take_number()
    state.add_event(
        Branch(state.make_step(node), which, replace(chosen, single=False, modulo=False), len(cases), False)
    )
    before = dict(state.names)
    for arm, case in enumerate(cases):
        known = dict(before)
        after, state.names = state.names, known
        _run_arm(state, case, replace(chosen, single=False, modulo=False, tests=None), (which, arm))
        _merge(state, after, ANYTHING)


def _run_loop(state: State, node: Node) -> None:
    _run_initializer(state, node)
    # A place in memory stays the same.
    changed = {name: how for name, how in state.find_loop_changes(node).items() if name not in state.places}
    which, line = state.take_number(), get_line(node)
    counter = f"loop:{line}"
    entry = dict(state.names)
    for name, how in changed.items():
        if name in state.names:
            state.names[name] = _compute_head_value(state, name, how, changed, entry, counter)
    starts = {name: state.names[name] for name in changed if name in entry}
    if node.type == "for_range_loop":
        found = parse_declarator(state.text, node.child_by_field_name("declarator"))
        if found is not None:
            state.names[found.name] = state.symbols.create_symbol(found.name, ANYTHING)
    own = frozenset({counter, *_collect_loop_symbols(state, changed, entry)})
    loops, state.loops = state.loops, (*state.loops, which)
    state.inside.append(own)
    condition_node = node.child_by_field_name("condition")
    before_it = node.type != "do_statement"
    condition = _read_loop_condition(state, condition_node) if before_it else None
    body = node.child_by_field_name("body")
    first = len(state.events)
    head = state.make_step(node)
    before = state.conditions
    if condition is not None:
        state.require_condition(condition)
    run_statement(state, body)
    if node.type == "for_statement":
        evaluate_update = node.child_by_field_name("update")
        if evaluate_update is not None:
            evaluate(state, evaluate_update)
    for name, start in starts.items():
        state.symbols.note_next_value(start, state.names[name])
    state.conditions = before
    if not before_it:
        condition = _read_loop_condition(state, condition_node)
    innermost = not any(isinstance(event, Loop) for event in state.events[first:])
    state.loops = loops
    state.inside.pop()
    text = get_text(state.text, condition_node)[:_TEXT]
    state.add_event(Loop(head, which, text, _count_turns(state, node, entry, changed), innermost, condition))
    varies = condition.varies if condition is not None else UNIFORM
    for name in changed:
        if name in entry:
            state.names[name] = _compute_exit_value(state, entry[name], state.names[name], varies)


def _read_loop_condition(state: State, node: Node | None) -> Condition | None:
    """Return the condition under which a loop continues."""
    return read_condition(state, node).make_condition(state.symbols) if node is not None else None


def _run_initializer(state: State, node: Node) -> None:
    initializer = node.child_by_field_name("initializer")
    if initializer is not None:
        run_statement(state, initializer)


def _compute_head_value(
    state: State,
    name: str,
    how: list[Change],
    changed: Mapping[str, list[Change]],
    entry: Mapping[str, Value],
    counter: str,
) -> Value:
    """Return the value of a name at the start of any iteration."""
    before = entry[name]
    if isinstance(before, Group):
        return before
    offset = before.offset if isinstance(before, Pointer) else before
    kind = "*" if isinstance(before, Pointer) else ""
    steps = [_evaluate_step(state, change, changed) for change in how]
    new: Polynomial
    if all(step is not None for step in steps):
        uniform = [step for step in steps if step is not None and not state.symbols.get_varies(step) & {"lane", "data"}]
        if len(uniform) == len(steps):
            if len(steps) == 1 and how[0].once:
                new = offset + uniform[0] * state.symbols.get_symbol(counter, UNIFORM)
            else:
                varies = UNIFORM.union(*(state.symbols.get_varies(step) for step in uniform))
                conditional = UNIFORM if all(change.once for change in how) else ANYTHING
                new = offset + state.symbols.create_loop_symbol(f"{counter}:{kind}{name}", varies | conditional, ZERO)
            if new.fits:
                return replace(before, offset=new) if isinstance(before, Pointer) else new
    varies = state.symbols.get_varies(offset)
    for change in how:
        varies |= _collect_change_varies(state, change, changed)
    unknown = state.symbols.create_loop_symbol(f"{counter}:{kind}{name}", varies, offset)
    return replace(before, offset=unknown) if isinstance(before, Pointer) else unknown


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
        if name in ("threadIdx", "blockIdx"):
            return ANYTHING
        value = state.names.get(name)
        if value is not None:
            varies |= state.symbols.get_varies(value)
        if name in changed and any(has_load(one.value) for one in changed[name] if one.value is not None):
            return ANYTHING
    return varies


def _collect_loop_symbols(state: State, changed: Mapping[str, list[Change]], entry: Mapping[str, Value]) -> set[str]:
    found: set[str] = set()
    for name in changed:
        value = state.names.get(name)
        if value is not None and not isinstance(value, Group) and value is not entry.get(name):
            offset = value.offset if isinstance(value, Pointer) else value
            found.update(symbol for symbol in offset.iterate_symbols() if symbol.startswith("loop:"))
    return found


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
    length = last - first.constant + (1 if sign == "<=" else 0)
    return max(0, -(-length // step.constant))


def _compute_exit_value(state: State, before: Value, inside: Value, varies: Varies) -> Value:
    """Return the value of a name after a loop with a number of iterations that may differ between threads."""
    if isinstance(inside, Polynomial) and isinstance(before, Polynomial):
        known = state.symbols.get_varies(inside)
        slope = state.symbols.compute_lane_slope(inside)
        if slope is not None and "lane" not in varies and "data" not in varies:
            return slope * make_symbol("threadIdx.x") + state.symbols.create_symbol(
                "after", (known | varies) - {"lane"}
            )
        return state.symbols.create_symbol("after", known | varies)
    if isinstance(inside, Pointer):
        return replace(
            inside, offset=state.symbols.create_symbol("after", state.symbols.get_varies(inside) | varies | {"lane"})
        )
    return inside

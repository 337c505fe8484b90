"""Read calls: barriers, shuffles, atomics, cooperative groups, functions of the file, and unknown ones."""

from __future__ import annotations

import re

from tree_sitter import Node

from frx_graph.evidence.cuda import calls
from frx_graph.evidence.cuda.constants import TYPE_BYTES, fold_constant
from frx_graph.evidence.cuda.operators import WAITING
from frx_graph.evidence.cuda.places import cast_value, load_value
from frx_graph.evidence.cuda.polynomial import ZERO, Polynomial, make_constant, make_symbol
from frx_graph.evidence.cuda.source import Barrier, BarrierKind, Space, Use, WarpOperation
from frx_graph.evidence.cuda.state import MOST_INLINED, State, evaluate
from frx_graph.evidence.cuda.syntax import get_text, walk
from frx_graph.evidence.cuda.values import ANYTHING, UNIFORM, WARP, Base, Group, Pointer, Value, divide_numbers

_FULL_MASKS = frozenset(["0xffffffff", "0xffffffffu", "0xfffffffful", "~0", "~0u", "-1", "full_mask", "warp_mask"])

_GROUP = re.compile(r"this_(?:thread_block|grid|cluster|multi_grid)|(?:tiled|binary)_partition|coalesced_threads")


def evaluate_call(state: State, node: Node) -> Value:
    """Read a call: of a known name, of a function of the file, or of anything else."""
    function, listed = node.child_by_field_name("function"), node.child_by_field_name("arguments")
    arguments = [child for child in listed.named_children if child.type != "comment"] if listed is not None else []
    if function is None:
        return state.symbols.create_symbol("call", ANYTHING)
    if function.type == "parenthesized_expression" and len(arguments) == 1:
        # `(T)(a + b)`, a cast.
        return evaluate(state, arguments[0])
    if function.type == "field_expression":
        return _evaluate_method(state, node, function, arguments)
    name = get_text(state.text, function)
    plain = name.split("<", 1)[0]
    # For `R<T>::f`, the function and not the type.
    short = name.rsplit(">::", 1)[-1].split("<", 1)[0].rsplit("::", 1)[-1]
    if short in state.generic and len(arguments) == 1:
        return evaluate(state, arguments[0])
    if short in state.macros or (short.isupper() and short not in state.functions):
        # The call may take the address of `a[i]` and read four elements from there.
        state.add_call(node, name)
        return state.symbols.create_symbol(short, ANYTHING)
    if plain.endswith("_cast") and "<" in name and arguments:
        return cast_value(state, name[name.index("<") + 1 : name.rindex(">")], evaluate(state, arguments[0]))
    if short == "make_pipeline" and not arguments:
        return Group(calls.PIPELINE)
    if short == calls.SHARED and not arguments:
        return Pointer(Base(short, Space.SHARED), ZERO, name.partition("<")[2].rpartition(">")[0] or "?")
    if _GROUP.fullmatch(short):
        return _build_group(state, name, short, arguments)
    values = [evaluate(state, argument) for argument in arguments]
    if short in calls.BARRIERS:
        _add_barrier(state, node, calls.BARRIERS[short], alone=short in calls.ALONE)
        return state.symbols.create_symbol(short, ANYTHING)
    if short in ("sync", "wait", "wait_prior") and "::" in plain:
        first = values[0] if values else None
        kind = first.kind if isinstance(first, Group) else ""
        _add_barrier(state, node, calls.GROUP_BARRIERS.get(kind, BarrierKind.GROUP))
        return ZERO
    if short in calls.LEGACY_WARP or (short.startswith("__") and calls.WARP.match(short)):
        mask = None if short in calls.LEGACY_WARP else get_text(state.text, arguments[0]) if arguments else ""
        value = values[0] if values else None
        full = mask is not None and (
            mask.lower().replace(" ", "") in _FULL_MASKS
            or (isinstance(value, Polynomial) and value.constant in (-1, (1 << WARP) - 1))
        )
        state.add_event(WarpOperation(state.make_step(node), short, mask, full))
        return state.symbols.create_symbol(short, ANYTHING)
    pointer = values[0] if values and isinstance(values[0], Pointer) else None
    if short in calls.COPIES and pointer is not None and len(values) > 1 and isinstance(values[1], Pointer):
        # If a group copies together, the part of each thread is unknown; the group is the first argument.
        size = values[2].constant if len(values) > 2 and isinstance(values[2], Polynomial) else None
        if size in calls.WORDS:
            _record_copy(state, arguments[1], values[1], size, Use.READ)
            _record_copy(state, arguments[0], pointer, size, Use.WRITE)
            return ZERO
    if short == "__cvta_generic_to_shared" and pointer is not None:
        return cast_value(state, "char *", pointer)
    if pointer is not None and calls.ATOMIC.match(short):
        return state.record_access(node, pointer, Use.ATOMIC)
    if short in calls.LOADS and pointer is not None:
        return load_value(state, node, pointer)
    if short in calls.STORES and pointer is not None:
        state.record_access(node, pointer, Use.WRITE)
        return ZERO
    for use, at in calls.MATRICES.get(short, {}).items():
        if at < len(values) and isinstance(place := values[at], Pointer):
            state.record_access(arguments[at], place, use)
    numbers = [value for value in values if isinstance(value, Polynomial)]
    if len(numbers) == len(values):
        if len(values) == 1 and calls.CONVERSION.match(short):
            return numbers[0]
        if len(values) == 3 and short in calls.FUSED:
            return state.symbols.limit_size(numbers[0] * numbers[1] + numbers[2])
        if len(values) == 2 and short in calls.EXTREMES:
            one, other = numbers
            difference = one - other if calls.EXTREMES[short] == "min" else other - one
            return state.symbols.create_minimum(short, difference, one, other)
        if len(values) == 2 and short in calls.PRODUCTS:
            return state.symbols.limit_size(numbers[0] * numbers[1])
    inlined = state.functions.get(short)
    if inlined is not None and state.inlining.left <= 0:
        state.complete = False
    elif inlined is not None and len(state.through) < MOST_INLINED and short not in state.through:
        through, state.through = state.through, (*state.through, short)
        result = state.inline(state, inlined, values)
        state.through = through
        if result is not None:
            return result
    # A called variable acts like its operator: no thread waits in it, but one may in a lambda of the kernel.
    called = state.names.get(name)
    is_object = isinstance(called, Polynomial) and not any(one.startswith(WAITING) for one in called.iterate_symbols())
    state.add_call(node, name, pure=calls.is_pure(plain) or is_object, values=values)
    varies = UNIFORM.union(*(state.symbols.get_varies(value) for value in values))
    if calls.is_pure(plain) and not any(isinstance(value, Pointer) for value in values):
        return state.symbols.create_symbol(short, varies)
    return state.symbols.create_symbol(short, ANYTHING)


def _add_barrier(state: State, node: Node, kind: BarrierKind, *, alone: bool = False) -> None:
    state.add_event(Barrier(state.make_step(node), kind, get_text(state.text, node)[:80], alone))


def _record_copy(state: State, node: Node, at: Pointer, size: int, use: Use) -> None:
    """Use this many bytes at a place at once."""
    place = at if TYPE_BYTES.get(at.element) == size else cast_value(state, f"{calls.WORDS[size]} *", at)
    assert isinstance(place, Pointer)
    state.record_access(node, place, use)


def _evaluate_method(state: State, node: Node, function: Node, arguments: list[Node]) -> Value:
    owner, name = function.child_by_field_name("argument"), get_text(state.text, function.child_by_field_name("field"))
    known = state.names.get(get_text(state.text, owner))
    if known is None and owner is not None and owner.type == "call_expression":
        known = evaluate(state, owner)
    values = [evaluate(state, argument) for argument in arguments]
    if name in calls.BARRIER_METHODS:
        kind = calls.BARRIER_METHODS[name]
        if isinstance(known, Group):
            kind = calls.GROUP_BARRIERS.get(known.kind, kind)
        _add_barrier(state, node, kind, alone=known == Group(calls.PIPELINE))
        return ZERO
    if isinstance(known, Group):
        rank = _evaluate_rank(state, known, name)
        if rank is not None:
            return rank
        if name.startswith("shfl") or name in ("any", "all", "ballot"):
            return state.symbols.create_symbol(name, ANYTHING)
        return state.symbols.get_symbol(f"{get_text(state.text, owner)}.{name}", UNIFORM)
    state.add_call(node, get_text(state.text, function), values=values)
    return state.symbols.create_symbol(name, ANYTHING)


def _build_group(state: State, name: str, short: str, arguments: list[Node]) -> Group:
    if short == "this_thread_block":
        return Group("block")
    if short == "this_grid":
        return Group("grid")
    if short == "tiled_partition" and "<" in name:
        size = fold_constant(name[name.index("<") + 1 : name.rindex(">")].split(",")[0], state.constants)
        return Group("tile", size)
    if short == "tiled_partition" and len(arguments) == 2:
        return Group("tile", fold_constant(get_text(state.text, arguments[1]), state.constants))
    return Group("other")


def _evaluate_rank(state: State, group: Group, name: str) -> Value | None:
    """Return the rank of a thread in its group, or the rank of the group."""
    x, y, z = (make_symbol(f"threadIdx.{axis}") for axis in "xyz")
    width, height = make_symbol("blockDim.x"), make_symbol("blockDim.y")
    rank = x + y * width + z * width * height
    match group.kind, name:
        case "tile", "thread_rank" | "meta_group_rank" if group.size is not None and group.size > 0:
            sign = "%" if name == "thread_rank" else "/"
            return divide_numbers(state.symbols, sign, rank, make_constant(group.size))
        case "tile", "size" if group.size is not None:
            return make_constant(group.size)
        case "block", "thread_rank":
            return rank
        case "grid", "thread_rank":
            beside = state.symbols.get_symbol("blockIdx.yz", frozenset({"block"}))
            return make_symbol("blockIdx.x") * width + rank + beside
        case ("tile", "meta_group_rank") | (_, "thread_rank"):
            return state.symbols.create_symbol(name, ANYTHING)
    return None


def evaluate_assembly(state: State, node: Node) -> Value:
    """`asm(...)`."""
    code = get_text(state.text, node.child_by_field_name("assembly_code"))
    if calls.ASM_ADDRESS.search(code) and _assign_address(state, node):
        return state.symbols.create_symbol("asm", ANYTHING)
    if not calls.ASM_BARRIER.search(code):
        plain = calls.is_plain_assembly(code)
        if plain and calls.ASM_MATRIX.search(code):
            _record_input(state, node, 16, Use.READ)
        state.add_call(node, "asm", pure=plain)
    elif copy := calls.ASM_COPY.search(code):
        # `cp.async.ca.shared.global [%0], [%1], 16;`
        _record_input(state, node, int(copy[1] or 16), Use.WRITE)
    else:
        kind = BarrierKind.BLOCK if code.lstrip('"').startswith(("bar.sync", "barrier.sync")) else BarrierKind.ASYNC
        alone = calls.ASM_ALONE.search(code) is not None
        state.add_event(Barrier(state.make_step(node), kind, code[:80], alone))
    # Outputs are not followed: all names in it become unknown.
    for inner in walk(node):
        if inner.type == "gnu_asm_output_operand":
            value = inner.child_by_field_name("value")
            if value is not None and value.type == "identifier":
                state.names[get_text(state.text, value)] = state.symbols.create_symbol("asm", ANYTHING)
    return state.symbols.create_symbol("asm", ANYTHING)


def _get_first_input(node: Node) -> Node | None:
    return next((one.child_by_field_name("value") for one in walk(node) if one.type == "gnu_asm_input_operand"), None)


def _assign_address(state: State, node: Node) -> bool:
    """Bind the name that assembly assigns an address to. Return False if that is not what it does."""
    outputs = [one.child_by_field_name("value") for one in walk(node) if one.type == "gnu_asm_output_operand"]
    address = evaluate(state, _get_first_input(node))
    if len(outputs) != 1 or outputs[0] is None or outputs[0].type != "identifier" or not isinstance(address, Pointer):
        return False
    # The program moves it on in bytes.
    state.names[get_text(state.text, outputs[0])] = cast_value(state, "char *", address)
    return True


def _record_input(state: State, node: Node, size: int, use: Use) -> None:
    """Use this many bytes where the first input of assembly points to."""
    target = _get_first_input(node)
    at = evaluate(state, target)
    if target is not None and isinstance(at, Pointer):
        _record_copy(state, target, at, size, use)

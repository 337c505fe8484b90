"""Read calls: barriers, shuffles, atomics, cooperative groups, functions of the file, and unknown ones."""

from __future__ import annotations

from tree_sitter import Node

from frx_graph.evidence.cuda import calls
from frx_graph.evidence.cuda.constants import TYPE_BYTES, fold_constant
from frx_graph.evidence.cuda.operators import WAITING
from frx_graph.evidence.cuda.places import cast_value, load_value
from frx_graph.evidence.cuda.polynomial import ZERO, Polynomial, make_constant, make_symbol
from frx_graph.evidence.cuda.source import Barrier, BarrierKind, Use, WarpOperation
from frx_graph.evidence.cuda.state import MOST_INLINED, State, evaluate
from frx_graph.evidence.cuda.syntax import get_text, walk
from frx_graph.evidence.cuda.values import ANYTHING, UNIFORM, WARP, Group, Pointer, Value, divide_numbers

_FULL_MASKS = frozenset(["0xffffffff", "0xffffffffu", "0xfffffffful", "~0", "~0u", "-1", "full_mask", "warp_mask"])

_GROUPS = frozenset(
    [
        "this_thread_block",
        "this_grid",
        "tiled_partition",
        "this_cluster",
        "coalesced_threads",
        "this_multi_grid",
        "binary_partition",
    ]
)


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
    if short in _GROUPS:
        return _build_group(state, name, short, arguments)
    values = [evaluate(state, argument) for argument in arguments]
    if short in calls.BARRIERS:
        kind, alone = calls.BARRIERS[short], short in calls.ALONE
        state.add_event(Barrier(state.make_step(node), kind, get_text(state.text, node)[:80], alone))
        return state.symbols.create_symbol(short, ANYTHING)
    if short in ("sync", "wait", "wait_prior") and "::" in plain:
        first = values[0] if values else None
        kind = (
            calls.GROUP_BARRIERS.get(first.kind, BarrierKind.GROUP) if isinstance(first, Group) else BarrierKind.GROUP
        )
        state.add_event(Barrier(state.make_step(node), kind, get_text(state.text, node)[:80]))
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
    numbers = [value for value in values if isinstance(value, Polynomial)]
    if len(numbers) == len(values):
        if len(values) == 1 and short in calls.CONVERSIONS:
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
    state.add_call(node, name, pure=calls.is_pure(plain) or _is_object(state, name), values=values)
    varies = UNIFORM.union(*(state.symbols.get_varies(value) for value in values))
    if calls.is_pure(plain) and not any(isinstance(value, Pointer) for value in values):
        return state.symbols.create_symbol(short, varies)
    return state.symbols.create_symbol(short, ANYTHING)


def _record_copy(state: State, node: Node, at: Pointer, size: int, use: Use) -> None:
    """Use this many bytes at a place at once."""
    state.record_access(
        node, at if TYPE_BYTES.get(at.element) == size else _cast_pointer(state, at, calls.WORDS[size]), use
    )


def _cast_pointer(state: State, at: Pointer, element: str) -> Pointer:
    found = cast_value(state, f"{element} *", at)
    assert isinstance(found, Pointer)
    return found


def _is_object(state: State, name: str) -> bool:
    """Return True for a called variable, which acts like its operator: no thread waits in it, but one may in a lambda
    of the kernel."""
    value = state.names.get(name)
    return isinstance(value, Polynomial) and not any(one.startswith(WAITING) for one in value.iterate_symbols())


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
        alone = isinstance(known, Group) and known.kind == calls.PIPELINE
        state.add_event(Barrier(state.make_step(node), kind, get_text(state.text, node)[:80], alone))
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
    if name in ("thread_rank", "meta_group_rank") and group.kind == "tile":
        if group.size is None or group.size <= 0:
            return state.symbols.create_symbol(name, ANYTHING)
        return divide_numbers(state.symbols, "%" if name == "thread_rank" else "/", rank, make_constant(group.size))
    if name == "thread_rank" and group.kind == "block":
        return rank
    if name == "thread_rank" and group.kind == "grid":
        return make_symbol("blockIdx.x") * width + rank + state.symbols.get_symbol("blockIdx.yz", frozenset({"block"}))
    if name == "size" and group.kind == "tile" and group.size is not None:
        return make_constant(group.size)
    if name in ("thread_index", "group_index"):
        return None
    return state.symbols.create_symbol(name, ANYTHING) if name == "thread_rank" else None


def _record_assembly_copy(state: State, node: Node, size: int) -> None:
    """`cp.async.ca.shared.global [%0], [%1], 16;`"""
    to = next((one for one in walk(node) if one.type == "gnu_asm_input_operand"), None)
    value = to.child_by_field_name("value") if to is not None else None
    at = evaluate(state, value) if value is not None else None
    if value is not None and isinstance(at, Pointer):
        _record_copy(state, value, at, size, Use.WRITE)


def evaluate_assembly(state: State, node: Node) -> Value:
    """`asm(...)`."""
    code = get_text(state.text, node.child_by_field_name("assembly_code"))
    if calls.ASM_BARRIER.search(code):
        kind = BarrierKind.BLOCK if code.lstrip('"').startswith(("bar.sync", "barrier.sync")) else BarrierKind.ASYNC
        alone = calls.ASM_ALONE.search(code) is not None
        copy = calls.ASM_COPY.search(code)
        if copy is None:
            state.add_event(Barrier(state.make_step(node), kind, code[:80], alone))
        else:
            _record_assembly_copy(state, node, int(copy[1] or 16))
    else:
        state.add_call(node, "asm")
    # Outputs are not followed: all names in it become unknown.
    for inner in walk(node):
        if inner.type == "gnu_asm_output_operand":
            value = inner.child_by_field_name("value")
            if value is not None and value.type == "identifier":
                state.names[get_text(state.text, value)] = state.symbols.create_symbol("asm", ANYTHING)
    return state.symbols.create_symbol("asm", ANYTHING)

"""What an expression is worth to a thread, and what it does to memory on the way."""

from __future__ import annotations

from dataclasses import replace

from tree_sitter import Node

from frx_graph.evidence.cuda import calls
from frx_graph.evidence.cuda.constants import fold, plain_type
from frx_graph.evidence.cuda.polynomial import ZERO, Polynomial, named, number
from frx_graph.evidence.cuda.source import (
    Access,
    Barrier,
    BarrierKind,
    Call,
    Product,
    Space,
    Use,
    WarpOperation,
)
from frx_graph.evidence.cuda.state import DEEPEST, MOST_INLINED, State
from frx_graph.evidence.cuda.syntax import said, walk
from frx_graph.evidence.cuda.values import (
    ANYTHING,
    UNIFORM,
    WARP,
    Group,
    Pointer,
    Value,
    unknown_pointer,
)

_INDEX_OBJECTS = frozenset(["threadIdx", "blockIdx", "blockDim", "gridDim"])
_FULL_MASKS = frozenset(["0xffffffff", "0xffffffffu", "0xfffffffful", "~0", "~0u", "-1", "full_mask", "warp_mask"])


def evaluate(state: State, node: Node | None) -> Value:
    """The value; what nothing is known of is a new symbol that may vary with anything."""
    if node is None:
        return state.symbols.fresh("none", ANYTHING)
    if state.depth >= DEEPEST:
        return state.symbols.fresh("deep", ANYTHING)
    state.depth += 1
    try:
        value = _evaluate(state, node)
    finally:
        state.depth -= 1
    if isinstance(value, Polynomial) and not value.fits:
        return state.symbols.fresh("long", state.symbols.of(value))
    return value


def number_of(state: State, value: Value) -> Polynomial:
    """The value as a number; of a pointer or a group one that nothing is known of."""
    return value if isinstance(value, Polynomial) else state.symbols.fresh("address", ANYTHING)


def place(state: State, node: Node) -> Pointer | str | None:
    """What is written to by an assignment: an element, a name, or None for what cannot be told."""
    if state.depth >= DEEPEST:
        return None
    state.depth += 1
    try:
        return _place(state, node)
    finally:
        state.depth -= 1


def _place(state: State, node: Node) -> Pointer | str | None:
    if node.type == "parenthesized_expression":
        return place(state, node.named_children[0]) if node.named_children else None
    if node.type == "identifier":
        return _scalar(state, said(node)) or said(node)
    if node.type == "subscript_expression":
        return _element(state, node)
    if node.type == "pointer_expression" and node.children[0].type == "*":
        found = evaluate(state, node.child_by_field_name("argument"))
        return found if isinstance(found, Pointer) else None
    if node.type == "field_expression":
        inner = node.child_by_field_name("argument")
        if inner is None or inner.type == "identifier":
            if inner is not None and node.children[1].type == "->":
                found = evaluate(state, inner)
                return found if isinstance(found, Pointer) else unknown_pointer("?")
            # Of a structure only one part is known from here on.
            state.names[said(inner)] = state.symbols.fresh(said(inner), ANYTHING)
            return None
        found_place = place(state, inner)
        return found_place if isinstance(found_place, Pointer) else None
    if node.type == "call_expression":
        # reinterpret_cast<float4&>(x[i]) and its kind.
        arguments = node.child_by_field_name("arguments")
        if arguments is not None and "cast" in said(node.child_by_field_name("function")) and arguments.named_children:
            return place(state, arguments.named_children[0])
    return None


def assign(state: State, node: Node, at: Pointer | str | None, value: Value) -> None:
    """Stores a value: in the environment, or in memory."""
    if isinstance(at, str):
        state.names[at] = value
    elif at is not None:
        state.access(node, at, Use.WRITE)
        if at.base.space is Space.LOCAL:
            state.keep(at.base.name, value)


def _evaluate(state: State, node: Node) -> Value:
    kind = node.type
    if kind == "identifier":
        scalar = _scalar(state, said(node))
        return _name(state, said(node)) if scalar is None else state.access(node, scalar, Use.READ)
    if kind == "number_literal":
        value = fold(said(node), {})
        return number(value) if value is not None else state.symbols.same(f"={said(node)}", UNIFORM)
    if kind == "binary_expression":
        return _binary(state, node)
    if kind == "subscript_expression":
        return _load(state, node, _element(state, node))
    if kind == "field_expression":
        return _field(state, node)
    if kind == "call_expression":
        return _call(state, node)
    if kind == "assignment_expression":
        return _assignment(state, node)
    if kind == "update_expression":
        return _update(state, node)
    if kind == "parenthesized_expression":
        return evaluate(state, node.named_children[-1] if node.named_children else None)
    if kind == "cast_expression":
        return cast(state, said(node.child_by_field_name("type")), evaluate(state, node.child_by_field_name("value")))
    if kind == "unary_expression":
        inner = number_of(state, evaluate(state, node.child_by_field_name("argument")))
        sign = node.children[0].type
        if sign == "-":
            return ZERO - inner
        return inner if sign == "+" else state.symbols.fresh("unary", state.symbols.of(inner))
    if kind == "pointer_expression":
        return _dereference(state, node)
    if kind == "conditional_expression":
        return _choice(state, node)
    if kind == "qualified_identifier":
        name = said(node)
        folded = state.constants.get(name.rsplit("::", 1)[-1])
        return number(folded) if folded is not None else state.symbols.same(name, UNIFORM)
    if kind == "sizeof_expression":
        size = fold(said(node), state.constants)
        return number(size) if size is not None else state.symbols.same(said(node), UNIFORM)
    if kind in ("true", "false"):
        return number(int(kind == "true"))
    if kind == "comma_expression":
        evaluate(state, node.child_by_field_name("left"))
        return evaluate(state, node.child_by_field_name("right"))
    if kind == "gnu_asm_expression":
        return _assembly(state, node)
    if kind == "lambda_expression":
        return state.symbols.fresh("lambda", ANYTHING)
    varies = UNIFORM
    for child in node.named_children:
        varies |= state.symbols.of(evaluate(state, child))
    return state.symbols.fresh(kind, varies)


def _scalar(state: State, name: str) -> Pointer | None:
    """The place that a name is one for."""
    found = state.names.get(name)
    return found if name in state.places and isinstance(found, Pointer) else None


def _name(state: State, name: str) -> Value:
    if name in state.names:
        return state.names[name]
    if name in state.constants:
        return number(state.constants[name])
    if name == "warpSize":
        return number(WARP)
    # A template parameter, a macro, a variable of the file: the same for all threads, unless a macro hides an index.
    return state.symbols.same(name, UNIFORM if name not in _INDEX_OBJECTS else ANYTHING)


def _binary(state: State, node: Node) -> Value:
    sign = node.children[1].type if len(node.children) == 3 else ""
    left = evaluate(state, node.child_by_field_name("left"))
    right = evaluate(state, node.child_by_field_name("right"))
    if sign in ("+", "-"):
        if isinstance(left, Pointer) and isinstance(right, Polynomial):
            moved = _scaled(right, left.inner)
            return replace(left, offset=left.offset + moved if sign == "+" else left.offset - moved)
        if sign == "+" and isinstance(right, Pointer) and isinstance(left, Polynomial):
            return replace(right, offset=right.offset + _scaled(left, right.inner))
    return arithmetic(state, sign, number_of(state, left), number_of(state, right))


def arithmetic(state: State, sign: str, one: Polynomial, other: Polynomial) -> Polynomial:
    """`one sign other`."""
    symbols = state.symbols
    if sign == "+":
        return one + other
    if sign == "-":
        return one - other
    if sign == "*":
        return one * other
    by = other.constant
    if sign in ("/", "%"):
        return _divided(state, sign, one, other)
    if sign == "<<" and by is not None and 0 <= by < 64:
        return one * number(1 << by)
    if sign == ">>" and by is not None and 0 <= by < 64:
        return _divided(state, "/", one, number(1 << by))
    if sign == "&":
        mask = by if by is not None else one.constant
        value = one if by is not None else other
        # A mask of the lowest bits is a remainder.
        if mask is not None and mask > 0 and mask & (mask + 1) == 0:
            return _divided(state, "%", value, number(mask + 1))
    if sign == "|" and by == 0:
        return one
    varies = symbols.of(one) | symbols.of(other)
    return symbols.same(f"({one} {sign} {other})", varies, remainder=sign == "&")


def _divided(state: State, sign: str, one: Polynomial, other: Polynomial) -> Polynomial:
    one_value, by = one.constant, other.constant
    if one_value is not None and by is not None and by > 0 and one_value >= 0:
        return number(one_value // by if sign == "/" else one_value % by)
    if by == 0 or not other.terms:
        return state.symbols.fresh("division", ANYTHING)
    quotient = state.symbols.quotient(one, other)
    return quotient if sign == "/" else one - other * quotient


def _scaled(index: Polynomial, inner: tuple[Polynomial, ...]) -> Polynomial:
    for size in inner:
        index = index * size
    return index


def _element(state: State, node: Node) -> Pointer:
    """The place of `a[i]`, not read yet; a row of an array is a pointer with fewer dimensions."""
    base = evaluate(state, node.child_by_field_name("argument"))
    indices = node.child_by_field_name("indices")
    index = number_of(state, evaluate(state, indices.named_children[0] if indices and indices.named_children else None))
    if not isinstance(base, Pointer):
        base = unknown_pointer("?")
    offset = base.offset + _scaled(index, base.inner)
    if not offset.fits:
        offset = state.symbols.fresh("offset", state.symbols.of(offset))
    return replace(base, offset=offset)


def _load(state: State, node: Node, at: Pointer) -> Value:
    if at.inner:
        return replace(at, inner=at.inner[1:])
    if at.element.endswith("*"):
        state.access(node, at, Use.READ)
        return unknown_pointer(at.element[:-1].strip())
    return state.access(node, at, Use.READ)


def _field(state: State, node: Node) -> Value:
    inner, name = node.child_by_field_name("argument"), said(node.child_by_field_name("field"))
    owner = said(inner)
    if owner in _INDEX_OBJECTS and owner not in state.names:
        return state.symbols.same(f"{owner}.{name}", ANYTHING)
    if inner is not None and inner.type == "identifier" and node.children[1].type == ".":
        value = state.names.get(owner)
        if isinstance(value, Polynomial):
            part = f"({value}).{name}"
            if owner in state.symbols.given:
                state.symbols.given.add(part)
            return state.symbols.same(part, state.symbols.of(value))
        return state.symbols.same(f"{owner}.{name}", UNIFORM if value is None else ANYTHING)
    if node.children[1].type == "->":
        found = evaluate(state, inner)
        if isinstance(found, Pointer):
            return state.access(node, found, Use.READ)
        return state.access(node, unknown_pointer("?"), Use.READ)
    if inner is not None and owner.endswith((".thread_index()", ".group_index()")):
        return state.symbols.same(f"{'threadIdx' if owner.endswith('thread_index()') else 'blockIdx'}.{name}", ANYTHING)
    if inner is not None:
        at = place(state, inner)
        if isinstance(at, Pointer):
            return state.access(node, at, Use.READ)
        value = state.names.get(at) if isinstance(at, str) else None
        return state.symbols.fresh(name, ANYTHING if value is None else state.symbols.of(value))
    return state.symbols.fresh(name, ANYTHING)


def _dereference(state: State, node: Node) -> Value:
    inner = node.child_by_field_name("argument")
    if node.children[0].type == "*":
        found = evaluate(state, inner)
        return _load(state, node, found) if isinstance(found, Pointer) else state.symbols.fresh("at", ANYTHING)
    if inner is None:
        return state.symbols.fresh("address", ANYTHING)
    at = place(state, inner)
    if isinstance(at, Pointer):
        return at
    if isinstance(at, str) and isinstance(state.names.get(at), Polynomial):
        # Whoever gets its address may change it.
        state.names[at] = state.symbols.fresh(at, ANYTHING)
    return unknown_pointer("?")


def cast(state: State, type_text: str, value: Value) -> Value:
    """A value as another type. Pointers keep where they point to, counted in the new element."""
    plain = plain_type(type_text)
    if isinstance(value, Pointer) and plain.endswith(("*", "&")):
        element = plain[:-1].strip()
        if value.offset.terms and element != value.element:
            old, new = state.bytes_of(value.element), state.bytes_of(element)
            if old is None or new is None:
                offset = state.symbols.fresh("cast", ANYTHING if state.symbols.of(value) else UNIFORM)
            else:
                offset = state.symbols.quotient(value.offset * number(old), number(new))
            return Pointer(value.base, offset, element)
        return Pointer(value.base, value.offset, element)
    return value


def _choice(state: State, node: Node) -> Value:
    condition = state.symbols.of(evaluate(state, node.child_by_field_name("condition")))
    one = evaluate(state, node.child_by_field_name("consequence"))
    other = evaluate(state, node.child_by_field_name("alternative"))
    return state.symbols.join(one, other, condition)


def _assignment(state: State, node: Node) -> Value:
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    sign = said(node.child_by_field_name("operator")) or "="
    if left is None or right is None:
        return state.symbols.fresh("assigned", ANYTHING)
    value = evaluate(state, right)
    at = place(state, left)
    if sign == "=":
        _note_product(state, node, at, value, sign)
        assign(state, left, at, value)
        return value
    old = state.names.get(at, state.symbols.fresh("old", ANYTHING)) if isinstance(at, str) else None
    if isinstance(at, Pointer):
        old = state.access(left, at, Use.READ)
    _note_product(state, node, at, value, sign)
    if isinstance(old, Pointer) and isinstance(value, Polynomial) and sign in ("+=", "-="):
        moved = _scaled(value, old.inner)
        new: Value = replace(old, offset=old.offset + moved if sign == "+=" else old.offset - moved)
    else:
        known = number_of(state, old) if old is not None else state.symbols.fresh("old", ANYTHING)
        new = arithmetic(state, sign[:-1], known, number_of(state, value))
        if isinstance(new, Polynomial) and not new.fits:
            new = state.symbols.fresh("long", state.symbols.of(new))
    assign(state, left, at, new)
    return new


def _note_product(state: State, node: Node, at: Pointer | str | None, value: Value, sign: str) -> None:
    """`sum += a[i] * b[j]`, also as `sum = sum + …` and `sum = fma(…, sum)`: a term with exactly two loaded factors."""
    if not state.loops or not isinstance(value, Polynomial) or sign not in ("=", "+="):
        return
    if sign == "=" and not (isinstance(at, str) and isinstance(state.names.get(at), Polynomial)):
        return
    if sign == "=":
        assert isinstance(at, str)
        old = state.names[at]
        assert isinstance(old, Polynomial)
        if not old.terms or not all(name in value.terms for name in old.terms):
            return
    products = [name for name in value.terms if len(name) == 2 and all(one in state.symbols.loaded for one in name)]
    # Of a squared difference, `a*a - 2*a*b + b*b`, the middle is no product of two operands.
    if not products or any(left == right or value.terms[left, right] != 1 for left, right in products):
        return
    indices = [state.symbols.loaded[symbol] for symbol in products[0]]
    left, right = (state.events[index] if index < len(state.events) else None for index in indices)
    if isinstance(left, Access) and isinstance(right, Access) and left.base != right.base:
        state.add(Product(state.step(node), left, right))


def _update(state: State, node: Node) -> Value:
    inner = node.child_by_field_name("argument")
    if inner is None:
        return state.symbols.fresh("update", ANYTHING)
    by = number(1 if any(child.type == "++" for child in node.children) else -1)
    at = place(state, inner)
    if isinstance(at, str):
        old = state.names.get(at)
        if isinstance(old, Pointer):
            new: Value = replace(old, offset=old.offset + _scaled(by, old.inner))
        else:
            known = old if isinstance(old, Polynomial) else state.symbols.fresh(at, ANYTHING)
            old, new = known, known + by
        state.names[at] = new
        return new if node.children[0] != inner else old
    if isinstance(at, Pointer):
        value = state.access(inner, at, Use.READ)
        state.access(inner, at, Use.WRITE)
        return value
    return state.symbols.fresh("update", ANYTHING)


def _call(state: State, node: Node) -> Value:
    function, listed = node.child_by_field_name("function"), node.child_by_field_name("arguments")
    arguments = [child for child in listed.named_children if child.type != "comment"] if listed is not None else []
    if function is None:
        return state.symbols.fresh("call", ANYTHING)
    if function.type == "field_expression":
        return _method(state, node, function, arguments)
    name = said(function)
    plain = name.split("<", 1)[0]
    short = plain.rsplit("::", 1)[-1]
    if short in state.macros or (short.isupper() and short not in state.functions):
        # It may take the address of `a[i]` and read four elements from there.
        state.add(_called(state, node, name, False, []))
        return state.symbols.fresh(short, ANYTHING)
    if plain.endswith("_cast") and "<" in name and arguments:
        return cast(state, name[name.index("<") + 1 : name.rindex(">")], evaluate(state, arguments[0]))
    group = _group(state, name, short, arguments)
    if group is not None:
        return group
    values = [evaluate(state, argument) for argument in arguments]
    if short in calls.BARRIERS:
        state.add(Barrier(state.step(node), calls.BARRIERS[short], said(node)[:80]))
        return state.symbols.fresh(short, ANYTHING)
    if short in ("sync", "wait", "wait_prior") and "::" in plain:
        first = values[0] if values else None
        kind = (
            calls.GROUP_BARRIERS.get(first.kind, BarrierKind.GROUP) if isinstance(first, Group) else BarrierKind.GROUP
        )
        state.add(Barrier(state.step(node), kind, said(node)[:80]))
        return ZERO
    if short in calls.LEGACY_WARP or calls.WARP.match(short):
        mask = None if short in calls.LEGACY_WARP else said(arguments[0]) if arguments else ""
        value = values[0] if values else None
        full = mask is not None and (
            mask.lower().replace(" ", "") in _FULL_MASKS
            or (isinstance(value, Polynomial) and value.constant in (-1, (1 << WARP) - 1))
        )
        state.add(WarpOperation(state.step(node), short, mask, full))
        return state.symbols.fresh(short, ANYTHING)
    pointer = values[0] if values and isinstance(values[0], Pointer) else None
    if calls.ATOMIC.match(short) and pointer is not None:
        return state.access(node, pointer, Use.ATOMIC)
    if short in calls.LOADS and pointer is not None:
        return _load(state, node, pointer)
    if short in calls.STORES and pointer is not None:
        state.access(node, pointer, Use.WRITE)
        return ZERO
    numbers = [value for value in values if isinstance(value, Polynomial)]
    if len(numbers) == len(values):
        if len(values) == 1 and short in calls.CONVERSIONS:
            return numbers[0]
        if len(values) == 3 and short in calls.FUSED:
            return numbers[0] * numbers[1] + numbers[2]
        if len(values) == 2 and short in calls.PRODUCTS:
            return numbers[0] * numbers[1]
    inlined = state.functions.get(short)
    if inlined is not None and len(state.through) < MOST_INLINED and short not in state.through:
        state.through.append(short)
        try:
            result = state.inline(state, inlined, values)
        finally:
            state.through.pop()
        if result is not None:
            return result
    state.add(_called(state, node, name, calls.is_pure(plain), values))
    varies = UNIFORM.union(*(state.symbols.of(value) for value in values))
    if calls.is_pure(plain) and not any(isinstance(value, Pointer) for value in values):
        return state.symbols.fresh(short, varies)
    return state.symbols.fresh(short, ANYTHING)


def _called(state: State, node: Node, name: str, pure: bool, values: list[Value]) -> Call:
    numbers = tuple(value.constant if isinstance(value, Polynomial) else None for value in values)
    elements = tuple(value.element if isinstance(value, Pointer) else None for value in values)
    return Call(state.step(node), name, pure, numbers, elements)


def _method(state: State, node: Node, function: Node, arguments: list[Node]) -> Value:
    owner, name = function.child_by_field_name("argument"), said(function.child_by_field_name("field"))
    known = state.names.get(said(owner))
    if known is None and owner is not None and owner.type == "call_expression":
        known = evaluate(state, owner)
    values = [evaluate(state, argument) for argument in arguments]
    if name in calls.BARRIER_METHODS:
        kind = calls.BARRIER_METHODS[name]
        if isinstance(known, Group):
            kind = calls.GROUP_BARRIERS.get(known.kind, kind)
        state.add(Barrier(state.step(node), kind, said(node)[:80]))
        return ZERO
    if isinstance(known, Group):
        rank = _rank(state, known, name)
        if rank is not None:
            return rank
        if name.startswith("shfl") or name in ("any", "all", "ballot"):
            return state.symbols.fresh(name, ANYTHING)
        return state.symbols.same(f"{said(owner)}.{name}", UNIFORM)
    state.add(_called(state, node, said(function), False, values))
    return state.symbols.fresh(name, ANYTHING)


def _group(state: State, name: str, short: str, arguments: list[Node]) -> Group | None:
    if short == "this_thread_block":
        return Group("block")
    if short == "this_grid":
        return Group("grid")
    if short in ("tiled_partition", "this_cluster", "coalesced_threads", "this_multi_grid", "binary_partition"):
        if short == "tiled_partition" and "<" in name:
            size = fold(name[name.index("<") + 1 : name.rindex(">")].split(",")[0], state.constants)
            return Group("tile", size)
        if short == "tiled_partition" and len(arguments) == 2:
            return Group("tile", fold(said(arguments[1]), state.constants))
        return Group("other")
    return None


def _rank(state: State, group: Group, name: str) -> Value | None:
    """The place of a thread in its group, or of its group."""
    x, y, z = (named(f"threadIdx.{axis}") for axis in "xyz")
    width, height = named("blockDim.x"), named("blockDim.y")
    rank = x + y * width + z * width * height
    if name in ("thread_rank", "meta_group_rank") and group.kind == "tile":
        if group.size is None or group.size <= 0:
            return state.symbols.fresh(name, ANYTHING)
        return _divided(state, "%" if name == "thread_rank" else "/", rank, number(group.size))
    if name == "thread_rank" and group.kind == "block":
        return rank
    if name == "thread_rank" and group.kind == "grid":
        return named("blockIdx.x") * width + rank + state.symbols.same("blockIdx.yz", frozenset({"block"}))
    if name == "size" and group.kind == "tile" and group.size is not None:
        return number(group.size)
    if name in ("thread_index", "group_index"):
        return None
    return state.symbols.fresh(name, ANYTHING) if name == "thread_rank" else None


def _assembly(state: State, node: Node) -> Value:
    code = said(node.child_by_field_name("assembly_code"))
    if calls.ASM_BARRIER.search(code):
        kind = BarrierKind.BLOCK if code.lstrip('"').startswith(("bar.sync", "barrier.sync")) else BarrierKind.ASYNC
        state.add(Barrier(state.step(node), kind, code[:80]))
    else:
        state.add(_called(state, node, "asm", False, []))
    # Its outputs are not followed: whatever it names is not known any more.
    for inner in walk(node):
        if inner.type == "gnu_asm_output_operand":
            value = inner.child_by_field_name("value")
            if value is not None and value.type == "identifier":
                state.names[said(value)] = state.symbols.fresh("asm", ANYTHING)
    return state.symbols.fresh("asm", ANYTHING)

"""Edits of source in any formatting: what is left is Python that means the same, and untouched bytes stay."""

from __future__ import annotations

import ast
import codecs
import re
import tempfile
from pathlib import Path

import libcst as cst
import libcst.matchers as m
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from frx_graph.fix.drop_copy import drop_call
from frx_graph.fix.source_file import CannotFixError, SourceFile, apply_edits, overlap, read_source
from frx_graph.records import SourceEdit

COPY = m.Call(func=m.Attribute(attr=m.Name("contiguous")))
CALL = re.compile(rb"[\s\\]*\.[\s\\]*contiguous[\s\\]*\(.*\)", re.DOTALL)

SPACES = st.sampled_from(["", " ", "\t", "  "])
BREAKS = st.sampled_from(["", " ", "\n", "\n        ", "  # why: naïve «copy»\n    ", "\n\n\t"])
RECEIVERS = st.sampled_from(
    [
        "x",
        "self.f(x)",
        "(x + 1)",
        "x[0]",
        "x.t()",
        "(y := x)",
        "x.view(1, -1)",
        "x['Größe']",
        "f'{x}'.y",
        "(lambda a: a)(x)",
    ]
)
ARGUMENTS = st.sampled_from(["", "memory_format=torch.contiguous_format", "\n            ", "# none\n"])
AROUND = st.sampled_from(
    [
        "y = {}",
        "y = {}  # type: Tensor",
        "return {}",
        "return g({}, 2)",
        "y: 'Tensor' = {}",
        "y = [{}, {}]",
        "assert {} is not None, 'ü'",
        "y = {} + 1; z = 2",
        "if {}:\n            pass",
        "while (y := {}) is None: pass",
        "y = g(a={}, *b)",
        "y = {}.mean(\n            -1)",
        "x = {}",
        "y = await_({})",
        "for i in {}: y = i",
        "with g({}) as y:\n            z = y",
        "y = {} if x else None",
        "y = \\\n            {}",
    ]
)
BEFORE = st.lists(
    st.sampled_from(["# Kommentar: é", "z = 'ä'", '"""Text."""', "z = 1 \\\n            + 2", "", "z = 4"]),
    max_size=3,
)
HEADS = st.sampled_from(["", "@decorate(1)\n    ", "@a\n    @b.c\n    "])


@st.composite
def sources(draw: st.DrawFn) -> bytes:
    """A class with a method that makes copies, in some formatting."""
    bracketed = draw(st.booleans())
    gap = draw(BREAKS if bracketed else st.sampled_from(["", " ", " \\\n            "]))
    dot = draw(st.sampled_from([".", ". "]))
    call = f"{draw(RECEIVERS)}{gap}{dot}contiguous{draw(SPACES) if bracketed else ''}({draw(ARGUMENTS)})"
    value = f"({draw(BREAKS)}{call}{draw(BREAKS)})" if bracketed else call
    around = draw(AROUND)
    statement = around.format(*[value] * around.count("{}"))
    lines = [*draw(BEFORE), statement, *draw(st.sampled_from([[], ["# Ende"], ["return x"]]))]
    body = "\n".join(f"        {line}" if line else "" for line in lines)
    text = f"# Größe: µ\nclass Model:\n    {draw(HEADS)}def forward(self, x):\n{body}\n"
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    mark = codecs.BOM_UTF8 if draw(st.booleans()) else b""
    return mark + text.encode()


def is_python(data: bytes) -> bool:
    try:
        ast.parse(data)
    except (SyntaxError, ValueError):
        return False
    return True


class WithoutCopies(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "contiguous" else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        self.generic_visit(node)
        same = isinstance(node.value, ast.Name) and ast.dump(node.targets[0]) == ast.dump(node.value).replace(
            "Load", "Store"
        )
        return None if same else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node


def is_one_copy(removed: bytes) -> bool:
    """Return True for `.contiguous()` behind anything, and for the statement `x = x.contiguous()`."""
    if CALL.fullmatch(removed):
        return True
    (statement,) = ast.parse(removed.strip()).body
    return isinstance(statement, ast.Assign) and WithoutCopies().visit(statement) is None


def drop_all(data: bytes) -> tuple[SourceFile, list[SourceEdit]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "source.py"
        path.write_bytes(data)
        source = read_source(path)
    calls = [call for call in m.findall(source.module, COPY) if isinstance(call, cst.Call)]
    return source, [drop_call(source, call) for call in calls]


@settings(max_examples=100, deadline=None)
@given(sources().filter(is_python))
def test_dropped_copies_leave_the_same_program(data: bytes) -> None:
    check_dropped(data)


@pytest.mark.integration
@settings(max_examples=500, deadline=None)
@given(sources().filter(is_python))
def test_dropped_copies_leave_the_same_program_in_any_formatting(data: bytes) -> None:
    check_dropped(data)


def check_dropped(data: bytes) -> None:
    try:
        _, edits = drop_all(data)
        changed = apply_edits(data, edits)
    except CannotFixError:
        # Refused, as where a comment stands in what would go. Hypothesis fails if hardly any is left.
        reject()
    expected = WithoutCopies().visit(ast.parse(data))
    assert ast.dump(ast.parse(changed)) == ast.dump(expected)
    for edit in edits:
        assert is_one_copy(data[edit.start : edit.end])
        assert edit.text in ("", "pass")


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_positions_count_from_one_in_code_points(ends: str) -> None:
    data = codecs.BOM_UTF8 + f"s = 'ä'{ends}y = ('ü', x.contiguous()){ends}".encode()
    _, (edit,) = drop_all(data)
    assert data[edit.start : edit.end] == b".contiguous()"
    assert (edit.start_line, edit.start_column, edit.end_line, edit.end_column) == (2, 12, 2, 25)


def test_edits_that_touch_the_same_bytes_overlap() -> None:
    def edit(start: int, end: int, file: str = "a.py") -> SourceEdit:
        return SourceEdit(file, start, end, "", 1, 1, 1, 1)

    assert overlap(edit(0, 5), edit(4, 6))
    assert overlap(edit(3, 3), edit(3, 3))
    assert not overlap(edit(0, 5), edit(5, 6))
    assert not overlap(edit(0, 5), edit(0, 5, "b.py"))


def test_an_edit_that_would_break_the_file_is_refused() -> None:
    with pytest.raises(CannotFixError, match="would not be Python"):
        apply_edits(b"x = (1)\n", [SourceEdit("a.py", 4, 5, "", 1, 5, 1, 6)])

"""What is put into a script runs, means what it meant, and comes out again to the byte."""

from __future__ import annotations

import ast
import codecs
import json
import runpy
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, reject
from hypothesis import strategies as st

from frx_graph.errors import ScriptError
from frx_graph.instrumentation.patch import MARK, patch, remove_patch
from frx_graph.instrumentation.script import Script
from frx_graph.runs.sdk.session import AutopilotSession

PLAIN = '''"""Trains a line."""
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8, 1)), batch_size=4)
for epoch in range(2):
    for i, (x, y) in enumerate(loader):  # every batch
        # the usual
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if i > 5:
            continue
        text = """
  not indented
"""
        # the last comment of the loop
print("done", len(text), i)
'''

FUNCTION = """#!/usr/bin/env python
# -*- coding: utf-8 -*-
from __future__ import annotations

import torch


def batches(n):
    for _ in range(n):
        yield torch.ones(2, 3)


def train(model, data, optimizer):
\tseen = 0
\tfor batch in data:
\t\tif batch.sum() < 0:
\t\t\tbreak
\t\tloss = model(batch).square().mean()

\t\tloss.backward()
\t\toptimizer.step() ; optimizer.zero_grad()
\t\tseen += 1
\t\tif seen == 5:
\t\t\treturn seen
\telse:
\t\tprint("ünbroken")
\treturn seen


if __name__ == "__main__":
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(net.parameters())
    print(train(net, batches(3), optimizer), train(net, batches(9), optimizer))"""

GENERATOR = """import asyncio
import torch

def steps(model, loader, optimizer):
    for step, batch in enumerate(loader):
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        answer = yield step
        if answer == "stop":
            return

async def asynchronous(model, loader, optimizer):
    for batch in loader:
        await asyncio.sleep(0)
        model(batch).mean().backward()
        optimizer.step()

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [torch.ones(3, 2)] * 4
running = steps(model, loader, optimizer)
print(next(running), running.send("go"), list(running))
asyncio.run(asynchronous(model, loader, optimizer))
"""

LBFGS = """import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.LBFGS(model.parameters())
def report(loss): print("loss is a number", loss == loss)
for x in [torch.ones(3, 2), torch.zeros(3, 2)]:
    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss
    report(optimizer.step(closure).item())
"""

SCRIPTS = {"plain": PLAIN, "function": FUNCTION, "generator": GENERATOR, "lbfgs": LBFGS}

_TRAIN = ["loss = model(batch)", "loss.backward()", "optimizer.step()"]
_INDENTS = st.sampled_from(["  ", "    ", "\t", "        "])
_FILLERS = st.sampled_from(
    [
        "# comment",
        "   # comment further in",
        "",
        "     ",
        "x = 1  # behind",
        "x = (\n  1,\n2)",
        's = """\ntext\n   more\n"""',
        "s = f'''{1}\n  {2}'''",
        "if x:\n{indent}continue",
        "if x: break",
        "x = 1; y = 2",
        "x = 1 + \\\n 2",
        "def inner():\n{indent}# in it\n{indent}return 1\n",
        "with open(x) as file:\n{indent}pass\n{indent}# behind pass",
    ]
)


@st.composite
def generated_script(draw: st.DrawFn) -> str:
    """A script with one loop that trains, in a random style."""
    indent = draw(_INDENTS)
    fillers = [filler.replace("{indent}", indent) for filler in draw(st.lists(_FILLERS, max_size=6))]
    body = list(_TRAIN)
    for filler in fillers:
        body.insert(draw(st.integers(0, len(body))), filler)
    header = draw(
        st.sampled_from(
            ["for batch in loader:", "for i, batch in enumerate(loader):  # why", "for batch in (\n loader):"]
        )
    )
    depth = draw(st.integers(0, 2))
    around = ["def main():", "for epoch in range(2):"][:depth]
    lines = [indent * level + line for level, line in enumerate([*around, header])]
    lines += _shifted(body, indent * (depth + 1))
    if draw(st.booleans()):
        lines += _shifted(["else:", f"{indent}pass"], indent * depth)
    start = draw(
        st.sampled_from(
            [
                "",
                "import torch\n",
                '"""Doc."""\n',
                "#!/usr/bin/python\n\n",
                "# a\n\n# b\nimport torch\n\n\n",
                "import os; x = 1\n",
            ]
        )
    )
    end = draw(st.sampled_from(["", "\n", "\n\n# the end\n", "\nprint(1)", "\n    # further in\nprint(2)\n"]))
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    return (start + "\n".join(lines) + end).replace("\n", newline)


def _shifted(statements: list[str], indent: str) -> list[str]:
    """Each of the first lines of statements behind `indent`; lines of blocks too, but not those of strings."""
    shifted = []
    for statement in statements:
        first, *rest = statement.split("\n")
        block = first.endswith(":")
        shifted.append(indent + first if first.strip() else first)
        shifted += [indent + line if block and line else line for line in rest]
    return shifted


def script(text: str) -> Script:
    return Script(Path("train.py"), text.encode(), text)


def patched(text: str) -> str:
    found = patch(script(text))
    assert found is not None
    return found.text


class _Without(ast.NodeTransformer):
    """A patched script's program without what was put in."""

    def visit_With(self, node: ast.With) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        ours = ("frx_graph.step_context(", "frx_graph.span(")
        return node.body if ast.unparse(node.items[0]).startswith(ours) else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.args[0] if ast.unparse(node.func) == "frx_graph.instrument_dataloader" else node

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self.generic_visit(node)
        ours = ("import frx_graph", "frx_graph.init(")
        node.body = [each for each in node.body if not ast.unparse(each).startswith(ours)]
        return node


def patched_or_refused(text: str) -> str:
    """Return the patched script. libcst writes some comments in another column than it has read them; such a script is
    refused, and hypothesis draws another one."""
    try:
        return patched(text)
    except ScriptError as error:
        assert "cannot be written as it was read" in str(error)
        reject()


@given(generated_script())
def test_what_is_put_in_comes_out_to_the_byte_and_the_rest_stays(text: str) -> None:
    new = patched_or_refused(text)
    assert remove_patch(script(new)) == text
    assert patch(script(new)) is None
    assert ast.dump(_Without().visit(ast.parse(new))) == ast.dump(ast.parse(text))
    changed = new.replace("\r\n", "\n").splitlines()
    if "\r\n" in text:
        assert "\n" not in new.replace("\r\n", "")
    assert sum(MARK in line for line in changed) >= 3


@given(generated_script(), st.data())
def test_other_changes_stay_when_it_is_taken_out(text: str, data: st.DataObject) -> None:
    lines = patched_or_refused(text).split("\n")
    ours = [index for index, line in enumerate(lines) if line.rstrip("\r").endswith(MARK) and "    with" not in line]
    at = data.draw(st.sampled_from(ours[:1]))
    lines.insert(at, "# mine")
    expected = remove_patch(script("\n".join(lines)))
    assert expected is not None
    assert "# mine" in expected
    assert MARK not in expected


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_runs_as_before_and_its_steps_are_recorded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(tmp_path, SCRIPTS[name])
    before = capsys.readouterr().out
    assert before
    events = tmp_path / "trace.jsonl"
    monkeypatch.setenv("FRX_RAW_TRACE_PATH", str(events))
    monkeypatch.setenv("FRX_AUTO_PERSIST", "1")
    _run(tmp_path, patched(SCRIPTS[name]))
    AutopilotSession.from_env().close()
    assert capsys.readouterr().out == before
    written = [json.loads(line) for line in events.read_text().splitlines()]
    steps = [event["step_id"] for event in written if event["event_type"] == "step_end"]
    expected = {"plain": 4, "function": 8, "generator": 8, "lbfgs": 2}[name]
    assert steps == list(range(expected))
    waits = [event for event in written if event["event_type"] == "dataloader_span"]
    assert (len(waits) > 0) is (name != "lbfgs")
    phases = {event["payload"]["phase_name"] for event in written if event["event_type"] == "phase_span"}
    assert (
        phases
        == {
            "plain": {"forward", "backward", "optimizer"},
            "function": {"forward", "backward"},
            "generator": {"forward", "backward", "optimizer"},
            "lbfgs": set(),
        }[name]
    )
    shapes = [event["payload"] for event in written if event["event_type"] == "shape_snapshot"]
    assert {each["of"] for each in shapes} == {"batch", "parameters"}


def _run(folder: Path, text: str) -> None:
    path = folder / "train.py"
    path.write_text(text, encoding="utf-8")
    torch.manual_seed(0)
    runpy.run_path(str(path), run_name="__main__")


def test_behind_the_last_import_before_the_loop() -> None:
    new = patched(PLAIN + "import late\n").splitlines()
    assert (
        new.index(f"import frx_graph  {MARK}")
        == new.index("from torch.utils.data import DataLoader, TensorDataset") + 1
    )
    assert patched('"""Doc."""\nfor x in loader:\n    x.loss.mean().backward()\n    optimizer.step()\n').startswith(
        f'"""Doc."""\nimport frx_graph  {MARK}\n'
    )


def test_a_step_that_the_script_counts_is_passed_on() -> None:
    assert "with frx_graph.step_context(batch=batch, model=model):" in patched(
        "for batch in loader:\n    model(batch).backward()\n"
    )
    new = patched("for step, batch in enumerate(loader):\n    model(batch).backward()\n")
    assert "with frx_graph.step_context(step=step, batch=batch, model=model):" in new


@pytest.mark.parametrize(
    ("header", "timed"),
    [
        ("for x in loader:", "for x in frx_graph.instrument_dataloader(loader):"),
        ("for x in self.loader:", "for x in frx_graph.instrument_dataloader(self.loader):"),
        ("for x in loaders[0]:", "for x in frx_graph.instrument_dataloader(loaders[0]):"),
        ("for x in DataLoader( data ):", "for x in frx_graph.instrument_dataloader(DataLoader( data )):"),
        ("for x in tqdm(loader, total=2):", "for x in tqdm(frx_graph.instrument_dataloader(loader), total=2):"),
        ("for i, x in enumerate( tqdm(loader) , 1):", None),
        ("for x in(loader):", "for x in(loader):"),
        ("for x in one, two:", "for x in one, two:"),
        ("for x in [one, two]:", "for x in [one, two]:"),
        ("for step in range(4):", "for step in range(4):"),
    ],
)
def test_batch_iterators_are_timed(header: str, timed: str | None) -> None:
    text = f"{header}\n    model(x).backward()\n"
    new = patched(text)
    if timed is None:
        timed = "for i, x in enumerate( tqdm(frx_graph.instrument_dataloader(loader)) , 1):"
    assert (f"{timed}  {MARK}" if "frx_graph" in timed else timed) in new.splitlines()
    assert remove_patch(script(new)) == text


@pytest.mark.parametrize("header", ["for x in loader:  # why", "for x in loader: "])
def test_header_with_a_comment_or_a_blank_is_not_marked(header: str) -> None:
    text = f"{header}\n    model(x).backward()\n"
    new = patched(text)
    assert header.replace("loader", "frx_graph.instrument_dataloader(loader)") in new.splitlines()
    assert remove_patch(script(new)) == text


@pytest.mark.parametrize(
    ("statement", "phase"),
    [
        ("loss.backward()", "backward"),
        ("(loss / 2).backward(retain_graph=True)", "backward"),
        ("losses[0].mean().backward()", "backward"),
        ("self.scaler.scale(loss).backward()", "backward"),
        ("accelerator.backward(loss)", "backward"),
        ("optimizer.step()", "optimizer"),
        ("scaler.step(optimizer)", "optimizer"),
        ("self.optimizers[0].step()", "optimizer"),
        ("out = model(x)", "forward"),
        ("loss: Tensor = criterion(model(x), y)", "forward"),
        # These are several parts, or run later, or are none.
        ("model(x).sum().backward()", None),
        ("criterion(net(x), y).backward()", None),
        ("optimizer.step(closure)", None),
        ("optimizer.step(); optimizer.zero_grad()", None),
        ("optimizer.zero_grad()", None),
        ("opt_scheduler.step()", None),
        ("env.step()", None),
        ("loss = criterion(out, y)", None),
        ("outs = (model(each) for each in x)", None),
        ("closure = lambda: model(x)", None),
        ("backward()", None),
    ],
)
def test_statement_that_is_one_part_of_a_step_is_timed(statement: str, phase: str | None) -> None:
    text = f"for x in loader:\n    model(x)\n\n    # said before\n    {statement}  # said behind\n    loss.backward()\n"
    new = patched(text)
    lines = [line.strip() for line in new.splitlines()]
    at = lines.index(f"{statement}  # said behind")
    expected = ["# said before"] if phase is None else ["# said before", f'with frx_graph.span("{phase}"):  {MARK}']
    assert lines[at - len(expected) : at] == expected
    assert remove_patch(script(new)) == text


def test_statement_of_a_function_within_the_loop_is_not_timed() -> None:
    new = patched("for x in loader:\n    def closure():\n        loss.backward()\n    opt.step(closure)\n")
    assert "span" not in new


def test_comment_further_in_keeps_statements_from_being_timed() -> None:
    text = "for x in loader:\n  loss.backward()\n     # further in\n  opt.step()\n"
    new = patched(text)
    assert "step_context" in new
    assert "span" not in new
    assert remove_patch(script(new)) == text


def test_an_asynchronous_loop_is_not_timed() -> None:
    assert "instrument" not in patched(
        "async def f():\n    async for x in loader:\n        x.loss(model).backward(); opt.step()\n"
    )


def test_a_name_that_is_taken_is_left_alone() -> None:
    with pytest.raises(ScriptError, match="uses the name frx_graph"):
        patched(f"frx_graph = 1\n{PLAIN}")


def test_no_name_of_the_script_is_given_to_something_else() -> None:
    given = {name.id for name in ast.walk(ast.parse(PLAIN)) if isinstance(name, ast.Name)}
    tree = ast.parse(patched(PLAIN))
    bound = {name.id for name in ast.walk(tree) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
    bound |= {
        alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    assert bound - given - {"torch"} == {"frx_graph"}


@pytest.mark.parametrize(
    "line",
    ["import frx_graph", "import frx_graph as frx", "import frx_graph.runs", "from frx_graph import init"],
)
def test_a_script_that_does_it_already_is_left_alone(line: str) -> None:
    assert patch(script(f"{line}\n{PLAIN}")) is None
    assert remove_patch(script(f"{line}\n{PLAIN}")) is None


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["   \n", "\n    \n\t\n", "\n \f\n  ", "    "])
def test_blanks_at_the_end_stay(end: str, newline: str) -> None:
    text = (PLAIN.removesuffix('print("done", len(text), i)\n') + end).replace("\n", newline)
    assert patched(text).endswith(end.replace("\n", newline))
    assert remove_patch(script(patched(text))) == text


GUARDED = """import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, x in enumerate([torch.ones(2, 4)] * 5):
    # enough
    if i == 3:
        break
    if i == 1: continue
    # a step
    optimizer.zero_grad()
    if i == 7:
        break
    else:
        model(x).sum().backward()
    optimizer.step()
"""


def test_iteration_skipped_by_a_guard_is_not_a_step() -> None:
    new = patched(GUARDED)
    assert "\n    if i == 1: continue\n    with frx_graph.step_context(step=i, batch=x):" in new
    assert "\n        optimizer.zero_grad()\n        if i == 7:\n" in new
    assert remove_patch(script(new)) == GUARDED


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print(1)\n", "no loop in it trains"),
        (
            "from transformers import Trainer\nTrainer(model).train()\n",
            "the loop is that of transformers (give its Trainer callbacks=[FrxCallback()], "
            "of frx_graph.callbacks.huggingface)",
        ),
        ("import lightning as L\nL.Trainer().fit(model)\n", "of frx_graph.callbacks.lightning"),
        (PLAIN.replace("\n", "\r"), "a line ends with a carriage return alone"),
        ("while True:\n    loss.backward()\n", "line 1: it is a while loop"),
        ("for x in loader: model(x).backward()\n", "line 1: the loop's body is on the line of `for`"),
        ("for x in loader:\n", "not Python"),
        ("def f(:\n", "line 1: not Python"),
        ("x = 1\x00\n", "not Python"),
        ("return 1\nfor x in y:\n    x.backward()\n    opt.step()\n", "cannot be changed so that it runs"),
        ("(" * 5000, "not Python"),
        ("-" * 90000 + "1", "nested too deeply"),
        ("x = " + "1+" * 20000 + "1", "nested too deeply"),
    ],
    ids=range(13),
)
def test_impossible_patch_is_reported_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ScriptError, match=r"train\.py") as raised:
        patch(script(text))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_byte_order_mark_stays() -> None:
    text = "for x in loader:\n    model(x).backward()\n"
    marked = Script(Path("a.py"), codecs.BOM_UTF8 + text.encode(), text)
    assert marked.encode(patched(text)).startswith(codecs.BOM_UTF8)


def test_patching_does_not_emit_the_syntax_warnings_of_the_script(tmp_path: Path) -> None:
    text = PLAIN.replace('print("done"', 'print("\\d" is "done"')
    script = Script(tmp_path / "train.py", text.encode(), text)
    with pytest.warns((SyntaxWarning, DeprecationWarning)):
        compile(text, "train.py", "exec")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        patched = patch(script).text
        assert remove_patch(Script(script.path, patched.encode(), patched)) == text

"""Scripts as files: what is refused, what is kept."""

from __future__ import annotations

import codecs
import os
import stat
from pathlib import Path

import pytest

from frx_graph.errors import ScriptError
from frx_graph.instrumentation.script import LONGEST, read_script, replace_script
from frx_graph.instrumentation.script_search import DEEPEST, MOST_PARSED, find_scripts

TRAINS = "for x in loader:\n    model(x).backward()\n    optimizer.step()\n"


def test_mode_line_ends_and_mark_stay(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(codecs.BOM_UTF8 + b"a = '\xc3\xbc'\r\n")
    path.chmod(0o741)
    script = read_script(path)
    assert script.text == "a = 'ü'\r\n"
    replace_script(script, script.text + "b = 1\r\n")
    assert path.read_bytes() == codecs.BOM_UTF8 + b"a = '\xc3\xbc'\r\nb = 1\r\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o741
    assert list(tmp_path.iterdir()) == [path]


def test_one_that_has_changed_in_between_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("a = 1\n")
    script = read_script(path)
    path.write_text("a = 2\n")
    with pytest.raises(ScriptError, match="has changed in between"):
        replace_script(script, "a = 3\n")
    assert path.read_text() == "a = 2\n"


def test_unreadable_scripts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRAINS)
    (tmp_path / "link.py").symlink_to(path)
    (tmp_path / "latin.py").write_bytes(b"# coding: latin-1\na = '\xfc'\n")
    (tmp_path / "bytes.py").write_bytes(b"a = '\xfc'\n")
    (tmp_path / "made_up.py").write_bytes(b"# coding: klingon\n")
    (tmp_path / "huge.py").write_bytes(b"#" * (LONGEST + 1))
    os.mkfifo(tmp_path / "pipe.py")
    for name, said in {
        "link.py": "is a link",
        "latin.py": "is in iso-8859-1",
        "bytes.py": "is not in UTF-8: byte 5",
        "made_up.py": "is in unknown",
        "huge.py": "bytes",
        "pipe.py": "not a regular file",
        ".": "not a regular file",
        "missing.py": "cannot be read",
    }.items():
        with pytest.raises(ScriptError, match=said):
            read_script(tmp_path / name)
    assert len(read_script(path).data) == len(TRAINS)
    (tmp_path / "other.py").hardlink_to(path)
    with pytest.raises(ScriptError, match="has 2 names"):
        read_script(path)


def write(folder: Path, name: str, text: str = TRAINS) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_scripts_are_found_by_their_contents(tmp_path: Path) -> None:
    write(tmp_path, "zzz.py")
    write(tmp_path, "deep/er/train.py")
    write(tmp_path, "done.py", f"import frx_graph\n{TRAINS}")
    write(tmp_path, "hf.py", "from transformers import Trainer\nTrainer(model).train()\n")
    write(tmp_path, "endless.py", "while True:\n    loss.backward()\n")
    write(tmp_path, "train.py", "print('only by name')\n")
    write(tmp_path, "evaluate.py", "for x in loader:\n    model(x)  # no backward\n")
    write(tmp_path, "broken.py", "def backward(:\n")
    write(tmp_path, "notes.txt")
    found = find_scripts(tmp_path)
    assert found.complete
    assert [(str(each.path), each.line) for each in found.scripts] == [
        ("deep/er/train.py", 1),
        ("done.py", 2),
        ("zzz.py", 1),
        ("endless.py", None),
        ("hf.py", None),
    ]
    assert [each.instrumented for each in found.scripts] == [False, True, False, False, False]
    assert "while loop" in found.scripts[3].note
    assert "transformers" in found.scripts[4].note


def test_what_is_not_the_users_own_is_not_searched(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write(outside, "train.py")
    inside = tmp_path / "inside"
    for folder in (".git", "lib/site-packages", "node_modules", "__pycache__", ".venv"):
        write(inside, f"{folder}/train.py")
    write(inside, "environment/lib/train.py")
    write(inside, "environment/pyvenv.cfg", "")
    write(inside, "/".join(["d"] * (DEEPEST + 1)) + "/train.py")
    (inside / "linked").symlink_to(outside)
    (inside / "train.py").symlink_to(outside / "train.py")
    assert find_scripts(inside).scripts == ()


def test_the_search_has_an_end(tmp_path: Path) -> None:
    for number in range(MOST_PARSED + 1):
        write(tmp_path, f"a{number:03d}.py", "loss.backward()\n")
    write(tmp_path, "zzz.py")
    found = find_scripts(tmp_path)
    assert (found.scripts, found.complete) == ((), False)

"""The names that a file has for modules, and the imports that it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from frx_graph.fix.imports import name_torch
from frx_graph.fix.source_file import CannotFixError, apply_edits, read_source


@pytest.mark.parametrize(
    ("before", "name", "after"),
    [
        ("import torch\n", "torch", "import torch\n"),
        ("import os, torch as th\n", "th", "import os, torch as th\n"),
        ("import os\nfrom torch import nn\n", "torch", "import os\nimport torch\nfrom torch import nn\n"),
        ("import torch.nn\n", "torch", "import torch.nn\n"),
        ("import torch.nn as nn\n", "torch", "import torch\nimport torch.nn as nn\n"),
        ("from torch.nn.functional import gelu\n", "torch", "import torch\nfrom torch.nn.functional import gelu\n"),
        ("from torch import nn\r\n", "torch", "import torch\r\nfrom torch import nn\r\n"),
    ],
)
def test_torch_is_imported_where_it_is_not(before: str, name: str, after: str, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_bytes(before.encode())
    found, edits = name_torch(read_source(path))
    assert (found, apply_edits(before.encode(), edits).decode()) == (name, after)


@pytest.mark.parametrize(
    "text",
    [
        "from torch import nn\ntorch = None\n",
        "from .torch import nn\n",
        "import numpy\n",
        "from os import torch\n",
        "class A: ...\n\n\nimport torch\n",
    ],
)
def test_other_files_have_no_name_for_it(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(text)
    with pytest.raises(CannotFixError, match="does not import torch by itself"):
        name_torch(read_source(path))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import torch as t\ndef forward(self, x, t): ...\n", "t"),
        ("import torch\nclass A:\n    torch = None\n", "torch"),
    ],
)
def test_name_with_another_use_is_left_alone(text: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(text)
    with pytest.raises(CannotFixError, match=f"the file has another use for the name `{name}`"):
        name_torch(read_source(path))

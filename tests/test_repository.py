"""The repository as a whole: what is packaged, what may be imported under which name, what the documentation says."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import frx_graph

ROOT = Path(__file__).parent.parent
MOVED = ("passes", "rules", "trials")
"""Folders at the root that are installed inside `frx_graph`."""


def tracked_files() -> list[Path]:
    """What git tracks and the working tree holds, relative to the root; links are listed and not followed."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file() | (ROOT / name).is_symlink()]


def package_folders() -> dict[str, Path]:
    """Import name to folder, relative to the root, of every folder with an `__init__.py`."""
    found = {}
    for top in ("frx_graph", *MOVED):
        for init in (ROOT / top).rglob("__init__.py"):
            folder = init.parent.relative_to(ROOT)
            name = ".".join(folder.parts)
            found[name if top == "frx_graph" else f"frx_graph.{name}"] = folder
    return found


def test_packages_are_the_folders_with_an_init() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["packages"] == sorted(package_folders())


@pytest.mark.parametrize("name", MOVED)
def test_link_points_to_the_folder_at_the_root(name: str) -> None:
    link = ROOT / "frx_graph" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", name)


@pytest.mark.parametrize("name", MOVED)
def test_folder_refuses_to_be_imported_under_its_own_name(name: str) -> None:
    ran = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 1
    assert f"ImportError: import frx_graph.{name}" in ran.stderr


@pytest.mark.integration
def test_every_module_imports() -> None:
    names = [module.name for module in pkgutil.walk_packages(frx_graph.__path__, "frx_graph.")]
    assert len(names) > len(package_folders())
    for name in names:
        if not name.endswith(".__main__"):
            importlib.import_module(name)


@pytest.mark.integration
def test_public_functions_are_not_hidden_by_modules_of_the_same_name() -> None:
    # In a fresh process, because importing a submodule replaces the package's attribute for good.
    program = (
        "import frx_graph, frx_graph.cli.commands, frx_graph.backend;"
        "functions = [name for name in frx_graph.__all__ if name != '__version__'];"
        "print([name for name in functions if not callable(getattr(frx_graph, name))])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_no_file_names_a_place_on_one_machine_or_a_package_index() -> None:
    folders = "|".join(re.escape(place) for place in (str(ROOT), str(Path.home()), "/root", "/work", "/Users"))
    hosts = r"pypi\.org|pythonhosted\.org|download\.pytorch\.org"
    forbidden = re.compile(rf"(?<![\w.])(?:{folders})/\w+|{hosts}".encode())
    hits = [
        f"{path}: {match.group().decode()}"
        for path in tracked_files()
        if not (ROOT / path).is_symlink() and path.suffix not in (".gz", ".png")
        for match in forbidden.finditer((ROOT / path).read_bytes())
    ]
    assert hits == []


def test_constraints_pin_every_direct_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    pins = dict(
        line.lower().split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    required = {re.split(r"[<>=!~ \[]", requirement)[0].lower() for requirement in requirements}
    # Extras name each other through the project itself.
    assert required - pins.keys() - {"frx-graph"} == set()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the tracked files, built in a copy so that the working tree stays clean."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for path in tracked_files():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, source / path, follow_symlinks=False)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(source)], check=True)
    (built,) = folder.glob("frx_graph-*.whl")
    return built


@pytest.mark.integration
def test_wheel_holds_every_module_and_data_file_once(wheel: Path) -> None:
    links = {Path("frx_graph") / name for name in MOVED}
    expected = {
        str(path if path.parts[0] == "frx_graph" else Path("frx_graph") / path)
        for path in tracked_files()
        if path.parts[0] in ("frx_graph", *MOVED) and path not in links
    }
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted(expected)


@pytest.mark.integration
def test_wheel_works_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = (
        "import frx_graph.cli.main, frx_graph.backend, sys;"
        "print(frx_graph.__file__);"
        "sys.exit(frx_graph.cli.main.run(['rules', 'FRX001']))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    where, _, card = ran.stdout.partition("\n")
    assert where == str(tmp_path / "frx_graph" / "__init__.py")
    assert "hidden_copy" in card

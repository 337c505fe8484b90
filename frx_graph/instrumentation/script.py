"""Read and replace a Python script without changing its encoding, line ends or mode."""

from __future__ import annotations

import ast
import codecs
import io
import os
import shutil
import stat
import tokenize
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

from frx_graph.errors import ScriptError, summarize_error
from frx_graph.support.atomic_file import replace_on_success

LONGEST = 1 << 20
"""Longest script that is read, in bytes; scripts written by hand are far shorter."""
_BLANKS = " \t\f\r\n"


@dataclass(frozen=True, slots=True)
class Script:
    """A file's bytes, and its text without the byte order mark."""

    path: Path
    data: bytes
    text: str

    @property
    def blank_end(self) -> str:
        """Blank lines at the end of the file, of which libcst does not keep all."""
        behind = self.text[len(self.text.rstrip(_BLANKS)) :]
        _, end, lines = behind.partition("\n")
        return lines if end else ""

    def encode(self, text: str) -> bytes:
        """Encode another text in the encoding of this file."""
        mark = codecs.BOM_UTF8 if self.data.startswith(codecs.BOM_UTF8) else b""
        return mark + text.encode("utf-8")


def read_script(path: Path) -> Script:
    """Read the UTF-8 script at `path`, of at most `LONGEST` bytes. Raises `ScriptError` for a link, since replacing it
    would not change the file that it names. It also raises for anything but a regular file, and for other encodings."""
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise ScriptError(f"{path} is a link", f"name the file itself: {os.path.realpath(path)}")
        if not stat.S_ISREG(status.st_mode):
            raise ScriptError(f"{path} is not a regular file", "name a Python script")
        if status.st_nlink > 1:
            raise ScriptError(f"{path} has {status.st_nlink} names, of which one would be replaced", "copy it first")
        if status.st_size > LONGEST:
            raise ScriptError(f"{path} has {status.st_size:,} bytes", f"scripts of up to {LONGEST:,} are read")
        with path.open("rb") as file:
            data = file.read(LONGEST + 1)
    except OSError as error:
        raise ScriptError(f"{path} cannot be read: {error.strerror}", "name a Python script") from error
    encoding = read_declared_encoding(data)
    try:
        if encoding not in ("utf-8", "ascii"):
            raise ScriptError(f"{path} is in {encoding}", "scripts in UTF-8 are read")
        return Script(path, data, data.removeprefix(codecs.BOM_UTF8).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ScriptError(f"{path} is not in UTF-8: byte {error.start}", "scripts in UTF-8 are read") from error


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """Suppress warnings about the script, which are meant for people who run it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def parse_script(script: Script) -> cst.Module:
    """Parse the script, with every blank and comment except its `blank_end`. Raises `ScriptError` if it is not Python,
    is nested too deeply, or ends a line with a carriage return alone."""
    try:
        with ignore_warnings():
            # Python parses first, since it limits the depth of nesting.
            ast.parse(script.text)
        text = script.text.removesuffix(script.blank_end)
        module = cst.parse_module(text)
        same = module.code == text
    except (SyntaxError, cst.ParserSyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or getattr(error, "raw_line", None)
        where = "" if line is None else f", line {line}"
        said = error.msg if isinstance(error, SyntaxError) else summarize_error(error)
        raise ScriptError(f"{script.path}{where}: not Python: {said}", "fix it first") from error
    except (RecursionError, MemoryError) as error:
        raise ScriptError(f"{script.path} is nested too deeply", "instrument it by hand") from error
    if not same and "\r" in script.text.replace("\r\n", ""):
        raise ScriptError(f"{script.path}: a line ends with a carriage return alone", "end it with a line feed")
    if not same:
        raise ScriptError(f"{script.path} cannot be written as it was read", "instrument it by hand")
    return module


def replace_script(script: Script, text: str) -> None:
    """Replace the file's content by `text`, completely or not at all, and keep its mode. Raises `ScriptError` if the
    file has changed since it was read, or cannot be written."""
    if read_script(script.path).data != script.data:
        raise ScriptError(f"{script.path} has changed in between", "try again")
    try:
        with replace_on_success(script.path) as temporary:
            temporary.write_bytes(script.encode(text))
            shutil.copymode(script.path, temporary)
    except OSError as error:
        raise ScriptError(f"{script.path} cannot be written: {error.strerror}", "it was left as it was") from error


def read_declared_encoding(data: bytes) -> str:
    """Return the encoding that a script names: `utf-8` by default, `unknown` if Python does not know it."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except (SyntaxError, ValueError):
        # This also covers first lines that are not UTF-8: decoding reports them.
        return "utf-8" if b"coding" not in b"".join(data.splitlines()[:2]) else "unknown"
    return encoding.removesuffix("-sig")

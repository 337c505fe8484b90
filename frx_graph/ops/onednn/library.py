"""Load the shared library of oneDNN, and declare the functions of the C interface that are used.

Torch contains oneDNN, but does not export it, and describes operands again in every call of an operator. The library of
the wheel `onednn-cpu-gomp` or of a distribution (Debian's `libdnnl3`) does the same sums.

Sources: oneDNN 3.2, `dnnl.h`, `dnnl_common.h` and `dnnl_types.h`, whose numbers are the same in all versions 3.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from frx_graph.errors import FrxError

WHEEL = "onednn-cpu-gomp"
"""The distribution on PyPI that has the library, for x86-64."""
_FILE = "libdnnl.so.3"
_MAJOR = 3
_OPENMP_RUNTIME = 2
"""`DNNL_RUNTIME_OMP`."""
_MOST_DIMENSIONS = 12
"""`DNNL_MAX_NDIMS`."""

FLOAT32 = 3
ANY_FORMAT = 1
GIVEN_SCRATCHPAD = 1
INFERENCE = 96
DIRECT_CONVOLUTION = 1
ARGUMENTS = {"source": 1, "second_source": 2, "destination": 17, "weights": 33, "bias": 41, "scratchpad": 80}
"""Numbers of a primitive's arguments (`DNNL_ARG_*`). Sources of a concatenation are counted from `SOURCES`."""
SOURCES = 1024
"""`DNNL_ARG_MULTIPLE_SRC`."""
POST_OPERATION = 32768
"""`DNNL_ARG_ATTR_MULTIPLE_POST_OP_BASE`: the second source of post-operation n is an argument of this times n + 1."""
DESCRIPTORS = {"source": 129, "weights": 131, "destination": 133, "scratchpad": 136}
"""Numbers of the queries for a primitive's memory descriptors."""
_IMPLEMENTATION = 8
"""`dnnl_query_impl_info_str`."""
ALGORITHMS = {
    "relu": 0x20,
    "tanh": 0x21,
    "linear": 0x26,
    "sigmoid": 0x29,
    "swish": 0x2C,
    "clip": 0x2F,
    "gelu": 0x31,
    "hardswish": 0x34,
    "max": 0x1FF,
    "average": 0x2FF,
    "average_inside": 0x3FF,
    "add": 0x1FFF0,
    "mul": 0x1FFF1,
    "sub": 0x1FFF5,
}


class OneDnnError(FrxError):
    """oneDNN is missing, cannot be used in this process, or does not offer what was asked for."""


class Handle:
    """Owns one of oneDNN's objects, and destroys it."""

    def __init__(self, pointer: ctypes.c_void_p, destroy: Callable[[ctypes.c_void_p], int]) -> None:
        self.pointer = self._as_parameter_ = pointer
        self._destroy = destroy

    def __del__(self) -> None:
        self._destroy(self.pointer)


class ExecutionArgument(ctypes.Structure):
    """`dnnl_exec_arg_t`."""

    _fields_ = [("number", ctypes.c_int), ("memory", ctypes.c_void_p)]


class _Version(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("patch", ctypes.c_int),
        ("hash", ctypes.c_char_p),
        ("cpu_runtime", ctypes.c_uint),
        ("gpu_runtime", ctypes.c_uint),
    ]


class Library:
    """oneDNN in this process, with one engine and one stream of the processor."""

    def __init__(self, path: str) -> None:
        """Load the library. Raises `OneDnnError` if it is none, of another version, or without OpenMP."""
        try:
            self._functions = ctypes.CDLL(path)
            self._functions.dnnl_version.restype = ctypes.POINTER(_Version)
            found = self._functions.dnnl_version().contents
        except (OSError, AttributeError) as error:
            raise OneDnnError(f"oneDNN cannot be loaded, pip install {WHEEL} brings it: {error}") from error
        self.version = f"{found.major}.{found.minor}.{found.patch}"
        if found.major != _MAJOR or found.cpu_runtime != _OPENMP_RUNTIME:
            raise OneDnnError(f"{path} is version {self.version}, or without OpenMP; version 3 with OpenMP is needed")
        runtimes = _list_openmp_runtimes()
        if len(runtimes) > 1:
            raise OneDnnError(f"several OpenMP libraries are loaded: {', '.join(runtimes)}")
        self._declare()
        self.engine = self.make("engine", 1, ctypes.c_size_t(0))
        self.stream = self.make("stream", self.engine, 1)

    def _declare(self) -> None:
        pointer, integer, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_float
        signatures: dict[str, tuple[Sequence[Any], Any]] = {
            "dnnl_memory_desc_get_size": ([pointer], ctypes.c_size_t),
            "dnnl_memory_desc_equal": ([pointer, pointer], integer),
            "dnnl_primitive_desc_query_md": ([pointer, integer, integer], pointer),
            "dnnl_post_ops_append_eltwise": ([pointer, integer, real, real], integer),
            "dnnl_post_ops_append_binary": ([pointer, integer, pointer], integer),
            "dnnl_memory_set_data_handle": ([pointer, pointer], integer),
            "dnnl_primitive_execute": ([pointer, pointer, integer, pointer], integer),
        }
        for name, (arguments, result) in signatures.items():
            function = getattr(self._functions, name)
            function.argtypes, function.restype = arguments, result

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status. Raises `OneDnnError` for any but success."""
        if status := getattr(self._functions, f"dnnl_{name}")(*arguments):
            raise OneDnnError(f"oneDNN's {name} fails with status {status}")

    def make(self, kind: str, *arguments: Any, destroyed_as: str | None = None) -> Handle:
        """Create an object of `kind` by `dnnl_<kind>_create`."""
        pointer = ctypes.c_void_p()
        self.call(f"{kind}_create", ctypes.byref(pointer), *arguments)
        return Handle(pointer, getattr(self._functions, f"dnnl_{destroyed_as or kind}_destroy"))

    def describe(self, shape: Sequence[int], strides: Sequence[int] | None = None) -> Handle:
        """Return the descriptor of memory in single precision, with these strides, or with any layout."""
        sizes = make_sizes(shape)
        if strides is None:
            return self._describe("with_tag", len(shape), sizes, FLOAT32, ANY_FORMAT)
        return self._describe("with_strides", len(shape), sizes, FLOAT32, make_sizes(strides))

    def _describe(self, how: str, *arguments: Any) -> Handle:
        pointer = ctypes.c_void_p()
        self.call(f"memory_desc_create_{how}", ctypes.byref(pointer), *arguments)
        return Handle(pointer, self._functions.dnnl_memory_desc_destroy)

    def describe_primitive(self, kind: str, *arguments: Any) -> Handle:
        """Return the descriptor of a primitive. Raises `OneDnnError` if oneDNN has no such primitive."""
        return self.make(f"{kind}_primitive_desc", *arguments, destroyed_as="primitive_desc")

    def query(self, primitive: Handle, which: str) -> Handle:
        """Return the descriptor of one of a primitive's operands."""
        found = self._functions.dnnl_primitive_desc_query_md(primitive, DESCRIPTORS[which], 0)
        pointer = ctypes.c_void_p()
        self.call("memory_desc_clone", ctypes.byref(pointer), ctypes.c_void_p(found))
        return Handle(pointer, self._functions.dnnl_memory_desc_destroy)

    def count_bytes(self, descriptor: Handle) -> int:
        """Return the bytes that memory of this description takes."""
        return int(self._functions.dnnl_memory_desc_get_size(descriptor))

    def are_equal(self, first: Handle, second: Handle) -> bool:
        """Return True if two descriptors are of the same memory."""
        return bool(self._functions.dnnl_memory_desc_equal(first, second))

    def name_kernel(self, primitive: Handle) -> str:
        """Return the name of the implementation that a primitive has."""
        name = ctypes.c_char_p()
        self.call("primitive_desc_query", primitive, _IMPLEMENTATION, 0, ctypes.byref(name))
        return (name.value or b"").decode()

    @property
    def execute(self) -> Any:
        """`dnnl_primitive_execute`, which returns a status."""
        return self._functions.dnnl_primitive_execute


def make_sizes(values: Sequence[int]) -> Any:
    """Return `dnnl_dims_t`."""
    return (ctypes.c_int64 * _MOST_DIMENSIONS)(*values)


@functools.cache
def find_library() -> Library | str:
    """Return oneDNN, loaded once, or the reason why it cannot be used. Torch is to be imported before."""
    try:
        return Library(_find_file())
    except (OneDnnError, OSError) as error:
        return str(error)


def _find_file() -> str:
    """Return the wheel's library, or the name by which a distribution's is found."""
    try:
        files = metadata.files(WHEEL) or ()
    except metadata.PackageNotFoundError:
        files = ()
    located = (Path(str(file.locate())) for file in files if file.name == _FILE)
    installed = next((str(path) for path in located if path.exists()), None)
    return installed or _FILE


def _list_openmp_runtimes() -> list[str]:
    """Return the OpenMP libraries that are mapped: threads of two would compete for the processors."""
    maps = Path("/proc/self/maps").read_text(errors="replace")
    return sorted(set(re.findall(r"\S*/lib(?:gomp|iomp5|omp)(?:-[0-9a-f]+)?\.so\S*", maps)))

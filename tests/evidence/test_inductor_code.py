"""Copies in the code of Inductor's are found with what they write; nothing of the code is run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from frx_graph.evidence.dtype import DType
from frx_graph.evidence.inductor_code import GeneratedCode, read_inductor_code
from frx_graph.evidence.measurement import Measurement, Provenance

CODE = """\
    def call(self, args):
        arg0_1, = args
        assert_size_stride(arg0_1, (4, 32, 16), (512, 1, 32), 'input')
        buf0 = empty_strided_cpu((4, 32, 16), (512, 16, 1), torch.float32)
        cpp_fused_clone_transpose_0(arg0_1, buf0)
        buf1 = empty_strided_cpu((4, 32, 16), (512, 16, 1), torch.float32)
        cpp_fused_add_clone_1(buf0, buf1)
        buf2 = reinterpret_tensor(buf0, (4, 16, 32), (512, 32, 1), 0); del buf0  # reuse
        cpp_fused_clone_transpose_0(buf1, buf2)
        return (buf2, )
"""


def read(code: str) -> GeneratedCode:
    return read_inductor_code(code.splitlines(keepends=True))


def test_copy_loop_is_reported_with_its_target() -> None:
    code = read(CODE)
    assert (code.graphs, code.calls) == (1, 3)
    first, second = code.copies
    assert (first.kernel, first.line) == ("cpp_fused_clone_transpose_0", 5)
    assert (first.target.shape, first.target.strides) == ((4, 32, 16), (512, 16, 1))
    assert (first.target.dtype, first.target.device) == (DType.FLOAT32, "cpu")
    # Memory that is used again is laid out anew.
    assert (second.line, second.target.shape) == (9, (4, 16, 32))


def test_a_copy_is_a_measurement_with_its_line() -> None:
    (fact,) = read(CODE).copies[0].list_measurements("code.py")
    size = 4.0 * 4 * 32 * 16
    assert fact == Measurement(
        "bytes_written", size, "byte", "cpp_fused_clone_transpose_0", Provenance("code.py", 5, "buf0")
    )


def test_log_prefix_is_not_part_of_the_code() -> None:
    logged = "".join(f"V1124 10:00:00.1 1 a.py:3] [0/0] [__output_code] {line}\n" for line in CODE.splitlines())
    assert read(logged).copies == read(CODE).copies


def test_a_triton_kernel_takes_sizes_and_a_stream() -> None:
    code = CODE.replace("empty_strided_cpu", "empty_strided_cuda").replace("cpp_", "triton_poi_")
    code = code.replace("clone_transpose_0(arg0_1, buf0)", "clone_transpose_0.run(arg0_1, buf0, 2048, stream=stream0)")
    first = read(code).copies[0]
    assert (first.target.name, first.target.device) == ("buf0", "cuda")


def test_symbolic_sizes_are_not_known() -> None:
    assert read(CODE.replace("(4, 32, 16), (512, 16, 1)", "(s0, 32, 16), (512, 16, 1)")).copies == ()


def test_impossibly_large_sizes_give_no_byte_count() -> None:
    size = "9" * 18
    code = CODE.replace("(4, 32, 16), (512, 16, 1)", f"({size}, {size}, {size}), (1, 1, 1)")
    assert [list(copy.list_measurements("code.py")) for copy in read(code).copies[:1]] == [[]]


@given(st.lists(st.sampled_from(CODE.splitlines()), max_size=20), st.text(max_size=30), st.integers(0, 200))
def test_no_text_is_too_hostile(lines: list[str], text: str, place: int) -> None:
    code = "\n".join(lines)
    read(code[:place] + text + code[place:])

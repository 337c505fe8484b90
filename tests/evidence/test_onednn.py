from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from frx_graph.evidence.onednn import is_log_line, list_implementations, parse_log

LOGS = Path(__file__).parent.parent / "data" / "onednn"
"""Verbose logs of torch 2.15 (oneDNN 3.13.3) and 2.13 (3.12.0), single operators on an AVX-512 processor; lines that
start with # are section titles."""

LINE = (
    "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:blk,undef,src:f32::blocked:abcd::f0 dst:f32::blocked:aBcd16b::f0,"
    "attr-scratchpad:user,,2x64x16x16,0.25"
)


def section(file: str, title: str) -> str:
    _, _, rest = (LOGS / file).read_text().partition(f"# {title}\n")
    return rest.partition("\n#")[0]


def test_a_line_becomes_a_record() -> None:
    (primitive,) = parse_log(LINE)
    assert (primitive.kind, primitive.implementation) == ("reorder", "jit:blk")
    source, target = primitive.arguments
    assert (source.argument, source.dtype, source.tag, source.dims) == ("src", "f32", "abcd", (2, 64, 16, 16))
    assert (target.argument, target.format, target.itemsize) == ("dst", "aBcd16b", 4)


def test_a_real_log_names_the_implementation_of_each_convolution() -> None:
    assert list_implementations(parse_log(section("onednn-3.13.3.log", "depthwise"))) == ("jit_dw:avx512_core",)
    assert list_implementations(parse_log(section("onednn-3.13.3.log", "bfloat16"))) == ("jit_bf16:avx512_core_bf16",)
    assert list_implementations(parse_log(section("onednn-3.12.0.log", "first layer"))) == ("jit:avx512_core",)


def test_header_creation_and_graph_lines_are_not_primitives() -> None:
    log = (LOGS / "onednn-3.13.3.log").read_text()
    executed = [line for line in log.splitlines() if ",primitive,exec," in line]
    assert len(parse_log(log)) == len(executed)
    assert "create_nested" in log


def test_dimensions_come_from_the_problem() -> None:
    convolution = next(p for p in parse_log(section("onednn-3.13.3.log", "grouped volume")) if p.kind == "convolution")
    shapes = {name: convolution.get_argument(name).dims for name in ("src", "wei", "dst")}
    assert shapes == {"src": (2, 16, 8, 8, 8), "wei": (2, 16, 8, 3, 3, 3), "dst": (2, 32, 6, 6, 6)}
    product = next(p for p in parse_log(section("onednn-3.13.3.log", "matrix product")))
    assert [product.get_argument(name).dims for name in ("src", "wei")] == [(8, 64), (64, 128)]


def test_what_a_primitive_writes_depends_on_its_direction() -> None:
    primitives = parse_log(section("onednn-3.13.3.log", "grouped"))
    written = {p.prop_kind: [d.argument for d in p.outputs] for p in primitives if p.kind == "convolution"}
    assert written == {"forward_training": ["dst"], "backward_data": ["src"], "backward_weights": ["wei"]}


def test_foreign_text_around_a_line_does_not_hide_it() -> None:
    log = f"loss 0.5\nhalf a line {LINE}\n\x1b[31mred\x1b[0m\n{LINE}\r\n"
    assert len(parse_log(log)) == 2


def test_a_torn_line_is_skipped() -> None:
    assert parse_log(LINE[: LINE.index("dst:")]) == ()
    assert parse_log(LINE.replace(",0.25", "")) == ()


def test_the_header_moves_columns() -> None:
    header = (
        "onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,prop_kind,"
        "memory_descriptors,attributes,auxiliary,exec_time,problem_desc"
    )
    moved = LINE.replace("2x64x16x16,0.25", "0.25,2x64x16x16")
    (primitive,) = parse_log(f"{header}\n{moved}")
    assert [argument.dims for argument in primitive.arguments] == [(2, 64, 16, 16)] * 2


def test_the_graph_api_header_does_not_move_columns() -> None:
    header = "onednn_verbose,v1,graph,info,template:operation,engine,partition_id,partition_kind,op_names"
    assert len(parse_log(f"{header}\n{LINE}")) == 1


def test_timestamp_before_the_component_is_accepted() -> None:
    header = (
        "onednn_verbose,v1,primitive,info,template:timestamp,operation,engine,primitive,implementation,prop_kind,"
        "memory_descriptors,attributes,auxiliary,problem_desc,exec_time"
    )
    stamped = LINE.replace("v1,primitive", "v1,1795173071888.791992,primitive")
    for log in (f"{header}\n{stamped}", stamped):
        (primitive,) = parse_log(log)
        assert (primitive.kind, primitive.implementation) == ("reorder", "jit:blk")


def test_lines_of_older_versions() -> None:
    """2.x has neither version nor component and joins argument and dtype; 1.x calls itself dnnl."""
    for prefix in ("onednn_verbose", "dnnl_verbose"):
        log = (
            f"{prefix},info,prim_template:operation,engine,primitive,implementation,prop_kind,memory_descriptors,"
            "attributes,auxiliary,problem_desc,exec_time\n"
            f"{prefix},exec,cpu,convolution,jit:avx2,forward_inference,src_f32::blocked:abcd:f0 "
            "wei_f32::blocked:Acdb8a:f0 bia_undef::undef::f0 dst_f32::blocked:aBcd8b:f0,attr-scratchpad:user,"
            "alg:convolution_direct,mb1_ic3oc16_ih8oh8kh3sh1dh0ph1_iw8ow8kw3sw1dw0pw1,0.5"
        )
        (primitive,) = parse_log(log)
        assert [(d.argument, d.tag) for d in primitive.inputs] == [("src", "abcd"), ("wei", "Acdb8a")]
        assert primitive.get_argument("wei").dims == (16, 3, 3, 3)


def test_strides_belong_to_the_format() -> None:
    line = LINE.replace("src:f32::blocked:abcd::f0", "src:f32::blocked:abcd:32768x512x32x2:f0")
    (primitive,) = parse_log(line)
    assert primitive.get_argument("src").format == "abcd:32768x512x32x2"


def test_whose_line_it_is() -> None:
    assert is_log_line(LINE)
    assert not is_log_line("the onednn_verbose log is on")


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200), st.integers(0, len(LINE)))
@example("²x³", len(LINE))
def test_no_text_breaks_the_parser(text: str, position: int) -> None:
    parse_log(LINE[:position] + text + LINE[position:])
    parse_log(LINE.replace("2x64x16x16", text))
    parse_log(LINE.replace("reorder", "convolution").replace("2x64x16x16", f"mb{text}"))


def test_a_convolution_of_no_groups_has_no_dimensions() -> None:
    line = (
        "onednn_verbose,v1,primitive,exec,cpu,convolution,ref,forward_inference,src:f32::blocked:abcd::f0 "
        "wei:f32::blocked:abcd::f0 dst:f32::blocked:abcd::f0,,alg:convolution_direct,"
        "g0mb4_ic16oc32_ih24oh24kh3sh1dh0ph1_iw24ow24kw3sw1dw0pw1,0.5"
    )
    (primitive,) = parse_log(line)
    assert [argument.dims for argument in primitive.arguments] == [None, None, None]

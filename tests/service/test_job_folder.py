from __future__ import annotations

import io

import pytest

from frx_graph.evidence.file_kind import FileKind
from frx_graph.service.job_folder import make_job_folder


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("kernel.cu", "kernel.cu"),
        ("a+b-1.2_x.json.gz", "a+b-1.2_x.json.gz"),
        ("../../etc/passwd", "file-1"),
        ("src/k 2.ptx", "src_k 2.ptx"),
        ("übung(1).json", "übung(1).json"),
        ("名" * 60, "名" * 60),
        ("/etc/passwd.cu", "_etc_passwd.cu"),
        (".result", "file-1"),
        ("..", "file-1"),
        ("", "file-1"),
        ("-rf.csv", "file-1.csv"),
        ("<script>.NCU-REP", "file-1.ncu-rep"),
        ("\x1b[31m.json.gz", "file-1.json.gz"),
        ("nul\0.cu", "file-1.cu"),
        ("x" * 300, "file-1"),
        ("C:\\temp\\k.cu", "file-1.cu"),
        (".temporary", "file-1"),
    ],
)
def test_a_name_is_kept_where_it_is_plain_and_no_other_reaches_the_disk(given, kept):
    with make_job_folder() as folder:
        folder.add_file(given, io.BytesIO(b"content"))
        assert [file.name for file in folder.files] == [kept]
        assert [path.name for path in folder.path.rglob("*")] == [kept]
        assert (folder.path / kept).read_bytes() == b"content"
    assert not folder.path.exists()


def test_a_name_that_is_taken_becomes_another():
    with make_job_folder() as folder:
        folder.add_text("a.cu", "1", FileKind.CUDA)
        folder.add_file("a.cu", io.BytesIO(b"2"), "b")
        assert [(file.name, file.side) for file in folder.files] == [("a.cu", None), ("file-2.cu", "b")]
        assert (folder.path / "file-2.cu").read_bytes() == b"2"


def test_text_comes_as_it_was_sent():
    with make_job_folder() as folder:
        folder.add_text("a.cu", "a\r\nb\n\0ü", FileKind.CUDA)
        assert (folder.path / "a.cu").read_bytes() == "a\r\nb\n\0ü".encode()

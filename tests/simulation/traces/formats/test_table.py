"""What is and what is not a table, and rows that do not stop the others."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import threading
from pathlib import Path

import pytest

from simulation.traces.formats import own
from simulation.traces.formats.table import MOST_LINE_BYTES
from simulation.traces.trace import TraceError
from tests.simulation.traces.formats.conftest import Writer

HEADER = "job_id,submit_s,gpus,run_s,user\n"
ROW = "1,0,1,10,ada\n"
GOOD = HEADER + ROW


def test_a_file_that_is_no_table_is_named(file: Writer, tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "none.csv", "none.csv: No such file"),
        (tmp_path, "a directory"),
        (Path("/dev/null"), "a device"),
        (Path("a\0b"), "null"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        with pytest.raises(TraceError, match=words):
            own.read(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\n \r\n\n", "empty"),
        (gzip.compress(GOOD.encode(), mtime=0), "gzip"),
        (bz2.compress(GOOD.encode()), "bzip2"),
        (lzma.compress(GOOD.encode()), "xz"),
        (b"\x28\xb5\x2f\xfdrest", "zstd"),
        (b"PK\x03\x04rest", "zip"),
        (GOOD.encode("utf-16"), "UTF-16"),
        (b"job_id\0,submit_s\n", "line 1 holds a NUL"),
        ((GOOD + "2,0,1,10,a\0a\n").encode(), "line 3 holds a NUL"),
        (GOOD.encode() + b"2,0,1,10,\xff\n", "line 3: byte 10 is not UTF-8"),
        pytest.param(GOOD.encode() + b"a" * (MOST_LINE_BYTES + 1), "line 3 is longer than", id="long line"),
        (b",,,\n" + ROW.encode(), "no header"),
        (b'"job_id,submit_s\n', "no header"),
        (b"job_id,submit_s,gpus,run_s,Run_S\n", "names column run_s 2 times"),
        (HEADER.encode(), "no row can be used"),
    ],
)
def test_content_that_is_no_table_is_named(file: Writer, content: bytes, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        own.read(file(content))


@pytest.mark.parametrize(
    "content",
    [
        GOOD.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + GOOD.encode(),
        b"\n\n" + GOOD.encode() + b"\n \n",
        GOOD.rstrip("\n").encode(),
        GOOD.encode() + b"Job_ID,submit_s,gpus,run_s, user\r\n",
        GOOD.encode() + b"\xef\xbb\xbf" + HEADER.encode(),
        b'"job_id","submit_s","gpus","run_s","user"\n"1","0","1","10","ada"\n',
        b" JOB_ID , submit_s,gpus,run_s,user\n 1 , 0 ,1.0, 1e1,ada\n",
    ],
    ids=["crlf", "bom", "blank lines", "no last line end", "header again", "bom again", "quoted", "spaces and case"],
)
def test_spellings_of_one_table(file: Writer, content: bytes) -> None:
    assert own.read(file(content)).jobs == own.read(file(GOOD)).jobs
    assert own.read(file(content)).rejected == ()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("2,0,1\n", "row: found 3 fields, accepted: 5"),
        ("2,0,1,10,a,b\n", "row: found 6 fields"),
        ("2,0,1,10," + "a" * 300 + "\n", "user: found 'a{40}\\.\\.\\.'"),
        ("2,0,1,10," + "a" * 200_000 + "\n", "user: found 'a{40}\\.\\.\\.'"),
        ('2,0,1,10,"a"b\n', "row: .*expected after"),
        ("2,0,1,10,\x1b[2J\n", "user: found '.x1b"),
    ],
)
def test_a_bad_row_does_not_stop_the_others(file: Writer, row: str, words: str) -> None:
    trace = own.read(file(HEADER + ROW + row + "3,0,1,10,\n"))
    assert [job.job_id for job in trace.jobs] == [1, 3]
    (rejected,) = trace.rejected
    assert rejected.line == 3
    with pytest.raises(TraceError, match=words):
        raise TraceError(rejected.reason)


def test_an_open_quotation_mark_spoils_its_own_row_only(file: Writer) -> None:
    trace = own.read(file(HEADER + ROW + '2,0,1,10,"a\n3,0,1,10,b\n4,0,1,10,"c"\n'))
    assert [(row.line, row.reason) for row in trace.rejected] == [
        (3, "row: unexpected end of data, a quotation mark is left open")
    ]
    assert [(job.job_id, job.user) for job in trace.jobs] == [(1, "ada"), (3, "b"), (4, "c")]


def test_a_cell_over_two_lines_spoils_both(file: Writer) -> None:
    trace = own.read(file(HEADER + '1,0,1,10,"a\nb"\n2,0,1,10,ada\nbad,0,1,10,ada\n'))
    assert [row.line for row in trace.rejected] == [2, 3, 5]
    assert trace.jobs[0].line == 4


def test_messages_name_the_headers_own_line(file: Writer) -> None:
    with pytest.raises(TraceError, match="line 3: the header lacks run_s"):
        own.read(file("\n\njob_id,submit_s,gpus\n"))


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(GOOD,))
    writer.start()
    trace = own.read(path)
    writer.join()
    assert len(trace.jobs) == 1

"""Formats are told apart by their headers, and garbage is answered with `TraceError`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.traces import formats
from simulation.traces.formats.cluster import read_cluster
from simulation.traces.trace import TraceError
from tests.simulation.traces.formats.conftest import Writer
from tests.simulation.traces.formats.test_own import SLOW_FILES
from tests.simulation.traces.formats.test_public import MURI_HEADER, MURI_ROW, PHILLY_HEADER
from tests.simulation.traces.formats.test_sacct import HEADER, PRINTED

OWN = "job_id,submit_s,gpus,run_s\n"
SWEEP = "job_id,submit_s,gpus,run_s,sweep,curve\n"
TEXTS = {
    "own": OWN + "1,0,1,10\n",
    "muri": MURI_HEADER + MURI_ROW,
    "philly": PHILLY_HEADER + "2017-10-09 07:01:55,66,1,66,a\n",
    "sweep": SWEEP + "1,0,1,10,digits,1:5:0.5 2:10:0.25\n",
    "sacct": HEADER + "1|0|1|2|COMPLETED|gres/gpu=1\n",
}


def test_every_format_is_known_by_its_header(file: Writer) -> None:
    assert sorted(TEXTS) == sorted(formats.NAMES)
    for name, text in TEXTS.items():
        for trace in (formats.read_any(file(text)), formats.read_any(file(text), name)):
            assert (trace.source_format, [job.run_s > 0 for job in trace.jobs]) == (name, [True])


def test_a_format_can_be_insisted_on(file: Writer) -> None:
    with pytest.raises(TraceError, match="header lacks job_id, .*format muri needs"):
        formats.read_any(file(TEXTS["philly"]), "muri")


def test_an_unknown_format_is_named(file: Writer) -> None:
    with pytest.raises(TraceError, match=r"'muris' \(nearest: muri\), accepted: own, sweep, muri, philly, sacct"):
        formats.read_any(file(TEXTS["muri"]), "muris")


def test_an_unknown_header_lists_what_is_accepted(file: Writer) -> None:
    with pytest.raises(TraceError, match="header 'a,b,c' is of no known format: own has job_id, .*; sacct has Submit"):
        formats.read_any(file("a,b,c\n1,2,3\n"))


def test_a_nearly_known_header_names_what_is_missing(file: Writer) -> None:
    with pytest.raises(TraceError, match=r"lacks gpus \(is num_gpus meant to be gpus\?\); format own needs"):
        formats.read_any(file("job_id,submit_s,num_gpus,run_s\n1,2,3,4\n"))


def test_sacct_without_a_header_is_named(file: Writer) -> None:
    with pytest.raises(TraceError, match="line 1: .* is of no known format"):
        formats.read_any(file(PRINTED.split("\n", 1)[1]))


_PIECES = st.sampled_from(
    [*"0123456789,|\"'\n\r\t -+.:=_[]{}", "\r\n", "\0", "\ufeff", "e9", "nan", "inf", "1e999", "9" * 400, "gres/gpu=",
     "gres/gpu:a=", "Unknown", "None", "REQUEUED", "RUNNING", "COMPLETED", ".batch", "12_3", "12+1",
     "2017-10-09 07:01:55", "1-00:00:00", "\u0663", "\u2028", "\x1b[0m", "1" * 5000]
)  # fmt: skip
_ROWS = st.lists(_PIECES, max_size=40).map("".join)
_STARTS = st.sampled_from(
    ["", OWN, MURI_HEADER, PHILLY_HEADER, HEADER, PRINTED.split("\n", 1)[0] + "\n", *TEXTS.values()]
)


@SLOW_FILES
@given(st.binary(max_size=200) | st.builds(lambda start, rows: (start + rows).encode(), _STARTS, _ROWS))
def test_garbage_is_answered_with_a_trace_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "garbage"
    path.write_bytes(content)
    for name in (None, *formats.NAMES):
        try:
            trace = formats.read_any(path, name)
        except TraceError as error:
            assert str(path) in str(error)
        else:
            # Whatever was taken from garbage is a possible job.
            for job in trace.jobs:
                assert 0 <= job.submit_s <= 1e11
                assert 0.001 <= job.run_s <= 1e12
                assert job.gpus >= 1
            assert len({job.job_id for job in trace.jobs}) == len(trace.jobs)
            assert all(1 <= row.line <= content.count(b"\n") + 1 for row in trace.rejected)


@SLOW_FILES
@given(
    st.binary(max_size=200) | st.builds(lambda rows: f"nodes: {rows}".encode(), _ROWS),
    st.sampled_from(["c.yaml", "c.json", "c.csv"]),
)
def test_garbage_is_no_cluster(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TraceError, match=name):
        read_cluster(str(path))


@given(st.text(max_size=30))
def test_any_word_is_a_cluster_or_a_trace_error(word: str) -> None:
    try:
        assert read_cluster(word).gpus >= 1
    except TraceError as error:
        assert str(error)

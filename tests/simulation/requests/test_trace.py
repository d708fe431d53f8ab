"""Reading requests: three formats, bad rows with line and reason."""

import json
from pathlib import Path

import pytest

from simulation.requests.trace import Request, RequestTrace, read, spread
from simulation.traces.trace import TraceError, require_all_rows

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_azure(tmp_path: Path) -> None:
    rows = "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109"
    trace = read(written(tmp_path / "a.csv", AZURE + rows))
    assert trace.requests == (Request(0.0, 374, 44), Request(pytest.approx(4.314579, abs=1e-6), 396, 109))
    assert trace.rejected == ()


def test_azure_of_2024_whose_times_have_a_zone_and_not_all_a_fraction(tmp_path: Path) -> None:
    rows = "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,8,9\n2024-05-10 02:00:02.5+02:00,1,1\n"
    trace = read(written(tmp_path / "a.csv", AZURE + rows))
    assert [request.arrival_s for request in trace.requests] == pytest.approx([0.0, 0.99007, 2.49007], abs=1e-6)
    assert trace.rejected == ()


def test_mooncake(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 3000, "input_length": 10, "output_length": 2, "hash_ids": [1]},
        {"timestamp": 1000, "input_length": 7, "output_length": 5, "hash_ids": []},
    ]
    trace = read(written(tmp_path / "m.jsonl", "\n".join(map(json.dumps, lines)) + "\n\n"))
    assert trace.requests == (Request(0.0, 7, 5), Request(2.0, 10, 2))


def test_own_format_with_columns_in_any_order(tmp_path: Path) -> None:
    trace = read(written(tmp_path / "r.csv", "service_s,who,arrival_s\n0.5,me,10\n0.25,you,12.5\n"))
    assert trace.requests == (Request(0.0, service_s=0.5), Request(2.5, service_s=0.25))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("yesterday,1,1", "TIMESTAMP: found 'yesterday', accepted: times such as"),
        ("2023-11-16 18:15:46 CET,1,1", "TIMESTAMP: found"),
        ("2023-11-16 18:15:46,-1,1", "ContextTokens: found '-1'"),
        ("2023-11-16 18:15:46,1,1.5", "GeneratedTokens: found '1.5'"),
        ("2023-11-16 18:15:46,1", "found 2 fields, accepted: 3"),
    ],
)
def test_bad_rows_of_azure(tmp_path: Path, row: str, reason: str) -> None:
    path = written(tmp_path / "a.csv", f"{AZURE}2023-11-16 18:15:46.68,1,1\n{row}\n2023-11-16 18:15:47.68,2,2\n")
    trace = read(path)
    assert len(trace.requests) == 2
    assert [(bad.line, reason in bad.reason) for bad in trace.rejected] == [(3, True)]
    with pytest.raises(TraceError, match="1 rows cannot be used: line 3"):
        require_all_rows(path, trace.rejected)


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '{"timestamp": 1}', '{"timestamp": -1, "input_length": 1, "output_length": 1}', "null", "{}x"],
)
def test_bad_rows_of_mooncake(tmp_path: Path, line: str) -> None:
    good = '{"timestamp": 0, "input_length": 1, "output_length": 1}'
    trace = read(written(tmp_path / "m.jsonl", f"{good}\n{line}\n{good}\n"))
    assert len(trace.requests) == 2
    assert [bad.line for bad in trace.rejected] == [2]
    assert trace.rejected[0].reason


@pytest.mark.parametrize("service", ["0", "-1", "nan", "inf", "", "1e9"])
def test_service_times_that_make_no_sense(tmp_path: Path, service: str) -> None:
    trace = read(written(tmp_path / "r.csv", f"arrival_s,service_s\n0,1\n1,{service}\n"))
    assert [bad.line for bad in trace.rejected] == [3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("a,b\n1,2\n", "no known format"),
        ("arrival_s,service_s\n", "no row can be used"),
        ('{"timestamp": "x"}\n', "no row can be used: line 1"),
        ("arrival_s,service_s\n0,1\n3.6e9,1\n", r"within 41,667 days, accepted: 366 \(is a time in"),
    ],
)
def test_files_without_requests(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read(written(tmp_path / "f", text))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read(tmp_path / "none.csv")


def test_a_batch_is_spread_over_the_seconds_after_it() -> None:
    batch = RequestTrace(tuple(Request(at_s, 1, n) for n, at_s in enumerate((0.0, 0.0, 0.0, 3.0, 7.0, 7.0))))
    moved = spread(batch, 3.0)
    assert [request.arrival_s for request in moved.requests] == [0.0, 1.0, 2.0, 3.0, 7.0, 8.5]
    assert [request.output_tokens for request in moved.requests] == list(range(6))


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 86_401.0])
def test_a_spread_that_makes_no_sense(seconds: float) -> None:
    with pytest.raises(TraceError, match="accepted: 0 to 86,400"):
        spread(RequestTrace((Request(0.0),)), seconds)


def test_batches_that_overlap_stay_in_order() -> None:
    moved = spread(RequestTrace(tuple(Request(at_s) for at_s in (0.0, 0.0, 1.0))), 3.0)
    assert [request.arrival_s for request in moved.requests] == [0.0, 1.0, 1.5]

"""Sending requests as they come in practice: to a real server, over real connections."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import cycle
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from click.testing import CliRunner

from simulation.cli.gateway_load import keep_alive, load, percentiles, planned
from simulation.requests.trace import Idling, generate_gamma, read_curve
from simulation.traces.trace import TraceError
from tests.inference_gateway.rig import ask, replicas

COMMAND = [str(Path(sys.executable).parent / "sexplsched"), "gateway", "load"]


def run(port: int, *options: str, status: int = 0) -> dict[str, object]:
    argv = [*COMMAND, f"--url=http://127.0.0.1:{port}", "--model=m", "--json", *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert ("no request was answered" in done.stderr) == (status == 1)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_every_request_is_answered_and_timed() -> None:
    with replicas("r") as (server,):
        found = run(server.port, "--rate=40", "--duration=1", "--qos=60", "--seed=3")
        count = len(planned("poisson", 40, 1, 4, 3))
        assert found["planned"] == found["answered"] == count
        assert (found["failures"], found["not_sent"], found["abandoned"], found["within_qos"]) == ({}, 0, 0, 1.0)
        latency, first = found["latency_s"], found["first_token_s"]
        assert isinstance(latency, dict)
        assert isinstance(first, dict)
        assert 0 < first["p50"] <= latency["p50"] <= latency["p99"] <= latency["max"]
        assert json.loads(ask(server.port, "GET", "/state").body)["requests"] == count


def test_one_of_dilus_curves_is_sent_for_as_long_as_it_lasts(tmp_path: Path) -> None:
    curve = tmp_path / "bursty.txt"
    curve.write_text("0\n1.0\n", encoding="ascii")
    with replicas("r") as (server,):
        found = run(server.port, f"--curve={curve}", "--rate=30", "--duration=60", "--seed=1")
        assert found["answered"] == found["planned"]
        assert 10 <= json.loads(ask(server.port, "GET", "/state").body)["requests"] <= 50


def test_failures_are_counted_by_their_kind(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,service_s\n0,1\n0.01,1\n0.02,1\n", encoding="ascii")
    with replicas("r") as (server,):
        ask(server.port, "PUT", "/behaviour", body=json.dumps({"fault": "status-503"}).encode())
        found = run(server.port, f"--requests={trace}", status=1)
        assert (found["answered"], found["failures"]) == (0, {"HTTP 503": 3})
        ask(server.port, "PUT", "/behaviour", body=json.dumps({"fault": "hang"}).encode())
        assert run(server.port, f"--requests={trace}", "--timeout=0.2", status=1)["failures"] == {"timeout": 3}
        bounded = run(server.port, f"--requests={trace}", "--timeout=0.5", "--in-flight=1", status=1)
        assert (bounded["failures"], bounded["not_sent"]) == ({"timeout": 1}, 2)


class Odd(BaseHTTPRequestHandler):
    """A server whose answers have another form than that of OpenAI."""

    answers = cycle(
        [b"[1]", b'{"usage": [1]}', b'{"usage": {"completion_tokens": null}}', b'{"usage": null}', b'{"error": {}}']
    )

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = next(self.answers)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


class Streams(Odd):
    """A server whose streams begin well; one in four is whole."""

    answers = cycle(
        b'data: {"choices": [{"delta": {"content": "[DONE]"}}], "error": null}\n\n' + rest
        for rest in (b'data: {"error": "out of memory"}\n\ndata: [DONE]\n\n', b"", b"data: {}x\n\n", b"data:[DONE]\n\n")
    )


@pytest.mark.parametrize(
    ("answers", "option", "answered", "failures"),
    [
        (Odd, "--no-stream", 2, {"ValidationError": 2, "error with HTTP 200": 1}),
        (Streams, "--seed=1", 1, {"DecodeError": 1, "error with HTTP 200": 1, "stream cut off": 1}),
    ],
)
def test_answers_of_another_form_are_counted(
    answers: type[Odd], option: str, answered: int, failures: dict[str, int], tmp_path: Path
) -> None:
    trace = tmp_path / "t.csv"
    count = answered + sum(failures.values())
    trace.write_text("arrival_s,service_s\n" + "0,1\n" * count, encoding="ascii")
    server = HTTPServer(("127.0.0.1", 0), answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found = run(server.server_port, f"--requests={trace}", option)
    server.shutdown()
    server.server_close()
    assert (found["answered"], found["failures"]) == (answered, failures)


class Sticky(Odd):
    """A server that would know its clients again."""

    answers = cycle([b"{}"])
    cookies: ClassVar[set[str | None]] = set()

    def end_headers(self) -> None:
        self.cookies.add(self.headers["Cookie"])
        self.send_header("Set-Cookie", "replica=1")
        super().end_headers()


def test_each_request_is_of_another_client(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,service_s\n" + "".join(f"{0.1 * one},1\n" for one in range(10)), encoding="ascii")
    with HTTPServer(("127.0.0.1", 0), Sticky) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        # By name: clients keep no cookies of an address.
        found = run(0, f"--url=http://localhost:{server.server_port}", f"--requests={trace}", "--no-stream")
        server.shutdown()
        serving.join()
    assert (found["answered"], Sticky.cookies) == (10, {None})


def test_ctrl_c_reports_what_was_measured() -> None:
    with replicas("r") as (server,):
        argv = [
            *COMMAND,
            f"--url=http://127.0.0.1:{server.port}",
            "--model=m",
            "--rate=20",
            "--duration=3600",
            "--json",
        ]
        running = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        until_s = time.monotonic() + 60
        while json.loads(ask(server.port, "GET", "/state").body)["requests"] < 3:
            assert time.monotonic() < until_s
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=60)
        assert running.returncode == 130
        found = json.loads(out)
        assert found["interrupted"] is True
        assert found["answered"] + found["abandoned"] >= 3


def test_gaps_of_gamma_arrivals_have_the_variation_that_is_asked_for() -> None:
    for variation in (0.5, 1.0, 3.0):
        at_s = [request.arrival_s for request in generate_gamma(50, variation, 400, 1).requests]
        gaps_s = np.diff(at_s)
        assert np.mean(gaps_s) == pytest.approx(1 / 50, rel=0.1)
        assert np.std(gaps_s) / np.mean(gaps_s) == pytest.approx(variation, rel=0.1)


@pytest.mark.parametrize("pattern", ["poisson", "gamma", "bursty", "periodic", "sporadic"])
def test_patterns_keep_the_mean_rate(pattern: str) -> None:
    duration_s = 20_000.0
    found = planned(pattern, 2.0, duration_s, 4.0, 5)
    assert len(found) / duration_s == pytest.approx(2.0, rel=0.15)
    assert all(0 <= request.arrival_s < duration_s for request in found)
    assert list(found) == sorted(found, key=lambda request: request.arrival_s)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("duration_s", [20.0, 60.0, 100.0])
def test_a_sporadic_pattern_has_the_mean_rate_for_any_duration(seed: int, duration_s: float) -> None:
    """With the defaults it mostly had no request at all."""
    expected = 5.0 * duration_s
    found = planned("sporadic", 5.0, duration_s, 4.0, seed)
    assert len(found) == pytest.approx(expected, abs=5 * expected**0.5)
    assert planned("sporadic", 1.0, duration_s, 4.0, seed)


def test_a_sporadic_pattern_is_idle_for_long_and_a_steady_one_is_not() -> None:
    def longest_gap_s(pattern: str) -> float:
        return float(np.diff([request.arrival_s for request in planned(pattern, 2.0, 2000, 4.0, 5)]).max())

    assert longest_gap_s("sporadic") > 20 > longest_gap_s("poisson")


def test_windows_of_idle_gaps_by_hand() -> None:
    # Gaps of the first ten seconds: 1, 3; of the first five: 1, 1 (cut). 5th percentiles 1.1 and 1, 90th 2.8 and 1.
    busy = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    found = Idling.of(busy, 10, 5)
    assert (found.pre_warm_s, found.keep_alive_s) == (pytest.approx(1.05), pytest.approx(1.9))
    assert Idling.of([1.0, 2.0]) == Idling(0.0, 0.0)
    # The short part has no gap: only the long one counts.
    assert Idling.of([1.0, 1.0, 0.0, 0.0, 1.0], 5, 2) == Idling(2.0, 2.0)


def test_dilus_curves(tmp_path: Path) -> None:
    curve = tmp_path / "sporadic.txt"
    curve.write_text("1.0000\n0\n0\n0.5\n", encoding="ascii")
    assert read_curve(curve) == (1.0, 0.0, 0.0, 0.5)
    done = CliRunner().invoke(keep_alive, ["--curve", str(curve), "--json"])
    assert json.loads(done.output) == {"pre_warm_s": 2.0, "keep_alive_s": 2.0}
    recorded = tmp_path / "t.csv"
    recorded.write_text("arrival_s,service_s\n0,1\n3.5,1\n", encoding="ascii")
    done = CliRunner().invoke(keep_alive, ["--requests", str(recorded), "--json"])
    assert json.loads(done.output) == {"pre_warm_s": 2.0, "keep_alive_s": 2.0}
    recorded.write_text(recorded.read_text() + "x,1\n")
    done = CliRunner().invoke(keep_alive, ["--requests", str(recorded), "--json"])
    assert json.loads(done.stdout) == {"pre_warm_s": 2.0, "keep_alive_s": 2.0}
    assert f"{recorded}: 1 row left out" in done.stderr
    curve.write_text("1.0\nmuch\n", encoding="ascii")
    with pytest.raises(TraceError, match=r"line 2: .*'much'.*one number a line"):
        read_curve(curve)
    curve.write_text("0\n0\n", encoding="ascii")
    with pytest.raises(TraceError, match="no second has any requests"):
        read_curve(curve)


def test_what_cannot_be_asked_for(tmp_path: Path) -> None:
    base = ["--url", "http://127.0.0.1:9", "--model", "m"]
    (tmp_path / "curve").write_text("1\n1e6\n")
    for wrong, words in (
        (["--curve", "a", "--requests", "b"], "not both"),
        (["--key-file", str(tmp_path / "none")], "No such file"),
        (["--rate", "1e5", "--duration", "80000"], "8e+09 requests, at most 10 million"),
        (["--rate", "1e3", "--curve", str(tmp_path / "curve")], "highest of --curve is 2e+09 requests, at most"),
        (["--rate", "0.0001", "--duration", "0.1"], "no request is to be sent"),
    ):
        done = CliRunner().invoke(load, [*base, *wrong], env=dict(os.environ))
        assert done.exit_code == 2
        assert words in done.output
    assert CliRunner().invoke(keep_alive, []).exit_code == 2


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "n1:8080", "http://", "ftp://n1", "http://[::1", ""])
def test_an_address_that_no_request_can_be_sent_to_is_refused_at_once(url: str) -> None:
    done = CliRunner().invoke(load, ["--url", url, "--model=m", "--duration=1", "--rate=5"])
    assert (done.exit_code, f"found {url!r}, accepted: an address such as http://n1:8080" in done.output) == (2, True)


def test_failures_are_told_in_words() -> None:
    done = CliRunner().invoke(load, ["--url=http://127.0.0.1:1", "--model=m", "--duration=1", "--rate=20", "--seed=1"])
    assert "failures: ClientConnectorError: " in done.output


def test_nothing_measured_is_not_zero() -> None:
    assert percentiles([]) is None

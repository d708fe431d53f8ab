"""The bundled model server: bad requests, its key, and the end of its loading."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from inference_gateway.model_server import Behaviour, ModelServer
from slurm_plugin.devcluster.machine import reserved
from tests.inference_gateway.rig import PATIENCE_S, Replica, ask, wait_until

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, b'{"stream": true, "stream_options": "x"}'),
        (CHAT, b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        (CHAT, b'{"max_tokens": Infinity}'),
        (CHAT, b"[]"),
        (CHAT, b"\xff"),
        (EMBEDDINGS, b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        (EMBEDDINGS, b'{"input": "\\ud800"}'),
        (EMBEDDINGS, b"[]"),
    ],
)
def test_a_bad_request_is_the_clients_fault(servers: list[Replica], path: str, body: bytes) -> None:
    answer = ask(servers[0].port, "POST", path, body)
    assert (answer.status, answer.json["error"]["code"]) == (400, 400)


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/v1/completions", 404), ("GET", CHAT, 405)])
def test_other_paths_and_methods_are_refused_as_json(
    servers: list[Replica], method: str, path: str, status: int
) -> None:
    answer = ask(servers[0].port, method, path)
    assert (answer.status, answer.json["error"]["code"]) == (status, status)
    assert answer.headers.get("allow") == ("POST" if status == 405 else None)


def test_the_chunks_of_a_stream_are_of_one_answer_and_the_last_says_why_it_ends(servers: list[Replica]) -> None:
    body = {"max_completion_tokens": 3, "max_tokens": None, "stream": True, "stream_options": {"include_usage": True}}
    lines = ask(servers[0].port, "POST", CHAT, body).body.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert reasons == [None, None, "length"]
    assert chunks[-1]["usage"]["completion_tokens"] == 3


def test_requests_that_overlap_have_ids_of_their_own() -> None:
    async def ids() -> list[str]:
        application = ModelServer("r", ("m",), Behaviour(token_ms=1.0), most_running=1).application()
        async with TestClient(TestServer(application)) as client:
            first = await client.post(CHAT, json={"stream": True, "max_tokens": 1_000_000})
            others = [asyncio.ensure_future(client.post(CHAT, json={"max_tokens": 1})) for _ in range(2)]
            while (await (await client.get("/state")).json())["in_flight"] < 3:
                await asyncio.sleep(0.02)
            first.close()  # only now do the others run
            return [(await (await other).json())["id"] for other in others]

    one, another = asyncio.run(asyncio.wait_for(ids(), PATIENCE_S))
    assert one != another


def test_json_is_utf8_whatever_its_charset(servers: list[Replica]) -> None:
    odd = {"content-type": "application/json; charset=foo"}
    assert ask(servers[0].port, "POST", CHAT, {"max_tokens": 1}, odd).status == 200


def test_every_path_of_the_model_has_the_faults_and_the_key() -> None:
    body: dict[str, Any] = {"input": "x", "max_tokens": 1}

    async def statuses(behaviour: Behaviour, key: str) -> list[int]:
        application = ModelServer("r", ("m",), behaviour, "the-key").application()
        async with TestClient(TestServer(application)) as client:
            headers = {"authorization": f"Bearer {key}"}
            return [(await client.post(path, json=body, headers=headers)).status for path in (CHAT, EMBEDDINGS)]

    found = [asyncio.run(statuses(*one)) for one in ((Behaviour(), "another"), (Behaviour(), "the-key"))]
    found.append(asyncio.run(statuses(Behaviour(fault="status-503"), "the-key")))
    assert found == [[401, 401], [200, 200], [503, 503]]


def test_sigterm_ends_the_loading() -> None:
    with reserved(1) as (port,):
        argv = [sys.executable, "-m", "inference_gateway.model_server", f"--port={port}", "--load-s=3600"]
        process = subprocess.Popen(argv)
        try:
            wait_until(lambda: catches(process.pid, signal.SIGTERM))
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler of this signal (proc_pid_status(5))."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt:")).split()[1], 16)
    return bool(caught >> (number - 1) & 1)

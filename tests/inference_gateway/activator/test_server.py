"""The waiting lines as services come, change and go, without HTTP."""

import asyncio
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from inference_gateway import slow_bodies
from inference_gateway.activator import server
from inference_gateway.activator.server import Activator
from inference_gateway.dataplane import runtime
from inference_gateway.dataplane.endpoints import EndpointFiles, Listed, services_text
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.health import HealthLoop
from inference_gateway.dataplane.settings import ServiceSettings
from inference_gateway.model import Endpoint

CHAT = ServiceSettings("chat", models=("llama",), cold_start_limit=3)
MORE = ServiceSettings("more")


def activator(directory: Path, *known: ServiceSettings) -> Activator:
    made = Activator(Files(directory), lambda _lines: "")
    tell(directory, *known)
    made.read_services()
    return made


def tell(directory: Path, *known: ServiceSettings) -> None:
    """The data plane writes its services."""
    Files(directory).services.write_text(services_text(known))


def test_new_bounds_hold_for_a_line_that_is_there(tmp_path: Path) -> None:
    made = activator(tmp_path, CHAT)
    line = made.lines["chat"]
    tell(tmp_path, replace(CHAT, cold_start_limit=9, models=()), MORE)
    made.read_services()
    assert made.lines["chat"] is line
    assert (line.service.limit, line.service.models) == (9, ("chat",))
    assert list(made.lines) == ["chat", "more"]


def test_the_line_of_a_service_that_is_gone_ends_with_its_last_request(tmp_path: Path) -> None:
    made = activator(tmp_path, CHAT, MORE)
    line = made.lines["chat"]
    tell(tmp_path, MORE)
    line.waiting = 1
    made.read_services()
    assert "chat" in made.lines
    line.waiting = 0
    line.relaying["r1"] = 1
    made.read_services()
    assert "chat" in made.lines
    line.relaying.clear()
    made.read_services()
    assert list(made.lines) == ["more"]


def test_an_answer_that_breaks_off_ends_one_round_of_health_checks_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an HAProxy that is killed while it answers."""
    rounds: list[float] = []

    async def run() -> None:
        done = asyncio.Event()

        def break_off(_loop: HealthLoop, _services: object, now_s: float) -> list[str]:
            rounds.append(now_s)
            if len(rounds) > 1:
                running.call_soon_threadsafe(done.set)
            return [row.service for row in runtime.backends("# pxname,svname,qcur\nservice_chat,BACK")]

        running = asyncio.get_running_loop()
        monkeypatch.setattr(server, "ROUND_S", 0.01)
        monkeypatch.setattr(HealthLoop, "resume", lambda _loop: None)
        monkeypatch.setattr(HealthLoop, "run_round", break_off)
        checking = asyncio.create_task(server.check_health(Files(tmp_path), activator(tmp_path, CHAT)))
        await asyncio.wait((checking, asyncio.create_task(done.wait())), return_when=asyncio.FIRST_COMPLETED)
        assert not checking.done()
        checking.cancel()

    asyncio.run(run())
    assert len(rounds) > 1


def test_a_service_that_was_added_just_now_is_known(tmp_path: Path) -> None:
    """HAProxy may send its first request before the activator has looked again."""
    made = activator(tmp_path, CHAT)
    tell(tmp_path, CHAT, MORE)
    assert made.line("more") is not None
    assert made.line("never") is None
    Files(tmp_path).services.write_text("half a fi")
    assert made.line("another") is None
    assert made.line("more") is not None, "those known before stay in force"


def test_a_model_that_was_added_just_now_is_known(tmp_path: Path) -> None:
    made = activator(tmp_path, MORE)
    tell(tmp_path, CHAT)
    assert made.service("llama") == made.service("chat") == "chat"
    assert made.service("more") is None, "it is gone"


def test_a_body_that_trickles_takes_no_replicas_place_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_bodies, "GRACE_S", 0.1)
    made = activator(tmp_path, CHAT)
    Files(tmp_path).endpoints.mkdir()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            await reader.read()

    async def run() -> tuple[bytes, bytes]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as replica, TestServer(made.application()) as own:
            port = replica.sockets[0].getsockname()[1]
            EndpointFiles(Files(tmp_path).endpoints).put("chat", Listed.of(Endpoint("r1", "127.0.0.1", port, 1)))
            reader, writer = await asyncio.open_connection("127.0.0.1", own.port)
            writer.write(b"POST /v1/x HTTP/1.1\r\nhost: x\r\nx-gateway-service: chat\r\ncontent-length: 99\r\n\r\n")

            async def trickle() -> None:
                while True:
                    writer.write(b"x")
                    await asyncio.sleep(0.02)

            sending = asyncio.create_task(trickle())
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readuntil(b"}}")
            sending.cancel()
            writer.close()
            return head, body

    head, body = asyncio.run(run())
    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["error"]["code"] == 408
    assert not made.lines["chat"].relaying, "the place is free"

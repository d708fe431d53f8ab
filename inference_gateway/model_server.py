"""A tiny model server on the CPU, with an OpenAI-like interface and configurable delays and faults.

It serves `POST /v1/chat/completions` (also as server-sent events), `POST /v1/embeddings`, `GET /v1/models`,
`GET /health` and `GET /metrics` with vLLM's names. For tests, `GET /state` returns its counters and `PUT /behaviour`
changes its behaviour. Tokens are words of a fixed text.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import os
import signal
import struct
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import click
from aiohttp import web
from aiohttp.typedefs import Handler

from explsched.cli import examples


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How the server answers. `fault` is empty or one of those below; `unhealthy` is the fault of /health alone.

    status-N: answer with this status. garbage: bytes that are not HTTP. hang: no answer. late: answer a second later.
    close: the connection ends without an answer. close-midway: it ends within the answer.

    `request_ms` is added to the time between two tokens for each running request: steps of larger batches take longer.
    """

    first_token_ms: float = 0.0
    token_ms: float = 0.0
    request_ms: float = 0.0
    fault: str = ""
    unhealthy: str = ""


async def fail(request: web.Request, fault: str) -> web.StreamResponse | None:
    """Produce this fault; returns None if the request is to be answered all the same."""
    if not fault:
        return None
    if fault.startswith("status-"):
        return problem(int(fault.removeprefix("status-")), "the request asked for a failure")
    if fault == "hang":
        await asyncio.sleep(3600)
    if fault == "late":
        await asyncio.sleep(1)
        return None
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has gone")
    if fault == "garbage":
        transport.write(b"\x00\xff this is no HTTP\r\n\r\n")
    if fault == "close-midway":
        transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nfirst")
    transport.close()
    return web.Response()


def problem(status: int, message: str) -> web.Response:
    """An error answer in OpenAI's form."""
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        error.body, error.content_type = problem(error.status, error.reason).body, "application/json"
        raise  # with its headers, such as Allow


KEY_VARIABLE = "EXPLSCHED_REPLICA_KEY"
"""Environment variable with the API key that requests must have; if it is not set, every request is answered."""

_UNLIMITED = 1 << 30
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""What reading a body raises that is no such request, among it one nested too deep."""

_WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "goes", "on", "to", "think")


@dataclass(slots=True)
class Seen:
    """Counters since the start. `in_flight` is current; clients of `abandoned` requests disconnected before the end.

    `prompt_tokens` counts answers with `usage`, `completion_tokens` counts all tokens written.
    """

    requests: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    abandoned: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    last_headers: dict[str, str] = field(default_factory=dict)


class ModelServer:
    """The application and its state. At most `most_running` requests run, others wait; 0: no limit."""

    def __init__(
        self, name: str, models: tuple[str, ...], behaviour: Behaviour, key: str = "", most_running: int = 0
    ) -> None:
        self.name = name
        self.models = models
        self.behaviour = behaviour
        self.key = key
        self.seen = Seen()
        self._most_running = most_running
        self._slots = asyncio.Semaphore(most_running or _UNLIMITED)
        self._running = 0
        self._numbers = itertools.count(1)

    def application(self) -> web.Application:
        """The web application. Bodies may have up to 64 MiB."""
        application = web.Application(client_max_size=64 * 2**20, middlewares=[_errors_as_json])
        application.router.add_post("/v1/chat/completions", self._complete)
        application.router.add_post("/v1/embeddings", self._embed)
        application.router.add_get("/v1/models", self._list_models)
        application.router.add_get("/health", self._health)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/state", self._state)
        application.router.add_put("/behaviour", self._behave)
        return application

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return await fail(request, self.behaviour.unhealthy) or web.json_response({"status": "ok"})

    async def _metrics(self, _: web.Request) -> web.Response:
        """Each running request fills an equal part of the KV cache."""
        usage = self._running / self._most_running if self._most_running else 0.0
        values = {
            "num_requests_running": self._running,
            "num_requests_waiting": self.seen.in_flight - self._running,
            "kv_cache_usage_perc": usage,
        }
        label = f'{{engine="0",model_name="{self.models[0]}"}}'
        lines = [f"# TYPE vllm:{name} gauge\nvllm:{name}{label} {value:.4f}\n" for name, value in values.items()]
        return web.Response(text="".join(lines))

    async def _state(self, _: web.Request) -> web.Response:
        return web.json_response({"name": self.name, **asdict(self.seen)})

    async def _behave(self, request: web.Request) -> web.Response:
        try:
            self.behaviour = replace(self.behaviour, **await _body(request))
        except _MALFORMED as error:
            return problem(400, f"not a behaviour: {error}")
        return web.json_response({})

    async def _list_models(self, _: web.Request) -> web.Response:
        models = [{"id": model, "object": "model", "created": 0, "owned_by": self.name} for model in self.models]
        return web.json_response({"object": "list", "data": models})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.seen.requests += 1
        self.seen.in_flight += 1
        self.seen.most_in_flight = max(self.seen.most_in_flight, self.seen.in_flight)
        self.seen.last_headers = {name.lower(): value for name, value in request.headers.items()}
        try:
            async with self._slots:
                self._running += 1
                try:
                    return await self._answer(request)
                finally:
                    self._running -= 1
        except (asyncio.CancelledError, ConnectionError):
            self.seen.abandoned += 1
            raise
        finally:
            self.seen.in_flight -= 1

    async def _embed(self, request: web.Request) -> web.StreamResponse:
        """Embeddings made from a digest of each text, so that different texts have different vectors."""
        refused = await self._refused(request)
        if refused is not None:
            return refused
        try:
            asked = await _body(request)
            texts = [asked["input"]] if isinstance(asked["input"], str) else [str(text) for text in asked["input"]]
            vectors = [[byte / 255 for byte in hashlib.sha256(text.encode()).digest()[:8]] for text in texts]
            form = asked.get("encoding_format", "float")
        except _MALFORMED as error:
            return problem(400, f"not a request for embeddings: {error}")
        data = [
            {"object": "embedding", "index": index, "embedding": _packed(vector) if form == "base64" else vector}
            for index, vector in enumerate(vectors)
        ]
        words = sum(len(text.split()) for text in texts)
        usage = {"prompt_tokens": words, "total_tokens": words}
        return web.json_response({"object": "list", "data": data, "model": self.models[0], "usage": usage})

    async def _refused(self, request: web.Request) -> web.StreamResponse | None:
        """The answer to a request without the key, or that of the fault; None if there is neither."""
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return problem(401, "wrong or missing key")
        return await fail(request, self.behaviour.fault)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        refused = await self._refused(request)
        if refused is not None:
            return refused
        try:
            asked = await _body(request)
            usage, wants_usage = _usage(asked), _wants_usage(asked)
        except _MALFORMED as error:
            return problem(400, f"not a chat completion request: {error}")
        tokens = usage["completion_tokens"]
        if asked.get("stream"):
            return await self._stream(request, tokens, usage if wants_usage else None)
        words = [word async for word in self._words(tokens)]
        self._count(usage)
        message = {"role": "assistant", "content": "".join(words)}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        body = {**self._head("chat.completion"), "choices": [choice], "usage": usage}
        return web.json_response(body, headers={"x-replica": self.name})

    def _head(self, kind: str) -> dict[str, object]:
        """What an answer and each chunk of a stream begin with."""
        name = f"chatcmpl-{next(self._numbers)}"
        return {"id": name, "object": kind, "created": int(time.time()), "model": self.models[0]}

    def _count(self, usage: dict[str, int]) -> None:
        self.seen.prompt_tokens += usage["prompt_tokens"]
        self.seen.completion_tokens += usage["completion_tokens"]

    async def _stream(self, request: web.Request, tokens: int, usage: dict[str, int] | None) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-replica": self.name})
        await response.prepare(request)
        head, written = self._head("chat.completion.chunk"), 0
        async for word in self._words(tokens):
            written += 1
            choice = {"index": 0, "delta": {"content": word}, "finish_reason": "length" if written == tokens else None}
            # The time at which the token was sent, so that a client on the same machine can measure the latency.
            chunk = {**head, "choices": [choice], "sent_s": time.monotonic()}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.seen.completion_tokens += 1
        if usage is not None:
            self.seen.prompt_tokens += usage["prompt_tokens"]
            last = {**head, "choices": [], "usage": usage}
            await response.write(f"data: {json.dumps(last)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _words(self, tokens: int) -> AsyncIterator[str]:
        due_s = asyncio.get_running_loop().time() + self.behaviour.first_token_ms / 1000
        for index in range(tokens):
            # By absolute times, so that the rate does not depend on how long writing takes.
            await asyncio.sleep(due_s - asyncio.get_running_loop().time())
            yield _WORDS[index % len(_WORDS)] + " "
            due_s += (self.behaviour.token_ms + self.behaviour.request_ms * self._running) / 1000


async def _body(request: web.Request) -> dict[str, Any]:
    """The JSON object of a request's body. Raises one of `_MALFORMED`."""
    found = json.loads(await request.read())
    if not isinstance(found, dict):
        raise TypeError("it is no JSON object")
    return found


def _packed(vector: list[float]) -> str:
    """A vector in OpenAI's base64 format: little-endian 32-bit floats."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _wants_usage(asked: dict[str, Any]) -> bool:
    return bool((asked.get("stream_options") or {}).get("include_usage"))


def _usage(asked: dict[str, Any]) -> dict[str, int]:
    """The token counts; each word of the prompt counts as a token."""
    prompt = len(json.dumps(asked.get("messages", "")).split())
    limits = (asked.get("max_completion_tokens"), asked.get("max_tokens"), 16)
    completion = int(next(limit for limit in limits if limit is not None))
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


@click.command(epilog=examples("sexplsched gateway model-server --port 8000 --token-ms 20"))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, required=True, help="Port to listen on.")
@click.option("--name", default="replica", show_default=True, help="Replica name in `x-replica`.")
@click.option("--model", "models", multiple=True, default=("tiny",), show_default=True, help="Name of a model.")
@click.option("--first-token-ms", default=0.0, show_default=True, help="Delay of the first token.")
@click.option("--token-ms", default=0.0, show_default=True, help="Time between two tokens.")
@click.option("--request-ms", default=0.0, show_default=True, help="Additional time per concurrent request.")
@click.option("--max-num-seqs", type=int, default=0, help="Requests that run at once; others wait. 0: no limit.")
@click.option("--load-s", default=0.0, show_default=True, help="Time before it listens, as if loading weights.")
def main(
    host: str,
    port: int,
    name: str,
    models: tuple[str, ...],
    first_token_ms: float,
    token_ms: float,
    request_ms: float,
    max_num_seqs: int,
    load_s: float,
) -> None:
    """Serve a tiny model on the CPU, to try out a gateway.

    Its tokens are words of a fixed text. It stops on SIGTERM once its requests are answered.
    """
    behaviour = Behaviour(first_token_ms, token_ms, request_ms)
    server = ModelServer(name, models, behaviour, os.environ.get(KEY_VARIABLE, ""), max_num_seqs)
    asyncio.run(_serve(server, host, port, load_s))


async def _serve(server: ModelServer, host: str, port: int, load_s: float) -> None:
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    with suppress(TimeoutError):
        await asyncio.wait_for(ending.wait(), load_s)
        return
    # A client that goes away cancels the work on its request.
    runner = web.AppRunner(
        server.application(), handler_cancellation=True, access_log=None, shutdown_timeout=60.0, keepalive_timeout=75.0
    )
    await runner.setup()
    await web.TCPSite(runner, host, port, backlog=1024).start()
    await ending.wait()
    await runner.cleanup()


if __name__ == "__main__":
    main()

"""`sexplsched gateway load`, `keep-alive`: requests sent to a gateway as they come in practice, and their gaps."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import click
import msgspec
import numpy as np

from explsched.cli import examples, json_option
from explsched.tables import Column, lines, room
from inference_gateway.errors import GatewayError
from simulation.cli.replay_options import report_rejected
from simulation.requests.trace import (
    Idling,
    Request,
    RequestTrace,
    bursty,
    diurnal,
    generate,
    generate_gamma,
    per_second,
    read,
    read_curve,
    sporadic,
    stepwise,
)

_EXAMPLES = """\b
examples:
  sexplsched gateway load --url http://n1:8080 --model llama --rate 10
  sexplsched gateway load --url http://n1:8080 --model llama --curve bursty.txt --rate 25

The key is read from --key-file or EXPLSCHED_GATEWAY_KEY. Requests are sent at their times, however late the answers
come (open loop). --json has all figures. Ctrl-C ends early and reports what was measured.
"""
KEY_VARIABLE = "EXPLSCHED_GATEWAY_KEY"
_MOST_DRAWN = 10_000_000
_PERCENTILES = (50, 90, 95, 99)
_ON_S, _OFF_S, _BURST = 5.0, 55.0, 4.0


@dataclass(slots=True)
class Measured:
    """What became of the requests. Seconds; `late_s` is how much later than planned requests were sent."""

    latency_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    in_flight: int = 0
    not_sent: int = 0
    abandoned: int = 0


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """Where and how requests are sent."""

    url: str
    model: str
    key: str
    stream: bool
    timeout_s: float
    most_in_flight: int

    def body(self, request: Request) -> dict[str, object]:
        """An OpenAI chat completion with about as many words of input as the trace has tokens."""
        words = "word " * max(1, min(request.input_tokens, 100_000))
        asked = {"model": self.model, "messages": [{"role": "user", "content": words.strip()}]}
        return {**asked, "max_tokens": max(1, request.output_tokens), "stream": self.stream}


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None


class _Answer(msgspec.Struct):
    """What is read of an answer, or of an event of a streamed one."""

    usage: _Usage | None = None
    error: object = None


_END = b"[DONE]"
"""The data of the last event of each stream of chat completions, by which one is whole."""


class _NoAnswerError(Exception):
    """The status was 200, but the answer tells of an error or is cut off; the message is the kind of failure."""


async def send(target: LoadTarget, requests: Sequence[Request], stop: asyncio.Event) -> Measured:
    """Send every request at its time, until all are answered or `stop` is set."""
    seen = Measured()
    headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
    connector = aiohttp.TCPConnector(limit=target.most_in_flight)
    timeout = aiohttp.ClientTimeout(total=target.timeout_s)
    cookies = aiohttp.DummyCookieJar()  # each request stands for another client
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=cookies, timeout=timeout, headers=headers
    ) as session:
        began_s = time.monotonic()
        running: set[asyncio.Task[None]] = set()
        stopped = asyncio.create_task(stop.wait())
        for request in requests:
            ahead_s = began_s + request.arrival_s - time.monotonic()
            if ahead_s > 0:
                await asyncio.wait({stopped}, timeout=ahead_s)
            if stop.is_set():
                break
            seen.late_s.append(max(0.0, time.monotonic() - began_s - request.arrival_s))
            if seen.in_flight >= target.most_in_flight:
                seen.not_sent += 1
                continue
            seen.in_flight += 1
            task = asyncio.create_task(_one(session, target, request, seen))
            running.add(task)
            task.add_done_callback(running.discard)
        while running and not stop.is_set():
            await asyncio.wait({*running, stopped}, return_when=asyncio.FIRST_COMPLETED)
        left = tuple(running)
        seen.abandoned = len(left)
        stopped.cancel()
        for task in left:
            task.cancel()
        await asyncio.gather(*left, stopped, return_exceptions=True)
    return seen


async def _one(session: aiohttp.ClientSession, target: LoadTarget, request: Request, seen: Measured) -> None:
    sent_s = time.monotonic()
    first_s: float | None = None
    tokens = 0
    try:
        async with session.post(f"{target.url}/v1/chat/completions", json=target.body(request)) as answer:
            if answer.status != 200:
                await answer.read()
                seen.failures[f"HTTP {answer.status}"] += 1
                return
            if target.stream:
                async for _ in _events(answer):
                    first_s = first_s or time.monotonic()
                    tokens += 1
            else:
                usage = _decoded(await answer.read()).usage
                tokens = (usage and usage.completion_tokens) or 0
    except TimeoutError:
        seen.failures["timeout"] += 1
        return
    except _NoAnswerError as error:
        seen.failures[str(error)] += 1
        return
    except (aiohttp.ClientError, ValueError) as error:
        seen.failures[type(error).__name__] += 1
        return
    finally:
        seen.in_flight -= 1
    seen.tokens += tokens
    seen.latency_s.append(time.monotonic() - sent_s)
    if first_s is not None:
        seen.first_token_s.append(first_s - sent_s)


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[_Answer]:
    """The events of a whole stream but the last. Raises `_NoAnswerError`, `ValueError` for one that is no JSON."""
    whole = False
    async for line in answer.content:  # to its end, or the connection could not be used again
        data = line.removeprefix(b"data:").strip()
        if data == _END:
            whole = True
        elif line.startswith(b"data:"):
            yield _decoded(data)
    if not whole:
        raise _NoAnswerError("stream cut off")


def _decoded(text: bytes) -> _Answer:
    """Raises `_NoAnswerError`, `ValueError`."""
    found = msgspec.json.decode(text, type=_Answer)
    if found.error is not None:
        raise _NoAnswerError("error with HTTP 200")
    return found


def report(seen: Measured, took_s: float, qos_s: float | None) -> dict[str, object]:
    """All figures; None where nothing was measured."""
    return {
        "duration_s": took_s,
        "answered": len(seen.latency_s),
        "failures": dict(sorted(seen.failures.items())),
        "not_sent": seen.not_sent,
        "abandoned": seen.abandoned,
        "answered_rps": len(seen.latency_s) / took_s if took_s > 0 else None,
        "tokens_per_s": seen.tokens / took_s if took_s > 0 else None,
        "within_qos": _share_within(seen.latency_s, qos_s),
        "latency_s": percentiles(seen.latency_s),
        "first_token_s": percentiles(seen.first_token_s),
        "late_s": percentiles(seen.late_s),
    }


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """The percentiles, mean and largest of some values; None without any."""
    if not values:
        return None
    found = {f"p{p}": float(np.percentile(values, p)) for p in _PERCENTILES}
    return {**found, "mean": float(np.mean(values)), "max": max(values)}


def _share_within(latency_s: Sequence[float], qos_s: float | None) -> float | None:
    if qos_s is None or not latency_s:
        return None
    return sum(one <= qos_s for one in latency_s) / len(latency_s)


def planned(pattern: str, rate_rps: float, duration_s: float, variation: float, seed: int) -> tuple[Request, ...]:
    """Requests of a named pattern, `rate_rps` in the mean; lengths are those of chat services.

    periodic: four waves. bursty: four times the base rate for 5 s in a minute, in the mean. sporadic: one burst in each
    of equal parts of about a minute, which takes a twelfth of it.
    """
    if pattern == "gamma":
        return generate_gamma(rate_rps, variation, duration_s, seed).requests
    if pattern == "periodic":
        return generate(diurnal(rate_rps, 0.8, duration_s / 4), 1.8 * rate_rps, duration_s, seed).requests
    if pattern == "bursty":
        base = rate_rps * (_ON_S + _OFF_S) / (_BURST * _ON_S + _OFF_S)
        return generate(bursty(base, _BURST, _ON_S, _OFF_S, seed), _BURST * base, duration_s, seed).requests
    if pattern == "sporadic":
        share, period_s = _ON_S / (_ON_S + _OFF_S), duration_s / max(1, round(duration_s / (_ON_S + _OFF_S)))
        return generate(sporadic(rate_rps, share, period_s, seed), rate_rps / share, duration_s, seed).requests
    return generate(lambda _at_s: rate_rps, rate_rps, duration_s, seed).requests


def _address(_ctx: click.Context, _param: click.Parameter, url: str) -> str:
    """The address, checked now: a request to one without a scheme fails each time, and only after `--duration`."""
    with suppress(ValueError):  # such as a bracket without its other
        if urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname:
            return url
    raise click.BadParameter(f"found {url!r}, accepted: an address such as http://n1:8080")


@click.command(epilog=_EXAMPLES)
@click.option(
    "--url", required=True, callback=_address, metavar="URL", help="Address of the gateway, such as http://n1:8080."
)
@click.option("--model", required=True, help="Model name to request.")
@click.option("--key-file", type=click.Path(path_type=Path), help="File with the key.")
@click.option(
    "--pattern",
    type=click.Choice(["poisson", "gamma", "bursty", "periodic", "sporadic"]),
    default="poisson",
    show_default=True,
    help="Arrival process.",
)
@click.option(
    "--rate",
    "rate_rps",
    type=click.FloatRange(0, 100_000, min_open=True),
    default=1.0,
    show_default=True,
    help="Mean requests per second; with --curve, the rate that 1 stands for.",
)
@click.option(
    "--variation",
    type=click.FloatRange(0.05, 100),
    default=4.0,
    show_default=True,
    help="Coefficient of variation of gamma gaps.",
)
@click.option("--curve", type=click.Path(path_type=Path), help="Relative rates, one line per second (as Dilu's).")
@click.option("--requests", "trace_path", type=click.Path(path_type=Path), help="Replay a recorded trace instead.")
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(0, 86_400, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds during which requests are sent.",
)
@click.option(
    "--most", type=click.IntRange(1, 10_000_000), default=100_000, show_default=True, help="Maximum number of requests."
)
@click.option(
    "--in-flight",
    "most_in_flight",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    help="Maximum requests in flight.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, 3600, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds until a request has failed.",
)
@click.option("--qos", "qos_s", type=click.FloatRange(min=0, min_open=True), help="Latency target, s.")
@click.option("--no-stream", "stream", flag_value=False, default=True, help="Request responses without streaming.")
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
@json_option
def load(
    *,
    url: str,
    model: str,
    key_file: Path | None,
    pattern: str,
    rate_rps: float,
    variation: float,
    curve: Path | None,
    trace_path: Path | None,
    duration_s: float,
    most: int,
    most_in_flight: int,
    timeout_s: float,
    qos_s: float | None,
    stream: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Send chat completions to a gateway and measure latencies. Exits 1 if none is answered."""
    if curve and trace_path:
        raise click.UsageError("give --curve or --requests, not both")
    rates = [rate_rps * rate for rate in read_curve(curve)] if curve else [rate_rps]
    duration_s = min(duration_s, len(rates)) if curve else duration_s
    if max(rates) * duration_s > _MOST_DRAWN:
        highest = " times the highest of --curve" if curve else ""
        drawn = f"{max(rates) * duration_s:.3g} requests, at most 10 million"
        raise click.UsageError(f"--rate times --duration{highest} is {drawn}")
    if trace_path:
        wanted = tuple(request for request in _recorded(trace_path).requests if request.arrival_s < duration_s)
    elif curve:
        wanted = generate(stepwise(rates), max(rates), duration_s, seed).requests
    else:
        wanted = planned(pattern, rate_rps, duration_s, variation, seed)
    if not wanted:
        raise click.UsageError("no request is to be sent: a higher --rate or a longer --duration is needed")
    target = LoadTarget(url.rstrip("/"), model, _key(key_file), stream, timeout_s, most_in_flight)
    began_s = time.monotonic()
    seen, interrupted = asyncio.run(_until_interrupted(target, tuple(islice(wanted, most))))
    figures = report(seen, time.monotonic() - began_s, qos_s)
    if as_json:
        click.echo(json.dumps({"planned": min(len(wanted), most), "interrupted": interrupted, **figures}, indent=1))
    else:
        _print(figures)
    if interrupted:
        raise click.exceptions.Exit(130)
    if not seen.latency_s:
        raise GatewayError(f"{url}: no request was answered")


async def _until_interrupted(target: LoadTarget, requests: Sequence[Request]) -> tuple[Measured, bool]:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return await send(target, requests, stop), stop.is_set()


def _recorded(path: Path) -> RequestTrace:
    """A recorded trace; rows that cannot be used are reported."""
    trace = read(path)
    report_rejected(path, trace.rejected)
    return trace


def _key(path: Path | None) -> str:
    if path is None:
        return os.environ.get(KEY_VARIABLE, "")
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--key-file") from error


def _print(figures: dict[str, object]) -> None:
    timed = {name: found for name, found in figures.items() if isinstance(found, dict) and name != "failures"}
    columns = (
        Column("SECONDS"),
        *(Column(f"P{p}", ">") for p in _PERCENTILES),
        Column("MEAN", ">"),
        Column("MAX", ">"),
    )
    rows = ((name.removesuffix("_s"), *(f"{value:.3f}" for value in found.values())) for name, found in timed.items())
    click.echo("\n".join(lines(columns, rows, room())))
    for name, found in figures.items():
        if name not in timed and found not in (None, {}):
            shown = f"{found:.3f}" if isinstance(found, float) else found
            if isinstance(found, dict):
                shown = ", ".join(f"{kind}: {count}" for kind, count in found.items())
            click.echo(f"{name.replace('_', ' ')}: {shown}")


@click.command(name="keep-alive", epilog=examples("sexplsched gateway keep-alive --requests requests.csv"))
@click.option("--curve", type=click.Path(path_type=Path), help="Relative rates, one line per second (as Dilu's).")
@click.option("--requests", "trace_path", type=click.Path(path_type=Path), help="A recorded trace.")
@click.option("--long", "long_s", type=click.IntRange(1), default=858, show_default=True, help="Long window, s.")
@click.option("--short", "short_s", type=click.IntRange(1), default=200, show_default=True, help="Short window, s.")
@click.option(
    "--weight", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="Weight of the long window."
)
@json_option
def keep_alive(
    *, curve: Path | None, trace_path: Path | None, long_s: int, short_s: int, weight: float, as_json: bool
) -> None:
    """Derive keep-alive and pre-warming times of idle replicas from the gaps between requests (Dilu)."""
    if (curve is None) == (trace_path is None):
        raise click.UsageError("give either --curve FILE or --requests FILE")
    busy = read_curve(curve) if curve else per_second(_recorded(trace_path or Path()))
    found = Idling.of(busy, long_s, short_s, weight)
    if as_json:
        click.echo(json.dumps(asdict(found)))
    else:
        click.echo(f"keep alive: {found.keep_alive_s:.1f} s\npre-warm after: {found.pre_warm_s:.1f} s")

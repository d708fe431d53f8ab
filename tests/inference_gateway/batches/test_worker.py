"""The worker of batches over full disks and changed services files; HAProxy is asked in tests/slurm."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import create_autospec

import aiohttp
import msgspec
import pytest
from aiohttp import web

from inference_gateway import services
from inference_gateway.accepted import Accepted
from inference_gateway.batches import store
from inference_gateway.batches.job import BatchJob, Requests, Results, read_requests
from inference_gateway.batches.store import Batch, Faults, Owned
from inference_gateway.batches.worker import Worker, client, longest_silence_s
from inference_gateway.control import state
from inference_gateway.control.report import Report, ServiceReport
from inference_gateway.dataplane.settings import ApiKey, BatchSettings, digest_of
from inference_gateway.model import BatchLoad

ENDPOINT = "/v1/chat/completions"


def accepted(directory: Path, chat: str, limit_mib: int = 32) -> Accepted:
    text = f"""
listen: {{host: 127.0.0.1, body_limit_mib: {limit_mib}}}
directory: {directory / "state"}
services:
  chat: {{{chat}, replica: {{command: "x {{port}}"}}}}
  vision: {{{chat}, replica: {{command: "x {{port}}"}}}}
"""
    section = services.parse(text, directory / "services.yaml")
    now = Accepted(directory / "services.yaml", section, (), text, "")
    now.paths.make()
    return now


@pytest.fixture
def owned(tmp_path: Path) -> Owned:
    return Owned.of(BatchSettings(tmp_path / "batches", 1 << 20, 10, 100), "")


@pytest.fixture
def batch(owned: Owned) -> Batch:
    """Of two requests."""
    draft = owned.draft()
    line = {"method": "POST", "url": ENDPOINT, "body": {"model": "chat"}}
    draft.write_text("".join(json.dumps({"custom_id": name, **line}) + "\n" for name in ("a", "b")))
    return owned.make_batch(owned.add(draft, "in", "batch").id, ENDPOINT, "1h", None)


def worker(directory: Path, owned: Owned, chat: str = "batches: idle") -> Worker:
    return Worker(
        accepted(directory, chat), owned.settings, create_autospec(aiohttp.ClientSession)
    )  # nothing is sent without a replica


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("call", ["pwrite", "fsync", "ftruncate"])
def test_a_full_disk_is_waited_for_with_no_more_open_files(
    tmp_path: Path, owned: Owned, batch: Batch, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    owned.update(msgspec.structs.replace(batch, expires_at=int(time.time()) - 1))
    ours = worker(tmp_path, owned)
    with monkeypatch.context() as disk:
        disk.setattr(os, call, full)
        before = open_files()
        for _ in range(10):
            ours.run_once()
        assert open_files() <= before + 3  # those of one batch
    ours.run_once()
    ended = owned.batch(batch.id)
    assert ended.status == "expired"
    assert ended.request_counts.failed == 2
    assert open_files() == before


def test_of_many_large_batches_of_a_key_some_are_in_memory(tmp_path: Path, owned: Owned, batch: Batch) -> None:
    """One input may have as many batches as a key may have files: the gateway's job would die of them."""
    two_each = replace(owned, settings=replace(owned.settings, requests_per_batch=2, files_per_key=100))
    more = [two_each.make_batch(batch.input_file_id, ENDPOINT, "1h", None) for _ in range(4)]
    ours = worker(tmp_path, two_each)

    def statuses() -> list[str]:
        ours.run_once()
        return [owned.batch(one.id).status for one in (batch, *more)]

    assert statuses() == ["in_progress", "in_progress", "validating", "validating", "validating"]
    owned.cancel(more[3].id)
    assert statuses() == ["in_progress", "in_progress", "validating", "validating", "cancelled"]
    owned.cancel(batch.id)
    statuses()
    assert statuses() == ["cancelled", "in_progress", "in_progress", "validating", "cancelled"]


def test_an_upload_that_fails_leaves_nothing(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    """What had no record would count towards no limit, and could not be deleted."""

    def full(*_: object, **_more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    draft = owned.draft()
    draft.write_text("x")
    monkeypatch.setattr(store, "replace_file_durably", full)
    with pytest.raises(OSError, match="No space"):
        owned.add(draft, "in", "batch")
    assert list(owned.directory.iterdir()) == []


def test_a_request_may_say_that_it_leaves_open_whether_to_stream(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    body = {"model": "chat", "stream": None}
    path.write_text(json.dumps({"custom_id": "a", "method": "POST", "url": ENDPOINT, "body": body}))
    assert isinstance(read_requests(path, ENDPOINT, accepted(tmp_path, "batches: idle"), None, 1), Requests)


def test_a_batch_may_use_the_paths_that_requests_may(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(lines_of("a")))

    def is_taken(paths: str) -> bool:
        now = accepted(tmp_path, f"batches: idle, paths: [{paths}]")
        return isinstance(read_requests(path, ENDPOINT, now, None, 1), Requests)

    assert [is_taken(paths) for paths in ("/*", "/v1/*", "/v1/chat/*, /health", ENDPOINT)] == [True] * 4
    assert [is_taken(paths) for paths in ("/v2/*", "/v1/chat/completions/*")] == [False] * 2


def test_a_body_of_a_batch_is_no_larger_than_others(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    about = {"method": "POST", "url": ENDPOINT}
    bodies = [{"model": "chat", "x": "y" * length} for length in ((32 << 20) - 30, 32 << 20)]
    lines = [{"custom_id": name, **about, "body": body} for name, body in zip("ab", bodies, strict=True)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_requests(path, ENDPOINT, accepted(tmp_path, "batches: idle"), None, 2)
    assert isinstance(found, Faults)
    assert [(fault.line, fault.code) for fault in found.data] == [(2, "request_too_large")]


def test_a_batch_that_has_begun_goes_on_although_the_limit_is_lower_now(tmp_path: Path, owned: Owned) -> None:
    about = {"method": "POST", "url": ENDPOINT, "body": {"model": "chat", "x": "y" * (1 << 20)}}
    begun = batch_of(owned, [json.dumps({"custom_id": "a", **about}) + "\n"])
    worker(tmp_path, owned).run_once()
    later = owned.make_batch(begun.input_file_id, ENDPOINT, "1h", None)
    Worker(accepted(tmp_path, "batches: idle", 1), owned.settings, create_autospec(aiohttp.ClientSession)).run_once()
    assert [owned.batch(one.id).status for one in (begun, later)] == ["in_progress", "failed"]


def test_a_batch_that_has_begun_goes_on_although_it_has_more_requests_than_allowed_now(
    tmp_path: Path, owned: Owned, batch: Batch
) -> None:
    worker(tmp_path, owned).run_once()
    later = owned.make_batch(batch.input_file_id, ENDPOINT, "1h", None)
    fewer = replace(owned, settings=replace(owned.settings, requests_per_batch=1, files_per_key=100))
    for _ in range(2):
        worker(tmp_path, fewer).run_once()
    assert [owned.batch(one.id).status for one in (batch, later)] == ["in_progress", "validating"]
    owned.cancel(batch.id)
    ours = worker(tmp_path, fewer)
    for _ in range(2):
        ours.run_once()
    assert [owned.batch(one.id).status for one in (batch, later)] == ["cancelled", "failed"]


def lines_of(*texts: str, model: str = "chat") -> list[str]:
    about = {"method": "POST", "url": ENDPOINT}
    return [json.dumps({"custom_id": text, **about, "body": {"model": model, "user": text}}) + "\n" for text in texts]


def batch_of(owned: Owned, lines: list[str]) -> Batch:
    draft = owned.draft()
    draft.write_text("".join(lines))
    return owned.make_batch(owned.add(draft, "in", "batch").id, ENDPOINT, "1h", None)


def serving(directory: Path) -> Accepted:
    """Services whose only replica serves 100 requests at a time."""
    now = accepted(directory, "batches: idle, concurrency: 100")
    seen = [
        ServiceReport(name, 1, 0, 0, 1, 0, 8, "", 0, 0, 0, 30.0, given_up=False, next_in_s=None, replicas=())
        for name in now.section.services
    ]
    assert state.show(now.paths.status, Report("g", "/run", 0.0, closing=False, services=tuple(seen)))
    return now


@asynccontextmanager
async def answered_by(
    directory: Path, answer: Callable[[web.Request], Awaitable[web.Response]]
) -> AsyncIterator[aiohttp.ClientSession]:
    """A client as the worker's, of a server that answers thus."""
    application = web.Application()
    application.router.add_post(ENDPOINT, answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.UnixSite(runner, str(directory / "s")).start()
    async with client(directory / "s", 60.0) as haproxy:
        yield haproxy
    await runner.cleanup()


def test_requests_in_flight_are_bounded_in_bytes(tmp_path: Path, owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(*"abcde")
    monkeypatch.setattr("inference_gateway.batches.worker.IN_FLIGHT_BYTES", 2 * len(lines[0]))
    batch, now = batch_of(owned, lines), serving(tmp_path)
    asked = answered = most = 0

    async def check() -> None:
        answering = asyncio.Semaphore(0)

        async def answer(_: web.Request) -> web.Response:
            nonlocal asked, answered, most
            asked += 1
            most = max(most, asked - answered)
            await answering.acquire()
            answered += 1
            return web.json_response({})

        async with answered_by(tmp_path, answer) as haproxy:
            ours = Worker(now, owned.settings, haproxy)
            while owned.batch(batch.id).status != "completed":
                ours.run_once()
                await asyncio.sleep(0.01)
                load = state.read(now.paths.batch_load, BatchLoad)
                assert load is None or load.in_flight.get("chat", 0) <= 2
                if asked - answered == min(2, len(lines) - answered):
                    answering.release()

    asyncio.run(check())
    assert (most, owned.batch(batch.id).request_counts.completed) == (2, 5)


def test_batches_go_on_after_the_clock_was_set_back(
    tmp_path: Path, owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, now, clock = batch_of(owned, lines_of(*"abc")), serving(tmp_path), time.time
    is_set_back = False

    def completed() -> int:
        return owned.batch(batch.id).request_counts.completed

    async def check() -> None:
        shown = asyncio.Event()

        async def answer(request: web.Request) -> web.Response:
            nonlocal is_set_back
            user = (await request.json())["user"]
            if user == "b" and not is_set_back:
                if is_set_back := completed() == 1:
                    monkeypatch.setattr(time, "time", lambda: clock() - 3600)
                return web.Response(status=503)
            if user == "c":
                await shown.wait()
            return web.json_response({})

        async with answered_by(tmp_path, answer) as haproxy, asyncio.timeout(600):
            ours = Worker(now, owned.settings, haproxy)
            while owned.batch(batch.id).status != "completed":
                ours.run_once()
                await asyncio.sleep(0.01)
                if completed() == 2:
                    shown.set()

    asyncio.run(check())


def test_a_long_line_is_sent_in_its_turn(tmp_path: Path, owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two short ones are in flight, and one has its turn before it; whenever one ends another one would fit."""
    short = lines_of(*"abcdef")
    monkeypatch.setattr("inference_gateway.batches.worker.IN_FLIGHT_BYTES", 2 * len(short[0]))
    batch, now, sent = batch_of(owned, short), serving(tmp_path), list[str]()

    async def check() -> None:
        answering = asyncio.Event()

        async def answer(request: web.Request) -> web.Response:
            sent.append((await request.json())["user"])
            await answering.wait()
            return web.json_response({})

        async with answered_by(tmp_path, answer) as haproxy:
            ours = Worker(now, owned.settings, haproxy)
            ours.run_once()
            long = batch_of(owned, lines_of(100 * "x"))
            ours.run_once()
            answering.set()
            while {owned.batch(one.id).status for one in (batch, long)} != {"completed"}:
                ours.run_once()
                await asyncio.sleep(0.01)

    asyncio.run(check())
    assert (len(sent), sent.index(100 * "x")) == (7, 3)


def test_a_long_line_that_waits_for_its_own_batchs_answers_stops_no_others(
    tmp_path: Path, owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, short = lines_of("x" * 500, "y" * 500, model="vision"), lines_of(*map(str, range(20)))
    monkeypatch.setattr("inference_gateway.batches.worker.IN_FLIGHT_BYTES", 2 * len(long[0]) - 1)
    slow, quick, now = batch_of(owned, long), batch_of(owned, short), serving(tmp_path)

    async def check() -> None:
        answering = asyncio.Event()

        async def answer(request: web.Request) -> web.Response:
            if (await request.json())["model"] == "vision":
                await answering.wait()
            return web.json_response({})

        async def until_completed(batch: Batch) -> None:
            while owned.batch(batch.id).status != "completed":
                ours.run_once()
                await asyncio.sleep(0.01)

        async with answered_by(tmp_path, answer) as haproxy, asyncio.timeout(600):
            ours = Worker(now, owned.settings, haproxy)
            await until_completed(quick)
            assert owned.batch(slow.id).status == "in_progress"
            answering.set()
            await until_completed(slow)

    asyncio.run(check())


@pytest.mark.parametrize(
    "edited",
    [
        "chat: {batches: none, ",
        "char: {batches: idle, ",
        "chat: {batches: idle, paths: [/v1/embeddings], ",
        "other: {batches: idle, models: [chat], paths: [/v1/embeddings], ",
    ],
)
def test_a_batch_in_progress_waits_while_its_service_is_closed_to_it(
    tmp_path: Path, owned: Owned, batch: Batch, edited: str
) -> None:
    """As by a slip in the services file, until the next reload."""
    worker(tmp_path, owned).run_once()
    owned.path(batch.id, "output").write_bytes(b'{"custom_id":"a"}\n')
    now = serving(tmp_path)
    text = now.services_text.replace("chat: {batches: idle, ", edited)
    slip = replace(now, section=services.parse(text, now.services_path))
    ours = Worker(slip, owned.settings, create_autospec(aiohttp.ClientSession))
    for _ in range(3):
        ours.run_once()
    waits = owned.batch(batch.id)
    assert (waits.status, waits.request_counts.completed) == ("in_progress", 1)
    owned.update(msgspec.structs.replace(waits, expires_at=int(time.time()) - 1))
    Worker(slip, owned.settings, create_autospec(aiohttp.ClientSession)).run_once()
    ended = owned.batch(batch.id)
    assert (ended.status, ended.request_counts.failed) == ("expired", 1)


def test_batches_that_wait_for_a_reload_keep_no_others_of_their_key_waiting(
    tmp_path: Path, owned: Owned, batch: Batch
) -> None:
    one_each = replace(owned, settings=replace(owned.settings, requests_per_batch=1, files_per_key=100))
    worker(tmp_path, owned).run_once()
    later = batch_of(one_each, lines_of("a", model="vision"))
    now = accepted(tmp_path, "batches: idle")
    slip = replace(now, section=services.parse(now.services_text.replace("  chat:", "  cat:"), now.services_path))
    ours = Worker(slip, one_each.settings, create_autospec(aiohttp.ClientSession))
    for _ in range(2):
        ours.run_once()
    assert [owned.batch(one.id).status for one in (batch, later)] == ["in_progress"] * 2


def test_a_batch_in_progress_waits_while_its_key_may_not_use_its_service(tmp_path: Path) -> None:
    settings = BatchSettings(tmp_path / "batches", 1 << 20, 10, 100)
    owned = Owned.of(settings, "alice")
    batch, keys = batch_of(owned, lines_of("a")), tmp_path / "keys.yaml"
    now = accepted(tmp_path, "batches: idle")
    listen = msgspec.structs.replace(now.section.listen, keys=keys)
    now = replace(now, section=msgspec.structs.replace(now.section, listen=listen))

    def status(*keys: ApiKey) -> str:
        ours = Worker(replace(now, keys=keys), settings, create_autospec(aiohttp.ClientSession))
        ours.run_once()
        ours.run_once()
        return owned.batch(batch.id).status

    alice = ApiKey("alice", digest_of("x"))
    assert status(alice) == "in_progress"
    assert status(replace(alice, services=("vision",))) == "in_progress"
    assert status() == "cancelled"


def test_answers_are_published_where_a_batch_cannot_go_on(tmp_path: Path, owned: Owned, batch: Batch) -> None:
    answer = b'{"custom_id":"a"}\n'
    owned.path(batch.id, "output").write_bytes(answer)
    owned.path(batch.input_file_id, "data").unlink()
    worker(tmp_path, owned).run_once()
    ended = owned.batch(batch.id)
    assert (ended.status, ended.errors is None, ended.failed_at is None) == ("failed", False, False)
    assert ended.output_file_id is not None
    assert owned.path(ended.output_file_id, "data").read_bytes() == answer


def test_a_batch_that_is_wrong_from_the_start_has_no_files(tmp_path: Path, owned: Owned, batch: Batch) -> None:
    worker(tmp_path, owned, "batches: none").run_once()
    ended = owned.batch(batch.id)
    assert (ended.status, ended.output_file_id, ended.finalizing_at) == ("failed", None, None)


@pytest.mark.parametrize("text", ['{\n  "a": "b\\n"\n}', '{"a": "b\\n"}\r\n', '\n{"a":\r"b\\n"}\n\n'])
def test_an_answer_of_several_lines_is_one_line_of_the_results(
    tmp_path: Path, owned: Owned, batch: Batch, text: str
) -> None:
    asked = read_requests(
        owned.path(batch.input_file_id, "data"), ENDPOINT, accepted(tmp_path, "batches: idle"), None, 9
    )
    assert isinstance(asked, Requests)
    job = BatchJob.of(owned, batch, asked)
    for index in range(2):
        job.answer(index, 200, text.encode())
    job.opened.close()
    with closing(Results(owned.path(batch.id, "output"))) as again:  # as the next worker does
        assert again.custom_ids == {"a", "b"}
    lines = owned.path(batch.id, "output").read_text().splitlines()
    assert [json.loads(line)["response"]["body"] for line in lines] == [{"a": "b\n"}] * 2


def test_a_request_may_wait_for_a_replica_as_long_as_the_gateway_lets_it(tmp_path: Path) -> None:
    chat = "batches: start, cold_start_deadline_s: 7200, queue_deadline_s: 60, response_timeout_s: 600"
    assert longest_silence_s(accepted(tmp_path, chat).section.services.values()) > 7860


def test_uploads_whose_gateway_was_killed_are_removed_in_time(
    tmp_path: Path, owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference_gateway.batches.worker.DRAFTS_EVERY_S", 0.0)
    working = worker(tmp_path, owned)
    working.run_once()
    gone, left, under_way = (owned.draft() for _ in range(3))
    gone.symlink_to("nothing")  # as one that vanishes after the directory was listed
    left.touch()
    os.utime(left, (time.time() - 4000,) * 2)
    under_way.touch()
    working.run_once()
    assert (left.exists(), under_way.exists()) == (False, True)


def test_a_cookie_of_one_keys_answer_is_not_sent_with_anothers_request(tmp_path: Path) -> None:
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("cookie"))
        return web.Response(headers={"set-cookie": "session=1"})

    async def check() -> None:
        async with answered_by(tmp_path, answer) as haproxy:
            for _ in range(2):
                await (await haproxy.post(f"http://haproxy{ENDPOINT}")).read()

    asyncio.run(check())
    assert seen == [None, None]

"""`/v1/files` and `/v1/batches` through HAProxy: whose they are, what is refused; nobody works anything off here."""

import codecs
import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inference_gateway import services
from inference_gateway.accepted import Accepted
from inference_gateway.batches.job import BatchJob, Requests, Results, finish, read_requests
from inference_gateway.batches.store import Counts, Faults, NotNowError, Owned, window_s
from inference_gateway.batches.worker import room
from inference_gateway.control.report import ServiceReport
from inference_gateway.dataplane.settings import ApiKey, BatchSettings, ServiceSettings, digest_of
from inference_gateway.sections import ReplicaSection, ServiceSection
from tests.inference_gateway.rig import ALICE, CLIENT_KEY, PATIENCE_S, Answer, Replica, Rig, gateway, wait_until

BOB = ApiKey("bob", digest_of("bobs-key"), tokens_per_minute=10)
FORM = "multipart/form-data; boundary=x"
LINE = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "chat"}}
ENDPOINT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def rig(directory: Path) -> Iterator[Rig]:
    batches = BatchSettings(directory / "batches", file_bytes=1 << 20, files_per_key=4, requests_per_batch=10)
    # One that opens the same paths of its own replicas.
    own = ServiceSettings("own", paths=("/v1/files", "/v1/files/*", ENDPOINT))
    with gateway(directory, ServiceSettings("chat"), own, keys=(ALICE, BOB), batches=batches) as rig:
        yield rig


def upload(rig: Rig, content: bytes, purpose: str = "batch", name: bytes = b"in.jsonl", **headers: str) -> Answer:
    parts = {b'name="purpose"': purpose.encode(), b'name="file"; filename="' + name + b'"': content}
    form = b"".join(
        b"--x\r\nContent-Disposition: form-data; " + what + b"\r\n\r\n" + text + b"\r\n" for what, text in parts.items()
    )
    return rig.ask("POST", "/v1/files", form + b"--x--\r\n", content_type=FORM, **headers)


def lines(*bodies: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(body).encode() + b"\n" for body in bodies)


def test_files_are_their_owners_alone(rig: Rig) -> None:
    content = lines(LINE)
    file = upload(rig, content).json
    assert (file["object"], file["bytes"], file["purpose"]) == ("file", len(content), "batch")
    directory = rig.plane.files.directory.parent / "batches"
    modes = {oct(path.stat().st_mode & 0o777) for path in (directory, directory / "alice")}
    assert modes == {"0o700"}, "others cannot enter, and its user can, who need not be root"
    assert rig.ask("GET", f"/v1/files/{file['id']}/content").body == content
    assert [one["id"] for one in rig.ask("GET", "/v1/files").json["data"]] == [file["id"]]
    bob = {"authorization": "Bearer bobs-key"}
    assert rig.ask("GET", "/v1/files", **bob).json["data"] == []
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        assert rig.ask(method, f"/v1/files/{file['id']}{path}", **bob).status == 404
    asked = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
    assert rig.ask("POST", "/v1/batches", asked, **bob).status == 404
    batch = rig.ask("POST", "/v1/batches", asked).json
    assert (batch["status"], batch["expires_at"] - batch["created_at"]) == ("validating", 86_400)
    assert "ends_as" not in batch
    assert rig.ask("GET", f"/v1/batches/{batch['id']}", **bob).status == 404
    assert rig.ask("POST", f"/v1/batches/{batch['id']}/cancel", **bob).status == 404
    assert rig.ask("DELETE", f"/v1/files/{file['id']}").status == 400  # it is in use
    assert rig.ask("POST", f"/v1/batches/{batch['id']}/cancel").json["status"] == "cancelling"
    assert rig.ask("GET", "/v1/batches?limit=1").json["data"][0]["id"] == batch["id"]


def test_a_file_may_have_a_name_that_is_no_utf8_and_a_list_any_limit(rig: Rig) -> None:
    file = upload(rig, b"x", name="übung.jsonl".encode("latin-1")).json
    assert file["filename"] == "?bung.jsonl"
    for limit in ("9" * 5000, "-1", "x"):
        assert rig.ask("GET", f"/v1/files?limit={limit}").json["first_id"] == file["id"]
    assert rig.ask("DELETE", f"/v1/files/{file['id']}").status == 200


def test_nothing_without_a_key_and_no_other_files(rig: Rig) -> None:
    assert upload(rig, b"x", authorization="Bearer nobody").status == 401
    for name in ("file-../../x", "..%2f..%2fx", "batch_", "file-" + "0" * 28):
        assert rig.ask("GET", f"/v1/files/{name}").status == 404
    assert rig.ask("GET", "/v1/files/a/b/c/d").status == 404
    assert rig.ask("PUT", "/v1/batches").status == 404


def test_limits_and_bad_input(rig: Rig) -> None:
    bob = {"authorization": "Bearer bobs-key"}
    assert upload(rig, b"x" * (1 << 21), **bob).status == 413
    assert upload(rig, b"x", purpose="fine-tune", **bob).status == 400
    assert upload(rig, b"x", content_encoding="gzip", **bob).status == 415
    assert rig.ask("POST", "/v1/files", b"none", content_type=FORM, **bob).status == 400
    assert rig.ask("POST", "/v1/files", b"{}", content_type="application/json", **bob).status == 400
    files = [upload(rig, lines(LINE), **bob).json["id"] for _ in range(4)]
    assert b"files_per_key" in upload(rig, lines(LINE), **bob).body
    assert rig.ask("DELETE", f"/v1/files/{files[0]}", **bob).json["deleted"] is True
    for changed, words in (
        ({"endpoint": "/v1/state"}, b"accepted: /v1/chat"),
        ({"completion_window": "3w"}, b"1h to 720h"),
        ({"input_file_id": 3}, b"not a request"),
        ({"metadata": {"why": "x" * 513}}, b"length <= 512"),
        ({}, b"results would be more than 4"),
    ):
        asked = {"input_file_id": files[1], "endpoint": ENDPOINT, **changed}
        answer = rig.ask("POST", "/v1/batches", asked, **bob)
        assert (answer.status, words in answer.body) == (400, True)


def test_a_form_that_cannot_be_read_is_the_clients_fault(rig: Rig) -> None:
    for header in (b"no colon", b"\x00: a", b"a: b\r\n" * 5000):
        form = b'--x\r\nContent-Disposition: form-data; name="file"\r\n' + header + b"\r\n\r\nx\r\n--x--\r\n"
        answer = rig.ask("POST", "/v1/files", form, content_type=FORM)
        assert (answer.status, answer.json["error"]["code"]) == (400, 400)


def test_a_large_request_for_a_batch_is_refused_as_json(rig: Rig) -> None:
    large = b" " * ((1 << 20) + 1)
    answer = rig.ask("POST", "/v1/batches", large)
    assert (answer.status, answer.json["error"]["message"]) == (413, "a request for a batch is at most 1 MiB")


def test_head_answers_as_get_does(rig: Rig) -> None:
    file = upload(rig, b"x").json["id"]
    paths = [
        f"/v1/files/{file}",
        f"/v1/files/{file}/content",
        "/v1/files",
        "/v1/batches",
        "/v1/models",
        "/v1/models/chat",
    ]
    for path in (*paths, "/services/own/v1/models", "/metrics"):
        assert [rig.ask(method, path).status for method in ("GET", "HEAD")] == [200, 200]
    missing = ("/v1/files/none", "/v1/batches/none", "/v1/models/none")
    assert [rig.ask("HEAD", path).status for path in missing] == [404, 404, 404]
    assert rig.ask("HEAD", f"/v1/files/{file}/content").headers["content-length"] == "1"
    assert rig.ask("DELETE", f"/v1/files/{file}").status == 200


def of_batch(rig: Rig, key: str) -> int:
    """The status of a request as the worker sends it."""
    body = {"model": "chat", "max_tokens": 1}
    return rig.ask_for_batch("POST", ENDPOINT, body, "chat", key).status


def test_a_key_without_tokens_waits_and_may_look(rig: Rig, servers: list[Replica]) -> None:
    rig.add("chat", servers[0].endpoint)
    assert of_batch(rig, "bob") == 200
    rig.plane.hold_back({"bob": int(time.time()) + 60})
    bob = {"authorization": "Bearer bobs-key"}
    assert (of_batch(rig, "bob"), of_batch(rig, "alice")) == (429, 200)
    assert rig.complete("chat", **bob).status == 429
    assert rig.ask("GET", "/v1/batches", **bob).status == 200
    assert rig.ask("GET", "/v1/files", x_service="own", **bob).status == 429
    rig.plane.hold_back({})
    rig.clear()


def test_a_service_may_have_files_of_its_own(rig: Rig, servers: list[Replica]) -> None:
    rig.add("own", servers[0].endpoint)
    assert rig.ask("GET", "/services/own/v1/files").status == 404  # of the bundled server, which has none
    assert b"gateway_error" not in rig.ask("GET", "/v1/files", x_service="own").body
    rig.clear()


SERVICES = """
listen: {host: 127.0.0.1}
services:
  chat: {batches: idle, models: [org/chat], also_serves: [lora], replica: {command: "x {port}"}}
  also: {batches: idle, replica: {command: "x {port}"}}
  shut: {replica: {command: "x {port}"}}
"""


@pytest.fixture
def now(tmp_path: Path) -> Accepted:
    section = services.parse(SERVICES, tmp_path / "services.yaml")
    return Accepted(tmp_path / "services.yaml", section, (), SERVICES, "")


def faults(now: Accepted, *bodies: dict[str, Any], key: ApiKey | None = None) -> list[str]:
    path = now.services_path.with_name("in.jsonl")
    path.write_bytes(lines(*bodies))
    found = read_requests(path, ENDPOINT, now, key, 3)
    return [fault.code for fault in found.data] if isinstance(found, Faults) else [found.service]


def test_an_input_is_checked_line_by_line(now: Accepted) -> None:
    assert faults(now, LINE, {**LINE, "custom_id": "b", "body": {"model": "lora"}}) == ["chat"]
    assert faults(now) == ["empty_file"]
    assert faults(now, LINE, LINE) == ["duplicate_custom_id"]
    assert faults(now, {"custom_id": 1}) == ["invalid_json_line"]
    assert faults(now, {**LINE, "custom_id": "x" * 513}) == ["invalid_json_line"]
    assert faults(now, {**LINE, "url": "/v1/embeddings", "method": "PUT"}) == ["invalid_method", "invalid_url"]
    assert faults(now, {**LINE, "body": {"model": "chat", "stream": True}}) == ["invalid_request"]
    assert faults(now, {**LINE, "body": {"model": "shut"}}) == ["model_not_found"]
    assert faults(now, LINE, key=ApiKey("bob", digest_of("x"), services=("shut",))) == ["model_not_found"]
    other = {**LINE, "custom_id": "b"}
    assert faults(now, LINE, {**other, "body": {"model": "nobody"}}) == ["model_not_found"]
    assert faults(now, LINE, {**other, "body": {"model": "also"}}) == ["mismatched_model"]
    assert faults(now, *({**LINE, "custom_id": f"{n}"} for n in range(4))) == ["too_many_requests"]


def test_faults_show_the_beginning_of_what_they_found(now: Accepted, tmp_path: Path) -> None:
    path, long = tmp_path / "in.jsonl", "x" * 100_000
    path.write_bytes(lines({**LINE, "url": long, "method": long, "body": {"model": long}}))
    found = read_requests(path, ENDPOINT, now, None, 3)
    assert isinstance(found, Faults)
    assert len(found.data) == 3
    assert all("'xxx" in fault.message and len(fault.message) < 200 for fault in found.data)


def test_a_byte_order_mark_is_no_part_of_the_first_line(now: Accepted, tmp_path: Path) -> None:
    path, body = tmp_path / "in.jsonl", lines(LINE, {**LINE, "custom_id": "b"})
    path.write_bytes(codecs.BOM_UTF8 + body)
    found = read_requests(path, ENDPOINT, now, None, 3)
    assert isinstance(found, Requests)
    first = body.index(b"\n") + 1
    assert found.places == ((3, first), (3 + first, len(body) - first))
    path.write_bytes(codecs.BOM_UTF8)
    assert isinstance(read_requests(path, ENDPOINT, now, None, 3), Faults), "a file of nothing else is empty"


def test_what_is_too_deeply_nested_is_a_fault_of_its_line(now: Accepted, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"custom_id": "a", "body": {"model": "chat", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}}\n")
    found = read_requests(path, ENDPOINT, now, None, 3)
    assert isinstance(found, Faults)
    assert [(fault.code, fault.line) for fault in found.data] == [("invalid_json_line", 1)]


def report(serving: int, in_flight: int = 0, queued: int = 0) -> ServiceReport:
    return ServiceReport("chat", serving, 0, 0, 1, 0, 8, "", 0, in_flight, queued, 1.0, False, None, ())  # noqa: FBT003


def test_batches_have_what_others_leave() -> None:
    idle = ServiceSection(ReplicaSection("x"), concurrency=10, batches="idle")
    start = ServiceSection(ReplicaSection("x"), concurrency=10, batches="start")
    assert [room(idle, report(2, busy), 0) for busy in (0, 5, 17, 30)] == [17, 12, 0, 0]
    assert room(idle, report(2, 5, queued=4), 0) == 8
    assert [room(one, report(0), 0) for one in (idle, start)] == [0, 1]
    assert room(start, report(2, 12), own=10) == 15  # what is in flight is ours but for two
    assert room(idle, None, 0) == 0


def test_a_torn_line_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "results"
    path.write_bytes(b'{"custom_id":"a"}\n{"custom_id":"b"}\n{"custom_id":"c"')
    found = Results(path)
    assert found.custom_ids == {"a", "b"}
    found.close()
    assert path.read_bytes() == b'{"custom_id":"a"}\n{"custom_id":"b"}\n'


@pytest.mark.parametrize("window", ["", "0h", "24", "721h", "31d", "1w", "-1h"])
def test_windows(window: str) -> None:
    assert window_s("24h") == window_s("1d") == 86_400
    with pytest.raises(NotNowError):
        window_s(window)


def test_results_become_files_however_often_they_are_made(tmp_path: Path) -> None:
    owned = Owned.of(BatchSettings(tmp_path, 100, 10, 10), "bob")
    draft = owned.draft()
    draft.write_bytes(lines(LINE))
    batch = owned.make_batch(owned.add(draft, "in", "batch").id, ENDPOINT, "1h", None)
    job = BatchJob.of(owned, batch, Requests("chat", ("a", "b"), ((0, 1), (0, 1))))
    owned.path(batch.id, "output").write_bytes(b'{"custom_id":"a"}\n')
    again = BatchJob.of(owned, job.batch, job.requests)
    assert (list(again.pending), again.counts()) == ([1], Counts(2, 1, 0))
    again.end("expired")
    ended = owned.batch(batch.id)
    assert (ended.status, ended.request_counts) == ("expired", Counts(2, 1, 1))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    finish(owned, msgspec.structs.replace(ended, status="finalizing"))
    assert [path for path, content in before.items() if path.suffix == ".data" and path.read_bytes() != content] == []
    assert owned.batch(batch.id).output_file_id == ended.output_file_id


def test_a_key_that_goes_on_for_years_has_as_many_ended_batches_as_files(tmp_path: Path) -> None:
    owned = Owned.of(BatchSettings(tmp_path, 100, 4, 10), "bob")
    draft = owned.draft()
    draft.write_bytes(lines(LINE))
    file = owned.add(draft, "in", "batch").id
    made = [owned.make_batch(file, ENDPOINT, "1h", None)]
    worked_off: set[str] = set()
    for number in range(10):
        ends = {"status": "completed", "completed_at": made[-1].created_at + number}
        owned.update(msgspec.structs.replace(made[-1], **ends))
        made.append(owned.make_batch(file, ENDPOINT, "1h", None))
        assert [batch.id for batch in owned.unfinished(worked_off)] == [made[-1].id]
    latest = [batch.id for batch in reversed(made)]
    assert [batch.id for batch in owned.batches()] == latest[:5]
    assert worked_off <= set(latest[:5])


def test_uploads_that_have_begun_count(directory: Path) -> None:
    batches = BatchSettings(directory / "begun", file_bytes=1 << 20, files_per_key=3, requests_per_batch=10)
    head = f"POST /v1/files HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {CLIENT_KEY}\r\ncontent-type: {FORM}\r\n"
    part = '--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n'
    begun = f"{head}content-length: 100000\r\n\r\n{part}{'x' * 90_000}".encode()
    settings = {"batches": batches, "request_timeout_s": PATIENCE_S}
    with gateway(directory / "uploads", ServiceSettings("chat"), **settings) as rig, ExitStack() as opened:
        links = [socket.create_connection(("127.0.0.1", rig.port), timeout=PATIENCE_S) for _ in range(9)]
        for link in links:
            opened.enter_context(link)
            link.sendall(begun)
        wait_until(lambda: len(select.select(links, [], [], 0)[0]) == 6)
        refused, _, _ = select.select(links, [], [], 0)
        assert all(b"files_per_key" in link.recv(65536) for link in refused)
        assert upload(rig, lines(LINE)).status == 400

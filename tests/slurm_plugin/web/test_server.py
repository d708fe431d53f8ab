"""Who may look, what he sees, and that the page only reads."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest
from aiohttp import ClientSession, ClientTimeout, CookieJar, web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner
from msgspec import Struct
from msgspec.structs import replace

from explsched.cli import own_name, root
from slurm_plugin.audit_file import AuditEntry, AuditTrail
from slurm_plugin.config import AuditSection
from slurm_plugin.state.published import PROGRESS, Curve, encoded
from slurm_plugin.web import answers
from slurm_plugin.web.gateway import GatewayFiles
from slurm_plugin.web.server import Access, Page
from tests.slurm_kit import record
from tests.slurm_plugin.state import HOSTILE, configured, published

TOKEN = "a-token-of-43-characters"  # noqa: S105  it opens nothing
VIEWS = ("summary", "nodes", "jobs", "sweeps", "sweep?name=digits", "plan", "audit", "jobs/41", "jobs/43")


class Answer(Struct, frozen=True):
    status: int
    text: str
    headers: Mapping[str, str]


def ask(
    tmp_path: Path,
    access: Access,
    *paths: str,
    headers: Mapping[str, str] | None = None,
    gateways: Sequence[Path] = (),
) -> list[Answer]:
    """The answers of a server, asked one after the other as a browser that keeps cookies."""
    config = replace(configured(tmp_path), audit=AuditSection(file=tmp_path / "audit.jsonl"))

    async def session() -> list[Answer]:
        found = []
        async with (
            TestServer(Page(config, access, gateways).app()) as server,
            ClientSession(
                cookie_jar=CookieJar(unsafe=True), headers=headers, timeout=ClientTimeout(total=30)
            ) as client,
        ):
            for path in paths:
                async with client.get(server.make_url(path), allow_redirects=False) as response:
                    found.append(
                        Answer(
                            response.status,
                            await response.text(),
                            {name.lower(): value for name, value in response.headers.items()},
                        )
                    )
        return found

    return asyncio.run(session())


def test_without_the_token_nothing_is_answered(tmp_path: Path) -> None:
    _ = published(tmp_path)
    paths = ("/", "/metrics", "/static/app.js", "/login?token=wrong", *(f"/api/{view}" for view in VIEWS))
    assert {answer.status for answer in ask(tmp_path, Access(TOKEN), *paths)} == {401}


def test_the_token_becomes_a_cookie_that_scripts_cannot_read(tmp_path: Path) -> None:
    _ = published(tmp_path)
    login, index = ask(tmp_path, Access(TOKEN), f"/login?token={TOKEN}", "/")
    assert (login.status, login.headers["location"], index.status) == (303, "/", 200)
    assert "HttpOnly" in login.headers["set-cookie"]
    assert "SameSite=Strict" in login.headers["set-cookie"]
    assert "default-src 'none'" in index.headers["content-security-policy"]


def test_a_page_of_another_host_is_refused(tmp_path: Path) -> None:
    _ = published(tmp_path)
    access = Access(TOKEN, hosts=frozenset({"127.0.0.1:8642"}))
    login, jobs = ask(tmp_path, access, f"/login?token={TOKEN}", "/api/jobs", headers={"Host": "evil.example:8642"})
    assert (login.status, jobs.status) == (403, 403)
    assert "'evil.example:8642' for this page, accepted: 127.0.0.1:8642" in jobs.text


def test_bytes_that_are_no_utf8_are_refused_as_any_other_words(tmp_path: Path) -> None:
    _ = published(tmp_path)
    ours = frozenset({"127.0.0.1:8642"})
    for access, header, status in (
        (Access(TOKEN, hosts=ours), b"Host: \xff", b"403"),
        (Access(TOKEN), f"Host: a\r\nCookie: {Access(TOKEN).cookie}=".encode() + b"\xff", b"401"),
    ):

        async def answered(access: Access = access, header: bytes = header) -> bytes:
            async with TestServer(Page(configured(tmp_path), access).app()) as server:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(b"GET / HTTP/1.0\r\n" + header + b"\r\n\r\n")
                line = await reader.readline()
                writer.close()
                return line

        assert asyncio.run(answered()).split()[1] == status


def test_every_view_answers_and_what_has_not_changed_is_not_sent_again(tmp_path: Path) -> None:
    _ = published(tmp_path)
    login = f"/login?token={TOKEN}"
    found = ask(tmp_path, Access(TOKEN), login, *(f"/api/{view}" for view in VIEWS))[1:]
    assert {answer.status for answer in found} == {200}
    rows = json.loads(found[2].text)["rows"]
    assert HOSTILE in {row["name"] for row in rows}
    again = ask(tmp_path, Access(TOKEN), login, "/api/jobs", headers={"If-None-Match": found[2].headers["etag"]})
    assert (again[1].status, again[1].text) == (304, "")


def test_whom_the_proxy_names_sees_only_his_own_where_slurm_hides_jobs(tmp_path: Path) -> None:
    _ = published(tmp_path, "jobs")
    owners = ((42, "bob"), (43, "ada"))
    entries = [AuditEntry(4e9, job, "SiteFactor", 0, 1, "p", "order", "", user) for job, user in owners]
    AuditTrail(tmp_path / "audit.jsonl", 1, 1).write(entries)
    access = Access(user_header="X-Remote-User")
    assert ask(tmp_path, access, "/api/jobs")[0].status == 401
    paths = [f"/api/{view}" for view in VIEWS]
    for path, answer in zip(paths, ask(tmp_path, access, *paths, headers={"X-Remote-User": "ada"}), strict=True):
        assert answer.status == (404 if "sweep?" in path else 200), "the sweep is bob's"
        assert "bob" not in answer.text
        assert '"jobid": 42' not in answer.text
    assert ask(tmp_path, access, "/api/jobs/42", headers={"X-Remote-User": "ada"})[0].status == 404
    assert '"bob"' in ask(tmp_path, access, "/api/jobs", headers={"X-Remote-User": "bob"})[0].text


def test_changes_tell_no_ids_of_jobs_that_slurm_hides(tmp_path: Path) -> None:
    why = "job 42 waits for these GPUs with a score of 3, as did job 7"  # which has ended
    entries = [
        AuditEntry(4e9, 43, "AdminComment", "", "for=0%2C42", "p", "annotation", why, "ada"),
        AuditEntry(4e9, 7, "SiteFactor", 0, 1, "p", "order", "", "bob"),
    ]
    AuditTrail(tmp_path / "audit.jsonl", 1, 1).write(entries)
    access, ada = Access(user_header="X-Remote-User"), {"X-Remote-User": "ada"}
    _ = published(tmp_path, "jobs")
    for answer in ask(tmp_path, access, "/api/audit", "/api/jobs/43", headers=ada):
        assert "job another waits for these GPUs with a score of 3, as did job another" in answer.text
        assert "for=0%2Canother" in answer.text
    _ = published(tmp_path, PROGRESS)
    assert why in ask(tmp_path, access, "/api/audit", headers=ada)[0].text


def test_it_says_that_no_daemon_publishes(tmp_path: Path) -> None:
    _, answer = ask(tmp_path, Access(TOKEN), f"/login?token={TOKEN}", "/api/jobs")
    assert (answer.status, "no daemon publishes in" in answer.text) == (503, True)


@pytest.mark.parametrize("name", ["status.json", "events.jsonl", "usage.json"])
@pytest.mark.parametrize("put", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.mkdir()])
def test_what_the_owner_of_a_gateway_puts_there_does_not_stop_the_page(
    tmp_path: Path, name: str, put: Callable[[Path], None]
) -> None:
    put(tmp_path / name)
    gateway = GatewayFiles(tmp_path)
    gateway.look(0.0)
    told = gateway.told(0.0)
    assert (told["services"], told["events"]) == ([], [])
    assert str(told["fault"]).startswith(f"{tmp_path}/status.json: ")


def test_gateways_whose_file_system_hangs_do_not_stop_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ = published(tmp_path)
    answers_again = threading.Event()
    monkeypatch.setattr(GatewayFiles, "look", lambda _gateway, _now_s: answers_again.wait())
    gateways = [tmp_path / str(number) for number in range((os.cpu_count() or 1) + 4)]  # asyncio has as many threads
    try:
        found = ask(tmp_path, Access(TOKEN), f"/login?token={TOKEN}", "/api/jobs", "/api/audit", gateways=gateways)
    finally:
        answers_again.set()
    assert [answer.status for answer in found] == [303, 200, 200]


def test_what_a_request_shows_of_a_gateway_was_read_before_it(tmp_path: Path) -> None:
    """Its files are in a home directory, whose file system may hang: then a request would stop all of the page."""
    directory = tmp_path / "gateway"
    directory.mkdir()
    gateway = GatewayFiles(directory)
    (directory / "events.jsonl").write_text(json.dumps({"unix_s": 1.0, "event": "wanted"}) + "\n")
    tokens = {"requests": 1, "prompt": 2, "completion": 3}
    (directory / "usage.json").write_text(
        json.dumps({"days": [{"day": "1970-01-02", "service": "a", "tokens": tokens}]})
    )
    assert times_shown(gateway, 129_600.0, "a") == [[129_600.0]]
    shutil.rmtree(directory)
    told = gateway.told(129_600.0)
    assert [one["event"] for one in cast("list[dict[str, str]]", told["events"])] == ["wanted"]
    assert cast("list[dict[str, object]]", told["services"])[0]["tokens"] == tokens
    assert gateway.owner == own_name()


def times_shown(gateway: GatewayFiles, time_s: float, *names: str) -> list[list[float]]:
    """The times of the loads that are shown of each service, after the gateway has reported so many services."""
    counts = dict.fromkeys(("serving", "coming", "draining", "minimum", "maximum", "arrivals", "in_flight"), 0)
    more: dict[str, object] = {
        "wanted": None,
        "reason": "",
        "queued": 0,
        "start_s": 0.0,
        "given_up": False,
        "replicas": [],
    }
    services = [{"name": name, **counts, **more} for name in names]
    report = {"gateway": "g", "time_s": time_s, "closing": False, "services": services}
    (gateway.directory / "status.json").write_text(json.dumps(report))
    gateway.look(129_600.0)
    told = cast("list[dict[str, list[list[float]]]]", gateway.told(0.0)["services"])
    return [one["loads"][0] for one in told]


def test_services_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    """The owner of a gateway could fill the memory of root's page with names."""
    gateway = GatewayFiles(tmp_path)
    reports = enumerate((("a",), ("a", "b"), ("a",), ("a", "b")), start=1)
    seen = [[len(times) for times in times_shown(gateway, float(time_s), *names)] for time_s, names in reports]
    assert seen == [[1], [2, 1], [3], [4, 1]]


def test_a_gateway_whose_clock_was_ahead_is_shown_all_the_same(tmp_path: Path) -> None:
    """Its clock is set back, or the next gateway job is on a node whose clock is behind."""
    gateway = GatewayFiles(tmp_path)
    assert times_shown(gateway, 5000.0, "a") == [[5000.0]]
    assert times_shown(gateway, 1000.0, "a") == [[1000.0]]
    assert times_shown(gateway, 1000.0, "a") == [[1000.0]]
    assert times_shown(gateway, 1001.0, "a") == [[1000.0, 1001.0]]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/jobs?offset=-1", 400),
        ("/api/jobs?offset=x", 400),
        ("/api/jobs?offset=" + "9" * 40, 400),
        ("/api/jobs/9999", 404),
        ("/api/jobs/" + "9" * 40, 404),
        ("/api/sweep?name=none", 404),
        ("/api/sweep?name=digits&user=nobody", 404),
        ("/static/..%2fserver.py", 404),
        ("/static/nothing.js", 404),
    ],
)
def test_strange_requests_are_refused(tmp_path: Path, path: str, status: int) -> None:
    _ = published(tmp_path)
    assert ask(tmp_path, Access(TOKEN), f"/login?token={TOKEN}", path)[1].status == status


def test_all_routes_only_read(tmp_path: Path) -> None:
    app = Page(configured(tmp_path), Access(TOKEN)).app()
    assert {route.method for route in app.router.routes()} <= {"GET", "HEAD"}
    assert isinstance(app, web.Application)


def test_rows_are_found_sorted_and_cut(tmp_path: Path) -> None:
    state = published(tmp_path)

    def shown(**query: object) -> list[int]:
        told = answers.jobs(state, answers.JobQuery(**query))
        rows = told["rows"]
        assert isinstance(rows, list)
        return [row["jobid"] for row in rows]

    assert shown(sort="jobid") == [41, 42, 43]
    assert shown(sort="jobid", offset=1, limit=1) == [42]
    assert shown(sort="jobid", offset=4, limit=2) == [43], "the last screen of a queue that has become shorter"
    assert shown(text="DIGITS") == [42]
    assert shown(text="ada", sort="gpus") == [43, 41]
    assert shown(state="PENDING") == [43]
    assert answers.jobs(state, answers.JobQuery(limit=10**9))["total"] == 3


def test_a_large_sweep_says_how_many_of_its_trainings_paused_and_stopped(tmp_path: Path) -> None:
    """All of them, not those among the rows that are shown."""
    comment = {"comment": "explsched:sweep=digits", "user": "bob"}
    paused = [record(1000 + at, restarts=1, **comment) for at in range(300)]
    rest = record(2000, array_tasks=7, array_job_id=2000, **comment)
    state = published(tmp_path, jobs=(*paused, rest))
    curves = [
        Curve(row.jobid, "bob", "j", "digits", "loss", "PENDING", "min", 0.1, 1, 60.0, 100, (), ((1, 0.1),))
        for row in state.jobs
        if row.jobid < 2000
    ]
    curves += [replace(one, jobid=one.jobid + 2000, state="ENDED", best=9.0) for one in curves]
    stopped = [AuditEntry(1.0, one.jobid, "JobState", "", "CANCELLED", "p", "stop", "why") for one in curves[300:]]
    told = answers.sweep(replace(state, curves=encoded(curves)), "digits", "bob", stopped)
    assert told is not None
    assert {name: told[name] for name in ("waiting", "paused", "stopped", "total")} == {
        "waiting": 7,
        "paused": 300,
        "stopped": 300,
        "total": 600,
    }
    (one,) = cast("list[dict[str, object]]", answers.sweeps(state)["sweeps"])
    assert (one["waiting"], one["paused"], answers.summary(state)["waiting"]) == (7, 300, 307)


def test_a_proxys_header_is_not_believed_on_a_port() -> None:
    result = CliRunner().invoke(root, ["web", "--user-header", "X-Remote-User"])
    assert "--user-header needs --socket" in str(result.exception)

"""The page in a real browser: every view, an empty cluster, no daemon, stale state, 10,000 jobs, hostile names."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from slurm_plugin.audit_file import AuditEntry, AuditTrail
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.state.published import FILE, Curve, encoded
from tests.slurm_kit import record
from tests.slurm_plugin.state import HOSTILE, JOBS, published
from tests.slurm_plugin.web.browsing import Tab, a_browser, needs_chromium, served

pytestmark = needs_chromium
VIEWS = ("cluster", "queue", "sweeps", "sweep/digits/bob", "job/43", "gateway", "plan", "audit")
ADDRESS_OF_HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with a_browser() as started:
        yield started


def serving(directory: Path, *more: str) -> AbstractContextManager[str]:
    path = directory / "explsched.yaml"
    audit, state = {"file": str(directory / "audit.jsonl")}, {"directory": str(directory / "state")}
    path.write_text(yaml.safe_dump({"audit": audit, "state": state}))
    return served(path, *more)


def hostile_site(directory: Path) -> Path:
    """A day of a cluster with a sweep and a gateway, all of whose names are hostile; gives the gateway's directory."""
    for ago_s in (4 * 3600, 3 * 3600, 2 * 3600, 3600):
        _ = published(directory, jobs=JOBS[: 1 + ago_s % 4], now_s=time.time() - ago_s)
    state = published(directory, now_s=time.time() - 3)
    curves = [
        Curve(
            42 if number == 3 else 100 + number,
            "bob",
            HOSTILE,
            "digits",
            HOSTILE[:40],
            "RUNNING" if number == 3 else "ENDED",
            "min",
            1.0 / (number + 1),
            1,
            600.0,
            100,
            (
                (HOSTILE[:60], number / 7),
                ("lr", 10.0**-number),
                ("opt", ADDRESS_OF_HOSTILE if number % 2 else "nan"),
                ("w" * 128, "x" * 128),
            ),
            tuple((step, 1e300 if step == 1 else 1 / (step + number)) for step in range(1, 20)),
        )
        for number in range(12)
    ]
    (directory / "state" / FILE).write_bytes(msgspec.json.encode(replace(state, curves=encoded(curves))))
    changes = [
        AuditEntry(time.time() - 60, 104, "JobState", "RUNNING", "CANCELLED", "explsched", "stop", HOSTILE, "bob"),
        AuditEntry(time.time() - 50, 43, "JobState", HOSTILE, "PENDING", "explsched", "preemption", HOSTILE, "ada"),
    ]
    AuditTrail(directory / "audit.jsonl", 1, 1).write(changes)
    return a_gateway(directory / "gateway")


def a_gateway(directory: Path) -> Path:
    """The files of a gateway, as its control plane writes them."""
    directory.mkdir()
    replica = {"name": "r-1", "phase": "serving", "job_id": 42, "host": "n1", "port": 8000, "burst": False}
    replica |= {"in_flight": 3, "server": "UP", "since_s": time.time() - 300, "ends_s": None, "reason": HOSTILE}
    replica |= {"load": {"running": 1, "waiting": 2, "kv_cache": 0.874}}
    service = {"name": "llm", "serving": 1, "coming": 0, "draining": 0, "wanted": 2, "minimum": 0, "maximum": 4}
    service |= {"reason": HOSTILE, "arrivals": 20, "in_flight": 3, "queued": 1, "start_s": 41.5, "given_up": False}
    shown = {"gateway": "main", "run_directory": "/r", "time_s": time.time(), "closing": False}
    (directory / "status.json").write_text(json.dumps({**shown, "services": [{**service, "replicas": [replica]}]}))
    event = {"unix_s": time.time() - 30, "event": "wanted", "service": "llm", "replicas": 2, "reason": "20 requests/s"}
    (directory / "events.jsonl").write_text("torn\n" + json.dumps({"time": "x", **event}) + "\n")
    tokens = {"requests": 9, "prompt": 700, "completion": 34, "estimated": 0}
    day = time.strftime("%Y-%m-%d")
    used = [{"day": day, "key": key, "service": "llm", "tokens": tokens} for key in ("ada", "bob")]
    (directory / "usage.json").write_text(json.dumps({"days": used, "counted": {}}))
    return directory


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)])
def test_every_view_is_whole_legible_and_runs_nothing_of_the_jobs(
    browser: Any, tmp_path: Path, scheme: str, width: int
) -> None:
    gateway = hostile_site(tmp_path)
    with serving(tmp_path, "--gateway", str(gateway)) as address:
        tab = Tab(browser, address, scheme, width)
        assert "token" not in tab.page.url
        shown = {}
        for view in VIEWS:
            shown[view] = tab.go(view)
            assert tab.is_whole(), view
            assert tab.serious_findings() == [], view
        assert "idle+drain" in shown["cluster"]
        assert HOSTILE[:20] in shown["queue"]
        assert ("cluster's time" in shown["queue"].lower()) == (width > 1000), "not the browser's, as other times are"
        assert "digits" in shown["sweeps"]
        assert "Slurm says: Resources" in shown["job/43"]
        assert "stopped" in shown["sweep/digits/bob"]
        assert "1468" in shown["gateway"], "tokens of both keys"
        assert "3 (2 waiting inside, KV cache 87 %)" in shown["gateway"]
        assert "200" in shown["gateway"], "4 in the gateway at 20 a second are 200 ms each"
        assert HOSTILE[:20] in shown["audit"]
        assert not set("\x1b\u202e") & set("".join(shown.values())), "nothing turns the text behind it"
        tab.go("sweep/digits/bob")
        assert tab.page.locator(".parallel path").count() == 12
        assert tab.page.locator("main script, main img").count() == 0
        assert tab.faults == []
        assert len(tab.asked) == 1, "it asks no other host"
        tab.page.close()


def test_an_empty_cluster_is_told(browser: Any, tmp_path: Path) -> None:
    _ = published(tmp_path, jobs=(), now_s=time.time())
    with serving(tmp_path) as address:
        tab = Tab(browser, address)
        assert "none" in tab.go("queue")
        assert "No sweep waits or runs" in tab.go("sweeps")
        assert "No inference gateway is shown here" in tab.go("gateway")
        assert tab.serious_findings() == []
        assert tab.faults == []
        tab.page.close()


def test_old_and_missing_state_is_told(browser: Any, tmp_path: Path) -> None:
    _ = published(tmp_path, now_s=time.time() - 3600)
    with serving(tmp_path) as address:
        tab = Tab(browser, address)
        tab.page.wait_for_selector("#age.stale")
        assert "what you see is old" in tab.page.inner_text("#age")
        assert tab.serious_findings() == []
        (tmp_path / "state" / "state.json").unlink()
        told = tab.go("queue")
        assert "no daemon publishes in" in told and "\ufffd" not in told
        tab.page.close()


def test_a_sweep_that_is_over_is_told_as_such(browser: Any, tmp_path: Path) -> None:
    _ = published(tmp_path)
    with serving(tmp_path) as address:
        tab = Tab(browser, address)
        told = tab.go("sweep/past/ada")
        assert told.endswith("no job of this sweep waits or runs; `sexplsched sweep show NAME` shows past ones")
        tab.page.close()


def many(count: int) -> tuple[SlurmJob, ...]:
    return tuple(
        record(job_id, user=f"u{job_id % 40}", name=f"train-{job_id}", reason="Resources", natives=(job_id,))
        for job_id in range(1, count + 1)
    )


def test_ten_thousand_jobs_are_shown_a_screen_at_a_time_by_keyboard(browser: Any, tmp_path: Path) -> None:
    _ = published(tmp_path, jobs=(*JOBS[:2], *many(10_000)), now_s=time.time())
    with serving(tmp_path) as address:
        tab = Tab(browser, address)
        assert "1 to 50 of" in tab.go("queue?sort=jobid")
        assert tab.page.locator("tbody tr").count() == 50
        tab.page.focus("#next")
        tab.page.keyboard.press("Enter")
        tab.page.get_by_text("51 to 100 of").wait_for()
        tab.page.fill("#text", "train-9999")
        tab.page.keyboard.press("Enter")
        tab.page.get_by_text("1 to 1 of 1").wait_for()
        tab.page.keyboard.press("Tab")
        tab.page.get_by_role("link", name="9999", exact=True).focus()
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("main[data-ready=job]")
        assert "Job 9999" in tab.page.inner_text("main h1")
        assert tab.faults == []
        tab.go("queue")
        tab.keep("web-10000-jobs")
        tab.page.close()


def test_what_is_new_appears_without_a_reload_and_the_focus_stays(browser: Any, tmp_path: Path) -> None:
    _ = published(tmp_path, jobs=JOBS[:2], now_s=time.time() - 5)
    with serving(tmp_path) as address:
        tab = Tab(browser, address)
        assert "43" not in tab.go("queue").split()
        tab.page.focus("#sort-user")
        _ = published(tmp_path, now_s=time.time())
        tab.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        tab.page.get_by_role("link", name="43", exact=True).wait_for()
        assert tab.page.evaluate("document.activeElement.id") == "sort-user"
        tab.page.close()


def listeners(tab: Tab, event: str) -> int:
    """How many functions the window calls at an event."""
    session = tab.page.context.new_cdp_session(tab.page)
    window = session.send("Runtime.evaluate", {"expression": "window"})["result"]["objectId"]
    found = session.send("DOMDebugger.getEventListeners", {"objectId": window})["listeners"]
    session.detach()
    return [one["type"] for one in found].count(event)


def test_a_page_left_open_keeps_no_charts_but_those_it_shows(browser: Any, tmp_path: Path) -> None:
    gateway = hostile_site(tmp_path)
    with serving(tmp_path, "--gateway", str(gateway)) as address:
        tab = Tab(browser, address)
        tab.go("queue")
        own = listeners(tab, "dppxchange")  # uPlot's, without any chart
        for view in ("cluster", "sweep/digits/bob"):
            tab.go(view)
            for _ in range(3):
                tab.update()
            assert tab.page.locator("main .uplot canvas").count() == 1
            assert listeners(tab, "dppxchange") == own + 1, "each chart has one until it is given up"
        tab.go("queue")
        assert listeners(tab, "dppxchange") == own
        assert tab.faults == []
        tab.page.close()


def reported(tab: Tab, gateway: Path, count: int) -> None:
    """The gateway reports the same again, until the page knows of so many seconds."""
    path = gateway / "status.json"
    known = "async () => (await (await fetch('/api/gateways')).json()).gateways[0].services[0].loads[0].length"
    while tab.page.evaluate(known) < count:
        path.write_text(json.dumps({**json.loads(path.read_text()), "time_s": time.time()}))
        tab.page.wait_for_timeout(100)


def test_the_chart_of_a_gateway_to_which_nothing_happens_goes_on(browser: Any, tmp_path: Path) -> None:
    _ = published(tmp_path, now_s=time.time())
    gateway = a_gateway(tmp_path / "gateway")
    with serving(tmp_path, "--gateway", str(gateway)) as address:
        tab = Tab(browser, address)
        reported(tab, gateway, 2)
        tab.go("gateway")
        before = tab.page.get_attribute(".chart", "aria-label")
        tab.page.evaluate("document.querySelector('.chart canvas').id = 'before'")
        reported(tab, gateway, 4)
        tab.update()
        assert tab.page.get_attribute(".chart", "aria-label") == before
        assert tab.page.locator(".chart canvas").count() == 1
        assert tab.page.locator("#before").count() == 0, "it is another one"
        tab.page.close()


def test_after_a_search_what_is_new_appears_and_what_is_typed_stays(browser: Any, tmp_path: Path) -> None:
    _ = published(tmp_path, jobs=JOBS[:2], now_s=time.time() - 5)
    caret = "[document.activeElement.id, document.activeElement.selectionStart]"
    with serving(tmp_path) as address:
        tab = Tab(browser, address)
        tab.go("queue")
        tab.page.focus("#text")
        tab.page.keyboard.type("ada")
        tab.page.keyboard.press("Enter")
        tab.page.get_by_text("1 to 1 of 1").wait_for()
        assert tab.page.evaluate(caret) == ["text", 3]
        _ = published(tmp_path, now_s=time.time() - 4)
        tab.update()
        assert "1 to 2 of 2" in tab.page.inner_text("main")
        assert tab.page.evaluate(caret) == ["text", 3]
        tab.page.keyboard.type("x")
        _ = published(tmp_path, jobs=JOBS[:1], now_s=time.time() - 3)
        tab.update()
        assert tab.page.input_value("#text") == "adax"
        assert tab.page.evaluate(caret) == ["text", 4]
        tab.page.close()


def test_who_reads_what_a_search_has_found_is_not_taken_to_its_top(browser: Any, tmp_path: Path) -> None:
    """The field of the search keeps the focus while its page is scrolled."""
    _ = published(tmp_path, jobs=many(300), now_s=time.time() - 5)
    with serving(tmp_path) as address:
        tab = Tab(browser, address)
        tab.go("queue")
        tab.page.focus("#text")
        tab.page.keyboard.type("train-2")
        tab.page.keyboard.press("Enter")
        tab.page.get_by_text("of 111").first.wait_for()  # what is found, at whose top one is
        tab.page.evaluate("scrollTo(0, 900)")
        _ = published(tmp_path, jobs=many(298), now_s=time.time() - 2)
        tab.update()
        assert "of 110" in tab.page.inner_text("main")
        assert tab.page.evaluate("[document.activeElement.id, scrollY]") == ["text", 900]
        tab.page.close()


def test_the_link_to_the_content_leads_to_it_and_stays_in_the_view(browser: Any, tmp_path: Path) -> None:
    _ = published(tmp_path, now_s=time.time())
    with serving(tmp_path) as address:
        tab = Tab(browser, address)
        tab.go("queue")
        tab.page.focus(".skip")
        tab.page.keyboard.press("Enter")
        assert tab.page.evaluate("[document.activeElement.id, location.hash]") == ["main", "#/queue"]
        tab.update()
        assert "Queue" in tab.page.inner_text("main h1")
        tab.page.close()


def test_of_a_queue_that_has_become_shorter_the_last_rows_are_shown(browser: Any, tmp_path: Path) -> None:
    _ = published(tmp_path, now_s=time.time())
    with serving(tmp_path) as address:
        tab = Tab(browser, address)
        assert "1 to 3 of 3" in tab.go("queue?offset=200")
        assert tab.page.locator("tbody tr").count() == 3
        assert "none" in tab.go("audit?offset=200")
        tab.page.close()

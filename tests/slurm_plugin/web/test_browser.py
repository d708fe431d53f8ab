"""The page in a real browser: every view, an empty cluster, no daemon, stale state, 10,000 jobs, hostile names."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_plugin.client.records import SlurmJob
from tests.slurm_kit import record
from tests.slurm_plugin.state import HOSTILE, JOBS, published

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install explsched[browser])")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no browser (Debian package chromium)")
VIEWS = ("cluster", "queue", "sweeps", "sweep/digits/bob", "job/43", "plan", "audit")
SCREENSHOTS = os.environ.get("EXPLSCHED_SCREENSHOTS")
"""A directory; the test leaves the screenshots of the documentation there."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """The real command; gives the address that it prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = directory / "explsched.yaml"
    audit, state = {"file": str(directory / "audit.jsonl")}, {"directory": str(directory / "state")}
    path.write_text(yaml.safe_dump({"audit": audit, "state": state}))
    argv = [sys.executable, "-m", "explsched.cli.main", "web", "-p", str(port), "-f", str(path)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], 60)
        assert ready, "the command prints no address"
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait(timeout=30)
        process.stdout.close()


class Tab:
    """A page of the browser that notes what goes wrong in it, and where it asks."""

    def __init__(self, browser: Any, address: str, scheme: str = "light") -> None:
        self.page = browser.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 800})
        self.faults: list[str] = []
        self.asked: set[str] = set()
        self.page.on("console", lambda told: self.faults.append(told.text) if told.type == "error" else None)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self.asked.add(request.url.split("/")[2]))
        self.address = address
        self.page.goto(address)

    def _dismiss(self, dialog: Any) -> None:
        self.faults.append("a dialog opened")
        dialog.dismiss()

    def go(self, view: str) -> str:
        """Open a view and wait for it; gives its text."""
        self.page.evaluate("view => { location.hash = view }", f"#/{view}")
        self.page.wait_for_selector(f"main[data-ready={view.split('/')[0].split('?')[0]}]")
        text: str = self.page.inner_text("main")
        return text

    def keep(self, name: str) -> None:
        """A screenshot for the documentation."""
        if SCREENSHOTS:
            self.page.screenshot(path=str(Path(SCREENSHOTS) / f"{name}.png"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_shows_its_jobs_and_runs_nothing_of_theirs(browser: Any, tmp_path: Path, scheme: str) -> None:
    for ago_s in (4 * 3600, 3 * 3600, 2 * 3600, 3600, 3):
        _ = published(tmp_path, jobs=JOBS[: 1 + ago_s % 4], now_s=time.time() - ago_s)
    with served(tmp_path) as address:
        tab = Tab(browser, address, scheme)
        assert "token" not in tab.page.url
        shown = {view: tab.go(view) for view in VIEWS}
        assert "IDLE+DRAIN" in shown["cluster"]
        assert HOSTILE[:20] in shown["queue"]
        assert "digits" in shown["sweeps"]
        assert "Slurm says: Resources" in shown["job/43"]
        assert tab.faults == []
        assert len(tab.asked) == 1, "it asks no other host"
        tab.go("cluster")
        tab.keep(f"web-cluster-{scheme}")
        tab.page.close()


def test_an_empty_cluster_is_told(browser: Any, tmp_path: Path) -> None:
    _ = published(tmp_path, jobs=(), now_s=time.time())
    with served(tmp_path) as address:
        tab = Tab(browser, address)
        assert "none" in tab.go("queue")
        assert "No sweep waits or runs" in tab.go("sweeps")
        assert tab.faults == []
        tab.page.close()


def test_old_and_missing_state_is_told(browser: Any, tmp_path: Path) -> None:
    _ = published(tmp_path, now_s=time.time() - 3600)
    with served(tmp_path) as address:
        tab = Tab(browser, address)
        tab.page.wait_for_selector("#age.stale")
        assert "what you see is old" in tab.page.inner_text("#age")
        (tmp_path / "state" / "state.json").unlink()
        assert "no daemon publishes in" in tab.go("queue")
        tab.page.close()


def many(count: int) -> tuple[SlurmJob, ...]:
    return tuple(
        record(job_id, user=f"u{job_id % 40}", name=f"train-{job_id}", reason="Resources", natives=(job_id,))
        for job_id in range(1, count + 1)
    )


def test_ten_thousand_jobs_are_shown_a_screen_at_a_time_by_keyboard(browser: Any, tmp_path: Path) -> None:
    _ = published(tmp_path, jobs=(*JOBS[:2], *many(10_000)), now_s=time.time())
    with served(tmp_path) as address:
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
        tab.keep("web-queue")
        tab.page.close()

"""A real browser for tests of the page: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install explsched[browser])")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed (explsched[browser])")
CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no browser (Debian package chromium)")
SCREENSHOTS = os.environ.get("EXPLSCHED_SCREENSHOTS")
"""A directory; tests leave the screenshots of the documentation there."""
_UPDATE = """() => new Promise((done) => {
  const asked = performance.now();
  new PerformanceObserver((seen, observer) => {
    if (!seen.getEntriesByName("update").some((update) => update.startTime >= asked)) return;
    observer.disconnect();
    done();
  }).observe({ type: "measure" });
  document.dispatchEvent(new Event("visibilitychange"));
})"""
_SERIOUS = frozenset({"serious", "critical"})


@contextmanager
def a_browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def served(config: Path, *more: str, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """The real command with this configuration; gives the address that it prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "explsched.cli", "web", "-p", str(port), "-f", str(config), *more]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**environment, "PYTHONUNBUFFERED": "1"})
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

    def __init__(self, browser: Any, address: str, scheme: str = "light", width: int = 1280) -> None:
        self.page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
        self.faults: list[str] = []
        self.asked: set[str] = set()
        self.page.on("console", lambda told: self.faults.append(told.text) if told.type == "error" else None)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self.asked.add(request.url.split("/")[2]))
        self.page.goto(address)
        self.page.wait_for_selector("main[data-ready]")

    def _dismiss(self, dialog: Any) -> None:
        self.faults.append("a dialog opened")
        dialog.dismiss()

    def go(self, view: str) -> str:
        """Open a view and wait for it; gives its text."""
        self.page.evaluate("view => { location.hash = view }", f"#/{view}")
        self.page.wait_for_selector(f"main[data-ready={view.split('/')[0].split('?')[0]}]")
        text: str = self.page.inner_text("main")
        return text

    def update(self) -> None:
        """What the page does every ten seconds, to its end."""
        self.page.evaluate(_UPDATE)

    def serious_findings(self) -> list[str]:
        """What axe-core finds wrong for people who use a keyboard or a screen reader, or see badly."""
        found = axe.Axe().run(self.page).response["violations"]
        return [
            f"{one['id']} ({one['impact']}): {node['html'][:200]}"
            for one in found
            if one["impact"] in _SERIOUS
            for node in one["nodes"]
        ]

    def is_whole(self) -> bool:
        """Whether nothing stands out of the screen to the right: what is wide scrolls in its own place."""
        wide: bool = self.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        return wide

    def keep(self, name: str) -> None:
        """A screenshot for the documentation."""
        if SCREENSHOTS:
            self.page.wait_for_timeout(200)  # charts are drawn in the next frame
            self.page.screenshot(path=str(Path(SCREENSHOTS) / f"{name}.png"))

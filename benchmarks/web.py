"""What the page costs, and how fast it is: `python -m benchmarks.web --json`.

A state of 10,000 jobs (`--jobs`), made by the daemon's own code, is published anew every few seconds, so that every
poll finds something new. `sexplsched web` serves it as on a site.

* `status_s`, `status_cpu_s`: `sexplsched status` of a user who may not read the file, over the socket, from start to
  end, output to a pipe; Slurm's commands are not on its PATH, so no request can go to slurmctld. Medians of 7.
* `viewers`: that many clients (`--viewers`) poll as the page does, summary and queue every 10 s, each with the mark of
  what it has. `cores`: CPU time of the web process by wall time; `answer_p50_s`, `answer_p99_s`: of one answer;
  `kb_per_minute_and_viewer`: bodies as they are sent, compressed. `all` have the token; `own` are as many users whom a
  proxy names, each of whom sees the reports of his own jobs only.
* `pass_s`, `pass_with_viewers_s`: plan and publishing in a process of its own, as in a pass, without and with the
  viewers of `all`, in turns; medians. `pass_cpu_ratio`: CPU time of a pass with viewers by that without, the median of
  the turns and the least and largest of them. The viewers share the machine, so wall time also holds their own cost.
* With Chromium and Playwright: `first_paint_s` (first contentful paint), `first_queue_s` (the queue is there), from
  navigation; `update_s` from the poll to the new rows on the screen; `browser_kb_per_minute` over a minute of polling.
  Medians of 5 but for the last.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import click
import psutil
import yaml
from aiohttp import ClientSession, TCPConnector, UnixConnector
from msgspec.structs import replace

from slurm_plugin.client.records import ClusterRecords, SlurmJob, SlurmNode
from slurm_plugin.config import Config, load
from slurm_plugin.state import serving
from slurm_plugin.state.publish import Publisher
from slurm_plugin.state.published import PROGRESS, Totals, ask
from slurm_plugin.state.view import View

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

USERS = 200
_POLL_S = 10.0
_PUBLISH_EVERY_S = 5.0
_REPORTS = 30
_STATUS_RUNS = 7
_BROWSER_RUNS = 5
_PASS_ROUNDS = 6
_PASS_TURNS = 5
_GPUS = 8


def records(jobs: int, now_s: float) -> ClusterRecords:
    """A tenth of the jobs runs, on as many nodes as they fill; a third belongs to sweeps."""
    running = jobs // 10
    nodes = tuple(SlurmNode(f"n{n}", "ALLOCATED", _GPUS, frozenset({"main"})) for n in range(running // 2 + 1))
    return ClusterRecords(nodes, tuple(_job(number, running, now_s) for number in range(1, jobs + 1)), ())


def _job(number: int, running: int, now_s: float) -> SlurmJob:
    runs = number <= running
    node = f"n{(number - 1) // 2}"
    return SlurmJob(
        job_id=number,
        name=f"train-resnet-{number}",
        user=f"user{number % USERS}",
        uid=1000 + number % USERS,
        account=f"account{number % 20}",
        partition="main",
        qos="normal",
        state="RUNNING" if runs else "PENDING",
        reason="None" if runs else "Priority",
        priority=100_000 - number,
        site_factor=0,
        submit_s=now_s - 100_000 + number,
        eligible_s=now_s - 100_000 + number,
        start_s=now_s - 3600 if runs else None,
        time_limit_s=86_400.0,
        nodes=1,
        gpus=4,
        gpus_per_node=4,
        gpu_nodes=((node, 4),) if runs else (),
        reservation="",
        comment=f"explsched:sweep=s{number % 50}&params=lr%3D{number / 1000}" if number % 3 == 0 else "",
        restarts=0,
        natives=(100_000 - number,),
    )


def reports(spool: Path, jobs: int, now_s: float) -> None:
    """What the running trainings of sweeps have reported; the files belong to whoever measures."""
    for number in range(3, jobs // 10 + 1, 3):
        lines = (
            json.dumps(
                {
                    "time_s": now_s - 3600 + 100 * step,
                    "restart": 0,
                    "step": step,
                    "metric": "loss",
                    "value": 1 / (step + number % 7 + 1),
                    "total_steps": 100,
                }
            )
            for step in range(1, _REPORTS + 1)
        )
        (spool / f"{number}.jsonl").write_text("\n".join(lines) + "\n")


class Site:
    """A directory with configuration, spool, state and audit file."""

    def __init__(self, directory: Path, jobs: int) -> None:
        self.directory = directory
        self.jobs = jobs
        self.config_path = directory / "explsched.yaml"
        paths = {
            "policy": "srsf",
            "progress": {"spool": str(directory / "spool")},
            "order": {"site_factor_file": str(directory / "site_factors.json")},
            "audit": {"file": str(directory / "audit.jsonl")},
            "state": {"directory": str(directory / "state"), "socket": str(directory / "state.sock")},
        }
        self.config_path.write_text(yaml.safe_dump(paths))
        (directory / "spool").mkdir()
        self.config: Config = load(self.config_path)
        self._publisher = Publisher(self.config.state.directory)
        self.hidden: tuple[str, ...] = (PROGRESS,)

    def view(self) -> View:
        """What a pass sees and plans now."""
        now_s = time.time()
        found = records(self.jobs, now_s)
        mine = tuple(replace(job, uid=os.getuid()) for job in found.jobs)
        return View.of(self.config, replace(found, jobs=mine), now_s)

    def publish(self, view: View) -> None:
        """As at the end of a pass."""
        self._publisher.publish(view, (), self.hidden, "benchmark", Totals(passes=1, pass_s=0.5))


@contextmanager
def republishing(site: Site) -> Iterator[None]:
    """The state is replaced every few seconds, by another process, as long as the block lasts."""
    code = (
        "import sys, time, os, json\nfrom pathlib import Path\npath = Path(sys.argv[1])\ntext = path.read_text()\n"
        "begin = text.index(':') + 1\nend = text.index(',')\nwhile os.getppid() == int(sys.argv[2]):\n"
        "    new = path.with_suffix('.new')\n    job = str(int(time.time()) % 1000)\n"
        "    new.write_text(text[:begin] + repr(time.time()) + text[end:].replace('train-resnet-', f'train-{job}-'))\n"
        "    new.chmod(0o640)\n    new.replace(path)\n    time.sleep(float(sys.argv[3]))\n"
    )
    path = site.config.state.directory / "state.json"
    argv = [sys.executable, "-c", code, str(path), str(os.getpid()), str(_PUBLISH_EVERY_S)]
    process = subprocess.Popen(argv)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def served(site: Site, *more: str) -> Iterator[tuple[psutil.Process, str]]:
    """`sexplsched web`; gives its process and what it says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "explsched.cli", "web", "-p", str(port), "-f", str(site.config_path), *more]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        if process.stdout is None or not select.select([process.stdout], [], [], 120)[0]:
            raise click.ClickException("sexplsched web does not start")
        yield psutil.Process(process.pid), process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def status_figures(site: Site) -> dict[str, object]:
    """`status` over the socket."""
    hidden = site.directory / "unreadable.yaml"
    told = yaml.safe_load(site.config_path.read_text())
    told["state"]["directory"] = str(site.directory / "nowhere")
    hidden.write_text(yaml.safe_dump(told))
    server = subprocess.Popen(serving.argv(site.config.state.directory, site.config.state.socket))
    try:
        while ask(site.config.state.socket) is None:
            time.sleep(0.1)
        walls, cpus = [], []
        argv = [sys.executable, "-m", "explsched.cli", "status", "-f", str(hidden)]
        for _ in range(_STATUS_RUNS):
            before, began_s = os.times(), time.monotonic()
            done = subprocess.run(argv, capture_output=True, text=True, check=True, env={"PATH": "/nowhere"})
            walls.append(time.monotonic() - began_s)
            after = os.times()
            cpus.append(after.children_user + after.children_system - before.children_user - before.children_system)
            if done.stdout.count("\n") <= site.jobs:
                raise click.ClickException(f"status shows {done.stdout.count(chr(10))} lines of {site.jobs}")
    finally:
        server.terminate()
        server.wait()
    return {"status_s": statistics.median(walls), "status_cpu_s": statistics.median(cpus)}


async def _viewer(session: ClientSession, base: str, user: str, until_s: float, seen: list[tuple[float, int]]) -> None:
    marks: dict[str, str] = {}
    await asyncio.sleep(random.uniform(0, _POLL_S))  # noqa: S311  spreads viewers, nothing secret
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        for path in ("/api/summary", "/api/jobs?text=&state=&sort=&offset=0"):
            headers = {"Accept-Encoding": "gzip", **({"X-Remote-User": user} if user else {})}
            if path in marks:
                headers["If-None-Match"] = marks[path]
            asked_s = time.monotonic()
            async with session.get(base + path, headers=headers) as response:
                body = await response.read()
                if response.status not in (200, 304):
                    raise click.ClickException(f"{path}: {response.status}")
                marks[path] = response.headers["ETag"]
                seen.append((time.monotonic() - asked_s, len(body)))
        await asyncio.sleep(max(0.0, began_s + _POLL_S - time.monotonic()))


async def _watch(told: str, path: Path | None, viewers: int, seconds: float) -> list[tuple[float, int]]:
    connector = UnixConnector(str(path)) if path else TCPConnector(limit=0)
    seen: list[tuple[float, int]] = []
    async with ClientSession(connector=connector, auto_decompress=False) as session:
        base = "http://page"
        if path is None:
            address = told.split()[-1]
            base = address.split("/login")[0]
            async with session.get(address, allow_redirects=False) as response:
                name, value = response.headers["Set-Cookie"].split(";")[0].split("=", 1)
            session.headers["Cookie"] = f"{name}={value}"
        until_s = time.monotonic() + seconds
        names = [f"user{number % USERS}" if path else "" for number in range(viewers)]
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(_viewer(session, base, name, until_s, seen))
    return seen


def viewer_figures(site: Site, viewers: int, seconds: float, *, own: bool) -> dict[str, object]:
    """Cost and speed of the web process while so many look."""
    path = site.directory / "web.sock" if own else None
    more = ("--socket", str(path), "--user-header", "X-Remote-User") if own else ()
    with served(site, *more) as (process, told), republishing(site):
        before, began_s = process.cpu_times(), time.monotonic()
        seen = asyncio.run(_watch(told, path, viewers, seconds))
        wall_s, after = time.monotonic() - began_s, process.cpu_times()
        memory_mib = process.memory_info().rss / 2**20
    took = sorted(took_s for took_s, _ in seen)
    return {
        "cores": (after.user + after.system - before.user - before.system) / wall_s,
        "answers": len(seen),
        "answer_p50_s": took[len(took) // 2],
        "answer_p99_s": took[int(0.99 * len(took))],
        "kb_per_minute_and_viewer": sum(size for _, size in seen) / 1000 / viewers / (wall_s / 60),
        "memory_mib": memory_mib,
    }


def _passes(site_directory: str, jobs: int, count: int, sender: Connection) -> None:
    """In a process of its own: passes that publish elsewhere, so that viewers do not see them."""
    directory = Path(tempfile.mkdtemp(dir=site_directory))
    site = Site(directory, jobs)
    took = []
    for _ in range(count):
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        site.publish(site.view())
        took.append((time.monotonic() - began_s, time.process_time() - began_cpu_s))
    sender.send(took)


def passes(site: Site, count: int) -> list[tuple[float, float]]:
    """How long passes take now: wall and CPU time of each, in seconds."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_passes, args=(str(site.directory), site.jobs, count, sender))
    process.start()
    found: list[tuple[float, float]] = receiver.recv()
    process.join()
    return found[1:]  # the first one loads things


def pass_figures(site: Site, viewers: int) -> dict[str, object]:
    """Passes without and with viewers, in turns."""
    alone: list[float] = []
    watched: list[float] = []
    cpu_ratios: list[float] = []
    with served(site) as (_, told), republishing(site):
        for _ in range(_PASS_TURNS):
            without = passes(site, _PASS_ROUNDS)
            context = get_context("spawn")
            process = context.Process(target=_only_watch, args=(told, viewers))
            process.start()
            time.sleep(_POLL_S)
            beside = passes(site, _PASS_ROUNDS)
            process.terminate()
            process.join()
            alone += [wall_s for wall_s, _ in without]
            watched += [wall_s for wall_s, _ in beside]
            cpu_ratios.append(statistics.median(c for _, c in beside) / statistics.median(c for _, c in without))
    return {
        "pass_s": statistics.median(alone),
        "pass_with_viewers_s": statistics.median(watched),
        "pass_cpu_ratio": {"median": statistics.median(cpu_ratios), "least": min(cpu_ratios), "most": max(cpu_ratios)},
    }


def _only_watch(told: str, viewers: int) -> None:
    asyncio.run(_watch(told, None, viewers, 3600.0))


def browser_figures(site: Site) -> dict[str, object]:
    """What a person waits for. Nothing where there is no browser."""
    chromium = shutil.which("chromium")
    if chromium is None or find_spec("playwright") is None:
        return {}
    from playwright.sync_api import sync_playwright

    with served(site) as (_, told), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        paints, queues, updates = [], [], []
        address = told.split()[-1]
        for _ in range(_BROWSER_RUNS):
            page = browser.new_page()
            page.goto(address)
            page.goto(address.split("/login")[0] + "/#/queue")
            page.reload()
            page.wait_for_selector("main[data-ready=queue] tbody tr")
            queues.append(
                _measured(page, "performance.getEntriesByName('update')[0].startTime")
                + _measured(page, "performance.getEntriesByName('update')[0].duration")
            )
            paints.append(_measured(page, "performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            site.publish(site.view())
            page.evaluate("performance.clearMeasures(); document.dispatchEvent(new Event('visibilitychange'))")
            while not page.evaluate("performance.getEntriesByName('update').length"):
                page.wait_for_timeout(20)  # the page's policy forbids what wait_for_function does
            updates.append(_measured(page, "performance.getEntriesByName('update')[0].duration"))
            page.close()
        kilobytes = _kilobytes_a_minute(browser, address, site)
        browser.close()
    return {
        "first_paint_s": statistics.median(paints),
        "first_queue_s": statistics.median(queues),
        "update_s": statistics.median(updates),
        "browser_kb_per_minute": kilobytes,
    }


def _measured(page: Page, expression: str) -> float:
    return float(page.evaluate(expression)) / 1000


def _kilobytes_a_minute(browser: Browser, address: str, site: Site) -> float:
    """All bytes that come over the network, headers too, while the queue is open and every poll finds something new."""
    page = browser.new_page()
    page.goto(address)
    page.goto(address.split("/login")[0] + "/#/queue")
    page.wait_for_selector("main[data-ready=queue] tbody tr")
    session = page.context.new_cdp_session(page)
    sizes: list[float] = []
    session.send("Network.enable")
    session.on("Network.loadingFinished", lambda told: sizes.append(told["encodedDataLength"]))
    with republishing(site):
        page.wait_for_timeout(60_000)
    return sum(sizes) / 1000


@click.command()
@click.option("--jobs", default=10_000, show_default=True)
@click.option("--viewers", default=200, show_default=True)
@click.option("--seconds", default=40.0, show_default=True, help="How long viewers look.")
@click.option("--part", "parts", multiple=True, type=click.Choice(["status", "viewers", "pass", "browser"]))
@click.option("--json", "as_json", is_flag=True)
def main(jobs: int, viewers: int, seconds: float, parts: tuple[str, ...], as_json: bool) -> None:  # noqa: FBT001
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="explsched-") as name:
        site = Site(Path(name), jobs)
        reports(site.config.progress.spool, jobs, time.time())
        site.publish(site.view())
        measured: dict[str, Callable[[], dict[str, object]]] = {
            "status": lambda: status_figures(site),
            "browser": lambda: browser_figures(site),
            "viewers": lambda: {
                "all": viewer_figures(site, viewers, seconds, own=False),
                "own": viewer_figures(site, viewers, seconds, own=True),
            },
            "pass": lambda: pass_figures(site, viewers),
        }
        found: dict[str, object] = {"jobs": jobs, "viewers_count": viewers, "cpus": os.cpu_count()}
        for part, measure in measured.items():
            if not parts or part in parts:
                figures = measure()
                found |= {part: figures} if part == "viewers" else figures
    text = json.dumps(_rounded(found), indent=None if as_json else 1)
    print(text)


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    main()

"""The activator's process: `python -m inference_gateway.activator DIRECTORY`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

from inference_gateway.activator.holding import Waiting
from inference_gateway.activator.server import Activator
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.health import HealthLoop
from inference_gateway.dataplane.process import AccessLogWriter, opened_pipe
from inference_gateway.dataplane.statistics import DataPlaneCollector, HaproxyStatistics, exposition
from inference_gateway.errors import GatewayError, NotRunningError

_ROUND_S = 1.0
_LOG = logging.getLogger("explsched.gateway.activator")


def main() -> None:
    """Serve until SIGTERM; requests in flight get a minute to end."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    asyncio.run(_serve(Files(Path(sys.argv[1]))))


async def _serve(files: Files) -> None:
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    reading = HaproxyStatistics(files)
    writer = AccessLogWriter(opened_pipe(files.access_pipe), files.access_log)
    recording = asyncio.create_task(asyncio.to_thread(writer.run))

    def metrics(lines: Mapping[str, Waiting]) -> str:
        state = {name: line.state() for name, line in lines.items()}
        traffic = reading.traffic(sorted(lines), state)
        cold_starts = [(name, line.cold_starts) for name, line in lines.items()]
        lost = (("disk", writer.lost_lines), ("pipe", reading.dropped_logs()))
        text = exposition(DataPlaneCollector(traffic, reading.servers(state), cold_starts, lost))
        added = files.control_metrics.read_text(encoding="utf-8") if files.control_metrics.exists() else ""
        return text + added

    activator = Activator(files, metrics)
    activator.read_services()
    os.umask(0o177)
    runner = web.AppRunner(
        activator.application(),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=60.0,
        keepalive_timeout=75.0,
    )
    await runner.setup()
    await web.UnixSite(runner, str(files.activator_socket), backlog=4096).start()
    files.activator_pid.write_text(str(os.getpid()), encoding="ascii")
    checking = asyncio.create_task(_check_health(files, activator))
    await ending.wait()
    checking.cancel()
    await runner.cleanup()
    writer.end()
    await recording


async def _check_health(files: Files, activator: Activator) -> None:
    """Check HAProxy once a second, for ever: an error ends one round, not the activator."""
    health_loop = HealthLoop(files)
    resumed = False
    trouble = ""
    while True:
        try:
            activator.read_services()
            if not resumed:
                await asyncio.to_thread(health_loop.resume)
                resumed = True
            held = {name: line.service for name, line in activator.lines.items()}
            for line in await asyncio.to_thread(health_loop.run_round, held, time.monotonic()):
                _LOG.info("%s", line)
            trouble = ""
        except NotRunningError as error:
            if trouble != str(error):  # once, not every second
                trouble = str(error)
                _LOG.warning("%s", error)
        except GatewayError:
            _LOG.exception("this round of health checks failed")
        await asyncio.sleep(_ROUND_S)


if __name__ == "__main__":
    main()

"""Counters over HAProxys that come and go, and what HAProxy prints."""

import threading
from pathlib import Path

import pytest

from inference_gateway.dataplane import runtime, statistics
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.runtime import BackendRow
from inference_gateway.dataplane.statistics import TrafficCounters
from inference_gateway.errors import DataPlaneError
from inference_gateway.model import Traffic


def counts(arrivals: int, failed: int = 0, present: int = 0, queued: int = 0) -> list[BackendRow]:
    return [BackendRow("s", arrivals, failed, present, queued, usable=1)]


def test_counts_only_rise() -> None:
    ledger = TrafficCounters()
    ledger.update({1: counts(10, failed=1, present=3, queued=1)})
    assert ledger.traffic(["s"], {}) == [Traffic("s", 10, 1, in_flight=2, queued=1)]
    ledger.update({1: counts(12, failed=1, present=2), 2: counts(1, present=1)})
    assert ledger.traffic(["s"], {}) == [Traffic("s", 13, 1, in_flight=3, queued=0)]
    ledger.update({2: counts(5)})
    assert ledger.traffic(["s"], {}) == [Traffic("s", 17, 1, in_flight=0, queued=0)]
    ledger.update({3: []})
    assert ledger.traffic(["s", "new"], {}) == [Traffic("s", 17, 1, 0, 0), Traffic("new", 0, 0, 0, 0)]


def test_errors_of_clients_are_no_load() -> None:
    ledger = TrafficCounters()
    ledger.update({1: [BackendRow("s", 10, 0, 0, 0, usable=1, responses_4xx=4)]})
    ledger.update({2: [BackendRow("s", 5, 0, 0, 0, usable=1, responses_4xx=5)]})
    (traffic,) = ledger.traffic(["s"], {})
    assert (traffic.arrivals, traffic.load) == (15, 6)


def test_what_the_activator_holds_waits() -> None:
    ledger = TrafficCounters()
    ledger.update({1: counts(10, present=5, queued=1)})
    assert ledger.traffic(["s"], {"s": 3}) == [Traffic("s", 10, 0, in_flight=1, queued=4)]
    assert ledger.traffic(["s"], {"s": 9}) == [Traffic("s", 10, 0, in_flight=0, queued=10)], "read a moment apart"


def test_two_who_ask_while_a_worker_ends_count_its_requests_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two Prometheus servers, and a reload: what one has read is out of date when the other one has finished."""
    workers = ["10 worker 1 0d 2.6", "11 worker 0 0d 2.6"]
    racing = threading.Event()
    asked: list[threading.Thread] = []

    class Api:
        def __init__(self, _path: Path) -> None:
            pass

        def ask(self, command: str) -> str:
            if command == "show proc":
                lines = ["0 master 1 [failed: 0] 0d 2.6", "# workers", workers[-1], "# old workers", *workers[:-1]]
                return "\n".join(lines)
            if "show stat" not in command:
                return "\n"
            arrivals = 10 if command.startswith("@!10 ") else 0
            if arrivals and racing.is_set() and not asked:
                other = threading.Thread(target=lambda: reading.traffic(["s"], {}))
                asked.append(other)
                del workers[0]  # it ends with this answer
                other.start()
                other.join(0.5)
            return f"# pxname,svname,stot,scur,qcur,hrsp_4xx,hrsp_5xx,act\nservice_s,BACKEND,{arrivals},0,0,0,0,1\n"

    monkeypatch.setattr(statistics, "RuntimeApi", Api)
    reading = statistics.HaproxyStatistics(Files(Path("/run/g")))
    assert reading.traffic(["s"], {})[0].arrivals == 10
    racing.set()
    reading.traffic(["s"], {})
    asked[0].join()
    assert reading.traffic(["s"], {})[0].arrivals == 10


def test_processes() -> None:
    text = (
        "#<PID> <type> <reloads> <uptime> <version>\n10 master 2 [failed: 1] 0d 2.6\n# workers\n30 worker 0 0d 2.6\n"
        "# old workers\n20 worker 1 0d 2.6\n# programs\n\n"
    )
    assert runtime.workers(text) == runtime.Workers(30, (20,), reloads=2, failed_reloads=1)
    after_a_failure = (
        "#<PID> <type> <reloads> <uptime> <version>\n10 master 2 [failed: 1] 0d 3.2\n# workers\n# old workers\n"
        "20 worker 2 0d 3.2\n30 worker 1 0d 3.2\n\n"
    )
    assert runtime.workers(after_a_failure) == runtime.Workers(30, (20,), reloads=2, failed_reloads=1)
    with pytest.raises(DataPlaneError, match="no worker"):
        runtime.workers("# workers\n")
    with pytest.raises(DataPlaneError, match="empty"):
        runtime.backends("\n")

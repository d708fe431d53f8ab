"""What the control plane shows of its services, as a report and to Prometheus."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from inference_gateway.control import state
from inference_gateway.control.replica import Phase, Replica
from inference_gateway.control.report import ControlPlaneCollector, ReplicaReport, Report, report
from inference_gateway.control.state import Attempts, EventLog, ServiceMemory
from inference_gateway.control.usage import DayUsage, UsageState
from inference_gateway.dataplane.statistics import exposition
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.model import ReplicaLoad, ServerState, Traffic
from inference_gateway.replicas.reports import Tokens
from slurm_plugin.web.gateway import GatewayFiles
from tests.inference_gateway.control.test_service import NOW_S, control

SERVING = Replica("chat", "chat-1", "g", Phase.SERVING, 5.0, 1.0, True, 7, 0, "n1", 20001, 3600.0, 3605.0)  # noqa: FBT003
PHASES = (Phase.SUBMITTING, Phase.PENDING, Phase.STARTING, Phase.DRAINING, Phase.DRAINING, Phase.ENDING)


def shown() -> Report:
    service = control(ServiceMemory(starts_s=(12.34,)), hold_s=0)
    others = [Replica("chat", f"chat-{phase}-{n}", "g", phase, 2.0, 1.0) for n, phase in enumerate(PHASES)]
    strange = Replica("gone", "gone-1", "g", Phase.ENDING, 2.0, 1.0)
    found = service.classify([replace(SERVING, generation=service.generation)], NOW_S)
    for counter in (10, 14):
        service.decide(found, Traffic("chat", counter, 0, 5, 6), NOW_S)
    server = ServerState("chat", "chat-1", "n1", 20001, "up", 3)
    return report("g", "/run", {"chat": service}, [SERVING, *others, strange], [server], NOW_S, closing=True)


def test_a_report_before_the_first_look_has_no_figures() -> None:
    (one,) = report("g", "/run", {"chat": control()}, [], [], NOW_S, closing=False).services
    assert (one.wanted, one.reason, one.arrivals, one.in_flight, one.queued, one.replicas) == (None, "", 0, 0, 0, ())
    assert (one.minimum, one.maximum, one.start_s, one.given_up) == (1, 8, 30.0, False)


def test_a_report_has_all_known_fields() -> None:
    found = shown()
    assert (found.gateway, found.run_directory, found.time_s, found.closing) == ("g", "/run", NOW_S, True)
    (one,) = found.services
    assert (one.serving, one.coming, one.draining, one.wanted) == (1, 3, 2, 6)
    assert (one.arrivals, one.in_flight, one.queued, one.start_s) == (4, 5, 6, 12.3)
    assert "11 ongoing" in one.reason
    first, second = one.replicas[:2]
    assert first == ReplicaReport(
        "chat-1", "serving", 7, "n1", 20001, burst=True, in_flight=3, server="up", since_s=5.0, ends_s=3605.0, reason=""
    )
    assert (second.job_id, second.server, second.in_flight, second.ends_s) == (None, "", 0, None)
    assert len(one.replicas) == 7
    assert [replica.name for replica in found.removed] == ["gone-1"], "of a service that is not configured any more"
    assert found.replicas == (*one.replicas, *found.removed)


def test_a_report_says_that_a_service_has_given_up() -> None:
    service = control(ServiceMemory(Attempts(5, 1.0), generation=control().generation))
    found = report("g", "/run", {"chat": service}, [], [], NOW_S, closing=False)
    assert found.services[0].given_up
    text = exposition(ControlPlaneCollector(found))
    assert 'inference_gateway_given_up{service="chat"} 1.0' in text
    assert "inference_gateway_replicas_wanted{" not in text, "nothing is wanted before the first decision"


def test_metrics_of_replicas_are_shown_if_known() -> None:
    service = control()
    names = ("chat-1", "chat-2", "chat-3")
    serving = [replace(SERVING, name=name) for name in names]
    loads, faults = {"chat-1": ReplicaLoad(3, 2, 0.5), "chat-2": ReplicaLoad(1, 0)}, {"chat-3": "no answer"}
    found = report("g", "/run", {"chat": service}, serving, [], NOW_S, loads, faults, closing=False)
    (one,) = found.services
    assert [(replica.load, replica.metrics_fault) for replica in one.replicas] == [
        *((loads["chat-1"], ""), (loads["chat-2"], ""), (None, "no answer"))
    ]
    lines = exposition(ControlPlaneCollector(found)).splitlines()
    assert 'inference_gateway_replica_requests{replica="chat-1",service="chat",state="waiting"} 2.0' in lines
    assert 'inference_gateway_replica_requests{replica="chat-2",service="chat",state="running"} 1.0' in lines
    assert [line for line in lines if line.startswith("inference_gateway_replica_kv_cache_usage")] == [
        'inference_gateway_replica_kv_cache_usage{replica="chat-1",service="chat"} 0.5'
    ]


def test_prometheus_metrics_have_the_same_figures() -> None:
    lines = set(exposition(ControlPlaneCollector(shown())).splitlines())
    counts = {"serving": 1, "submitting": 1, "pending": 1, "starting": 1, "draining": 2, "ending": 1}
    assert {
        f'inference_gateway_replica_jobs{{phase="{phase}",service="chat"}} {count:.1f}'
        for phase, count in counts.items()
    } <= lines
    assert 'inference_gateway_replicas_wanted{service="chat"} 6.0' in lines
    assert 'inference_gateway_replica_start_seconds{service="chat"} 12.3' in lines
    assert 'inference_gateway_given_up{service="chat"} 0.0' in lines


def test_the_page_reads_what_the_gateway_writes(tmp_path: Path) -> None:
    """The page is below the gateway, and reads those of other releases: it declares what it needs of these files."""
    paths, (service,) = GatewayPaths(tmp_path), shown().services
    replicas = tuple(replace(one, load=ReplicaLoad(3, 2, 0.5)) for one in service.replicas)
    written = replace(shown(), services=(replace(service, replicas=replicas),))
    tokens, day = Tokens(1, 2, 3), time.strftime("%Y-%m-%d", time.localtime(NOW_S))
    assert state.show(paths.status, written)
    assert state.save(paths.usage, UsageState((DayUsage(day, "alice", "chat", tokens),)))
    EventLog(paths.events).note("wanted", "chat", replica="chat-1", replicas=2, reason="because")
    page = GatewayFiles(tmp_path)
    page.look(NOW_S)
    found: dict[str, Any] = page.told(NOW_S)
    assert (found["fault"], found["name"], found["closing"], found["written_s"]) == ("", "g", True, NOW_S)
    (one,), (event,) = found["services"], found["events"]
    assert is_part(one.pop("tokens"), to_builtins(tokens))
    assert (one.pop("latency_s"), len(one.pop("loads"))) == (11 / 4, 6)
    assert is_part(one, to_builtins(written.services[0]))
    assert is_part(event, json.loads(paths.events.read_text()))


def is_part(found: Any, whole: Any) -> bool:
    """Whether it has no fields but such as the whole, with the same values."""
    if isinstance(found, dict):
        return found.keys() <= whole.keys() and all(is_part(value, whole[key]) for key, value in found.items())
    if isinstance(found, list | tuple):
        return len(found) == len(whole) and all(map(is_part, found, whole))
    return bool(found == whole)

"""`sexplsched gateway`: what the commands show and refuse, without a cluster."""

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from explsched.cli import root
from explsched.errors import ExplschedError
from inference_gateway import accepted
from inference_gateway.control import state
from inference_gateway.control.report import ReplicaReport, Report, ServiceReport
from inference_gateway.control.state import Override
from inference_gateway.model import ReplicaLoad

SERVICES = """
name: t
directory: state
listen: {host: 127.0.0.1}
services:
  chat:
    models: [llama]
    replica: {command: "serve --port {port}"}
    scale: {max: 4}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "services.yaml"
    path.write_text(SERVICES)
    monkeypatch.setenv("SEXPLSCHED_GATEWAY_SERVICES", str(path))
    return tmp_path


def invoke(*argv: str) -> Result:
    return CliRunner().invoke(root, ["gateway", *argv])


def refused(*argv: str) -> str:
    done = invoke(*argv)
    assert isinstance(done.exception, ExplschedError), done.output
    return str(done.exception)


def report(time_s: float) -> Report:
    where = {"host": "127.0.0.1", "port": 20001, "burst": True, "in_flight": 3, "server": "up"}
    replica = ReplicaReport("chat-1", "serving", 7, **where, since_s=0.0, ends_s=1.8e9, reason="")
    counts = (1, 0, 0, 1, 1, 4)
    one = ServiceReport(
        "chat", *counts, "needs 0.5", 5, 3, 0, 30.0, given_up=False, next_in_s=75.4, replicas=(replica,)
    )
    return Report("t", "/run", time_s, closing=False, services=(one,))


def test_the_keys_of_a_services_file_are_listed_before_there_is_one() -> None:
    assert "services.NAME.replica.command" in invoke("services", "--keys").output


def test_a_missing_file_of_keys_is_told_how_it_is_made(place: Path) -> None:
    (place / "services.yaml").write_text(SERVICES.replace("127.0.0.1}", "127.0.0.1, keys: keys.yaml}"))
    assert "there is none; `sexplsched gateway key OWNER -s FILE` makes it" in refused("up")


def test_services_and_every_key(place: Path) -> None:
    assert "/services/chat" in invoke("services").output
    keys = invoke("services", "--keys").output
    assert "services.NAME.replica.command" in keys
    assert json.loads(invoke("services", "--json").output)["services"]["chat"]["models"] == ["llama"]


def test_up_shows_what_it_would_submit(place: Path) -> None:
    done = invoke("up", "--dry-run", "--partition", "cpu", "--time", "60", "--sbatch", "--nice=5")
    assert done.exit_code == 0, done.output
    head, *script = done.output.splitlines()
    assert {"--partition=cpu", "--time=60", "--nice=5", "--comment=igwjob:t", "--no-requeue"} <= set(head.split())
    # The successor gets the same options.
    assert "--sbatch=--partition=cpu" in script[-1]
    assert str(place / "services.yaml") in script[-1]
    assert not (place / "state").exists()


def test_up_refuses_a_wrong_file_of_keys(place: Path) -> None:
    (place / "keys.yaml").write_text("keys: {alice: {}}")
    (place / "services.yaml").write_text(SERVICES.replace("127.0.0.1}", "127.0.0.1, keys: keys.yaml}"))
    assert "keys.alice.sha256: is missing" in refused("up")


def test_a_gateway_that_is_not_up(place: Path) -> None:
    assert "gateway t is not up" in refused("address")
    assert "has not reported yet" in refused("status")
    assert "No such file" in refused("logs")
    assert "has never been up" in refused("scale", "chat", "2")


def test_scale_is_held_to_the_file(place: Path) -> None:
    (place / "state").mkdir()
    assert "no service 'chatt'; did you mean 'chat'? (known: chat)" in refused("scale", "chatt", "2")
    assert "9 is above services.chat.scale.max, 4" in refused("scale", "chat", "9")
    assert invoke("scale", "chat", "2").exit_code == 0
    found = state.read(place / "state" / "overrides.json", dict[str, Override])
    assert found is not None
    assert found["chat"].minimum == 2


@pytest.mark.parametrize(
    "text",
    [
        SERVICES.replace("models", "modells"),
        SERVICES.replace("[llama]", "[llama"),
        SERVICES.replace("name: t", "name: t\nname: t"),
        "&a: b\n" + SERVICES.replace("models: [llama]", "- models"),
    ],
    ids=["key", "bracket", "twice", "indentation"],
)
class TestAFault:
    """Of an edit, in an outage: the file in force is known."""

    @pytest.fixture
    def up(self, place: Path, text: str) -> Path:
        now = accepted.read(place / "services.yaml")
        now.paths.make()
        now.keep()
        (place / "services.yaml").write_text(text)
        return place

    def test_commands_go_by_the_file_in_force(self, up: Path) -> None:
        state.save(up / "state" / "status.json", report(time.time()))
        (up / "state" / "address").write_text("http://h:1\n")
        for argv in (("status",), ("address",), ("usage",), ("scale", "chat", "2")):
            done = invoke(*argv)
            assert done.exit_code == 0, done.output
            assert done.stderr.splitlines()[-1] == f"going by the accepted file, in {up / 'state' / 'accepted'}"
            assert str(up / "services.yaml") in done.stderr
        assert "services.yaml" in refused("services")

    def test_one_that_was_never_up_has_none(self, place: Path, text: str) -> None:
        (place / "services.yaml").write_text(text)
        told = refused("status").splitlines()
        assert "services.yaml" in told[0]
        assert told[-1].startswith(f"{place / 'state' / 'accepted'} has no file that was accepted")


def test_scale_goes_by_what_is_in_force(place: Path) -> None:
    now = accepted.read(place / "services.yaml")
    now.paths.make()
    now.keep()
    (place / "services.yaml").write_text(SERVICES.replace("max: 4", "max: 9"))
    assert "9 is above services.chat.scale.max, 4, which is in force" in refused("scale", "chat", "9")


def test_status_of_a_running_and_of_a_silent_gateway(place: Path) -> None:
    (place / "state").mkdir()
    path = place / "state" / "status.json"
    state.save(path, report(time.time()))
    done = invoke("status")
    assert done.exit_code == 0
    assert "needs 0.5" in done.output
    assert re.search(r"^chat-1 +serving +7 +127.0.0.1:20001 ", done.output, re.MULTILINE)
    assert json.loads(invoke("status", "--json").output)["services"][0]["serving"] == 1
    state.save(path, report(time.time() - 60))
    silent = invoke("status")
    assert (silent.exit_code, "has not reported for 60 s" in silent.stderr) == (1, True)


def test_status_says_what_a_person_has_to_know(place: Path) -> None:
    (place / "state").mkdir()
    shown = report(time.time())
    (one,) = shown.services
    pending = replace(one.replicas[0], name="chat-2", phase="pending", job_id=None, port=0, burst=False, ends_s=None)
    leaving = replace(one.replicas[0], name="chat-3", phase="draining", burst=False, reason="not needed any more")
    many = replace(one, given_up=True, wanted=None, replicas=(*one.replicas, pending, leaving))
    state.save(place / "state" / "status.json", replace(shown, closing=True, services=(many,)))
    head, columns, service, gap, _titles, first, second, third = invoke("status").output.splitlines()
    assert (head, gap) == ("gateway t: not up, closing", "")
    assert service.split() == [
        *["chat", "1", "0", "0", "-", "5", "3", "0", "75", "s"],
        *["given", "up", "after", "failed", "starts;", "`sexplsched", "gateway", "scale`", "tries", "again"],
    ]
    (told,) = json.loads(invoke("status", "--json").output)["services"]
    figures = columns.lower().split()[1:-1]
    assert [told[name] for name in figures[:-1]] == [1, 0, 0, None, 5, 3, 0], "JSON names them alike"
    assert (figures[-1], told["next_in_s"]) == ("next_in", 75.4)
    assert "127.0.0.1:20001" in first
    assert first.endswith("  burst")
    assert " ".join(second.split()) == "chat-2 pending - - 3 -"
    assert third.endswith("  not needed any more")
    (place / "state" / "address").write_text("http://h:1\n")
    assert invoke("status").output.startswith("gateway t: http://h:1, closing\n")


def test_status_shows_what_replicas_say_of_themselves(place: Path) -> None:
    (place / "state").mkdir()
    shown = report(time.time())
    (one,) = shown.services
    known = replace(one.replicas[0], load=ReplicaLoad(12, 3, 0.874))
    some = replace(one.replicas[0], name="chat-2", load=ReplicaLoad(1, 0))
    unknown = replace(one.replicas[0], name="chat-3", metrics_fault="/metrics answers with status 404")
    services = (replace(one, replicas=(known, some, unknown)),)
    state.save(place / "state" / "status.json", replace(shown, services=services))
    titles, first, second, third = invoke("status").output.splitlines()[-4:]
    assert titles.split()[4:8] == ["IN_FLIGHT", "RUNNING", "WAITING", "KV_CACHE"]
    assert first.split()[4:8] == ["3", "12", "3", "87%"]
    assert second.split()[4:8] == ["3", "1", "0", "-"]
    assert third.split()[4:8] == ["3", "-", "-", "-"]
    assert "metrics: /metrics answers" in " ".join(third.split())
    (told,) = json.loads(invoke("status", "--json").output)["services"]
    assert told["replicas"][0]["load"] == {"running": 12, "waiting": 3, "kv_cache": 0.874}


def test_status_of_a_gateway_that_reported_just_now_or_some_seconds_ago(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "state").mkdir()
    state.save(place / "state" / "status.json", report(1000.0))
    for now_s, code in ((1010.0, 0), (1010.5, 1)):
        monkeypatch.setattr(time, "time", lambda now_s=now_s: now_s)
        assert invoke("status").exit_code == code


def test_scale_keeps_what_was_set_for_other_services(place: Path) -> None:
    (place / "state").mkdir()
    path = place / "state" / "overrides.json"
    state.save(path, {"other": Override(3, 1.0)})
    assert invoke("scale", "chat", "4").exit_code == 0
    found = state.read(path, dict[str, Override])
    assert found is not None
    assert {name: override.minimum for name, override in found.items()} == {"other": 3, "chat": 4}


def test_logs_of_the_gateway_and_of_the_newest_replica(place: Path) -> None:
    for number, name in enumerate(("chat-00000000", "chat-00000001")):
        directory = place / "state" / "replicas" / name
        directory.mkdir(parents=True)
        (directory / "log").write_text(f"replica {number}\n")
        time.sleep(0.01)
    (place / "state" / "events.jsonl").write_text("one\ntwo\nthree\n")
    assert invoke("logs", "-n", "2").output == "two\nthree\n"
    assert invoke("logs", "chat").output == "replica 1\n"
    argv = [str(Path(sys.executable).parent / "sexplsched"), "gateway", "logs", "-s", str(place / "services.yaml")]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr == "sexplsched: error: No space left on device\n", "not of the log's"


def test_a_key_is_shown_once(place: Path) -> None:
    done = invoke("key", "alice")
    assert len(done.stdout.strip()) >= 40
    assert "alice: {sha256:" in done.stderr
    assert done.stdout.strip() not in done.stderr


def test_keepalived_s_files_are_for_two_nodes(place: Path) -> None:
    assert "accepted: an address with its prefix" in refused("address", "--keepalived", "x")
    assert "job.second.node" in refused("address", "--keepalived", "10.0.0.9/24")
    pair = SERVICES.replace("listen", "job: {node: gw1, second: {node: gw2}}\nlisten")
    (place / "services.yaml").write_text(pair)
    assert "must be 0.0.0.0" in refused("address", "--keepalived", "10.0.0.9/24")
    (place / "keys.yaml").write_text("keys: {}\n")
    (place / "services.yaml").write_text(pair.replace("host: 127.0.0.1", "keys: keys.yaml"))
    done = invoke("address", "--keepalived", "10.0.0.9/24", "--interface", "ib0")
    first, second = done.output.split("# gw2")
    assert first.count("{") == first.count("}") == second.count("{") == second.count("}")
    assert ("priority 150" in first, "priority 100" in second, "interface ib0" in second) == (True, True, True)
    assert "http://127.0.0.1:8080/healthz" in first

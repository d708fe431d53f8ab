"""Tokens by day, key and service: nothing is counted twice, and nothing of a replica that has gone is lost."""

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from inference_gateway.cli.key import usage
from inference_gateway.control import state
from inference_gateway.control.replica import Phase, Replica
from inference_gateway.control.usage import DayUsage, ReadingRates, UsageState, UsageSums, read
from inference_gateway.dataplane.settings import ApiKey, digest_of
from inference_gateway.errors import GatewayError
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.queueing import Stretch
from inference_gateway.replicas.reports import Tokens, UsageCounter, report_reading
from tests.slurm_kit import NOW_S

DAY = time.strftime("%Y-%m-%d", time.localtime(NOW_S))
A, B = (Replica(service, f"{service}-1", "g", Phase.SERVING, NOW_S, NOW_S) for service in ("chat", "code"))


@pytest.fixture
def paths(tmp_path: Path) -> GatewayPaths:
    found = GatewayPaths(tmp_path)
    found.make()
    for replica in (A, B):
        found.replica(replica.name).mkdir()
    return found


def days(paths: GatewayPaths) -> dict[tuple[str, str, str], Tokens]:
    return {(found.day, found.key, found.service): found.tokens for found in read(paths).days}


def test_usage_reports_of_replicas_are_added_up(paths: GatewayPaths) -> None:
    of_a, of_b, sums = UsageCounter(), UsageCounter(), UsageSums(paths)
    of_a.add("alice", Tokens(1, 10, 20))
    of_a.write(paths.replica(A.name))
    sums.update([A, B], NOW_S)
    of_a.add("alice", Tokens(1, 1, 2, 1))
    of_b.add("alice", Tokens(1, 5, 5))
    for counter, replica in ((of_a, A), (of_b, B)):
        counter.write(paths.replica(replica.name))
    sums.update([A, B], NOW_S + 1)
    assert days(paths) == {(DAY, "alice", "chat"): Tokens(1, 10, 20)}, "not every second"
    for after_s in (6, 12):
        sums.update([A, B], NOW_S + after_s)
        assert days(paths) == {(DAY, "alice", "chat"): Tokens(2, 11, 22, 1), (DAY, "alice", "code"): Tokens(1, 5, 5)}
    UsageSums(paths).update([A, B], NOW_S + 18)
    assert days(paths)[DAY, "alice", "chat"].requests == 2, "a restart counts nothing again"


def test_a_stream_counts_before_it_ends_and_exactly_afterwards(paths: GatewayPaths) -> None:
    counter, sums = UsageCounter(), UsageSums(paths, [key(tokens_per_day=20)])
    for after_s, ended, more_open in (
        (0, Tokens(), Tokens(1, 0, 8)),
        (10, Tokens(), Tokens(0, 0, 13)),
        (20, Tokens(), Tokens(0, 5, -2)),
        (30, Tokens(1, 5, 19, 1), Tokens(-1, -5, -19)),
    ):
        counter.add("alice", ended, more_open)
        counter.write(paths.replica(A.name))
        sums.update([A], NOW_S + after_s)
        assert ("alice" in sums.held_back(NOW_S + after_s)) == (after_s > 0)
        assert days(paths) == {(DAY, "alice", "chat"): counter.by_key["alice"]}
    assert counter.by_key["alice"] == Tokens(1, 5, 19, 1)


def test_the_first_answer_of_a_replica_counts_if_its_job_ends_with_it(paths: GatewayPaths) -> None:
    counter, sums = UsageCounter(), UsageSums(paths)
    sums.update([A], NOW_S)
    counter.add("alice", Tokens(1, 10, 20))
    counter.write(paths.replica(A.name))
    for after_s in (5, 10, 15):
        sums.update([], NOW_S + after_s)
    assert days(paths) == {(DAY, "alice", "chat"): Tokens(1, 10, 20)}


def test_the_first_answer_of_a_replica_counts_if_it_ends_while_nobody_counts(paths: GatewayPaths) -> None:
    """As where the control plane is killed, or the gateway ends right after its last replica."""
    counter = UsageCounter()
    UsageSums(paths).update([A], NOW_S)
    counter.add("alice", Tokens(1, 10, 20))
    counter.write(paths.replica(A.name))
    for after_s in (60, 65):
        sums = UsageSums(paths)
        sums.update([], NOW_S + after_s)
    assert days(paths) == {(DAY, "alice", "chat"): Tokens(1, 10, 20)}


def test_a_clock_that_is_set_back_holds_up_nothing(paths: GatewayPaths) -> None:
    counter, sums = UsageCounter(), UsageSums(paths)
    sums.update([A], NOW_S)
    counter.add("alice", Tokens(1, 10, 20))
    counter.write(paths.replica(A.name))
    sums.update([A], NOW_S - 3600)
    assert [tokens for _, tokens in days(paths).items()] == [Tokens(1, 10, 20)]


def test_a_requeued_replica_counts_from_zero_and_a_last_report_is_kept(paths: GatewayPaths) -> None:
    first, again, sums = UsageCounter(run="1"), UsageCounter(run="2"), UsageSums(paths)
    first.add("alice", Tokens(3, 3, 3))
    first.write(paths.replica(A.name))
    sums.update([A], NOW_S)
    again.add("alice", Tokens(2, 2, 2))
    again.write(paths.replica(A.name))
    sums.update([A], NOW_S + 10)
    assert days(paths) == {(DAY, "alice", "chat"): Tokens(5, 5, 5)}
    again.add("alice", Tokens(1, 1, 1))
    again.write(paths.replica(A.name))
    for after_s in (20, 30):
        sums.update([], NOW_S + after_s)
        assert days(paths) == {(DAY, "alice", "chat"): Tokens(6, 6, 6)}
    assert read(paths).counted == {}


def key(**limits: Any) -> ApiKey:
    return ApiKey("alice", digest_of("a"), **limits)


def test_a_key_over_its_limit_waits_until_its_use_is_a_minute_old(paths: GatewayPaths) -> None:
    counter, sums = UsageCounter(), UsageSums(paths, [key(tokens_per_minute=100)])
    counter.add("bob", Tokens(1, 1000, 1000))
    for after_s, tokens, until_s in ((0, 60, None), (10, 39, None), (20, 30, 60), (70, 0, None), (76, 100, 136)):
        counter.add("alice", Tokens(1, tokens, 0))
        counter.write(paths.replica(A.name))
        sums.update([A], NOW_S + after_s)
        expected = {} if until_s is None else {"alice": math.ceil(NOW_S + until_s)}
        assert sums.held_back(NOW_S + after_s) == expected, after_s
    assert sums.held_back(NOW_S + 137) == {}


def test_a_restart_forgets_no_key_over_its_limit(paths: GatewayPaths) -> None:
    """As at each reload."""
    counter, limited = UsageCounter(), key(tokens_per_minute=100)
    counter.add("alice", Tokens(1, 60, 60))
    counter.write(paths.replica(A.name))
    UsageSums(paths, [limited]).update([A], NOW_S)
    again = UsageSums(paths, [limited])
    again.update([A], NOW_S + 20)
    assert again.held_back(NOW_S + 20) == {"alice": math.ceil(NOW_S + 60)}
    again.update([A], NOW_S + 70)
    assert again.held_back(NOW_S + 70) == {}
    assert json.loads(paths.usage.read_text())["latest"] == []


def test_usage_that_cannot_be_written_is_counted_once(paths: GatewayPaths) -> None:
    sums, of_a = UsageSums(paths, [ApiKey("alice", digest_of("a"), tokens_per_minute=100)]), UsageCounter()
    sums.update([], NOW_S)
    paths.usage.mkdir()  # nothing can take its place, as on a full disk
    sums.update([A], NOW_S + 5)
    of_a.add("alice", Tokens(1, 20, 20))
    of_a.write(paths.replica(A.name))
    for after_s in (10, 20, 30, 40):
        sums.update([A], NOW_S + after_s)
        assert sums.held_back(NOW_S + after_s) == {}
    paths.usage.rmdir()
    sums.update([A], NOW_S + 50)
    assert days(paths) == {(DAY, "alice", "chat"): Tokens(1, 20, 20)}


def test_usage_that_cannot_be_read_for_a_while_is_not_replaced(paths: GatewayPaths) -> None:
    counter = UsageCounter()
    counter.add("alice", Tokens(1, 10, 20))
    counter.write(paths.replica(A.name))
    UsageSums(paths).update([A], NOW_S)
    elsewhere = paths.usage.rename(paths.root / "elsewhere")
    paths.usage.symlink_to(paths.usage)  # not to be read, as while a file server fails
    with pytest.raises(GatewayError, match=r"usage\.json: cannot be read: Too many levels"):
        read(paths)
    sums = UsageSums(paths)
    counter.add("alice", Tokens(1, 1, 2))
    counter.write(paths.replica(A.name))
    sums.update([A], NOW_S + 60)
    assert paths.usage.is_symlink()
    elsewhere.rename(paths.usage)
    sums.update([], NOW_S + 65)
    assert days(paths) == {(DAY, "alice", "chat"): Tokens(2, 11, 22)}, "with what has ended meanwhile"


def test_invalid_usage_is_moved_aside(paths: GatewayPaths) -> None:
    paths.usage.write_text('{"days": [')
    with pytest.raises(GatewayError, match=r"usage\.json: is invalid: "):
        read(paths)
    UsageSums(paths).update([A], NOW_S)
    assert days(paths) == {}
    (aside,) = paths.root.glob("usage.json.invalid-*")
    assert aside.read_text() == '{"days": ['


class TestDaysThatAreOver:
    """They are not written again with every report."""

    def test_days_that_are_over_are_written_once(self, paths: GatewayPaths) -> None:
        """Also those that an earlier version has left in one file with today's."""
        past = {f"2026-{month:02}-{day}": Tokens(month, 1, day) for month in range(1, 13) for day in range(10, 13)}
        state.save(paths.usage, UsageState(tuple(DayUsage(day, "alice", "chat", used) for day, used in past.items())))
        counter, sums = UsageCounter(), UsageSums(paths)
        counter.add("alice", Tokens(1, 10, 20))
        counter.write(paths.replica(A.name))
        for after_s in (0, 5, 10):
            sums.update([A], NOW_S + after_s)
        written = {path: path.stat() for path in paths.closed_usage.iterdir()}
        assert [path.stem for path in sorted(written)] == list(past)
        counter.add("alice", Tokens(1, 1, 2))
        counter.write(paths.replica(A.name))
        sums.update([A], NOW_S + 15)
        assert {path: path.stat() for path in paths.closed_usage.iterdir()} == written
        assert [found["day"] for found in json.loads(paths.usage.read_text())["days"]] == [DAY]
        expected = {(day, "alice", "chat"): tokens for day, tokens in past.items()}
        assert days(paths) == {**expected, (DAY, "alice", "chat"): Tokens(2, 11, 22)}
        assert [found.day for found in read(paths, "2026-12-12").days] == ["2026-12-12", DAY]

    def test_a_day_whose_file_cannot_be_written_stays_where_it_is(self, paths: GatewayPaths) -> None:
        counter, sums = UsageCounter(), UsageSums(paths)
        counter.add("alice", Tokens(1, 10, 20))
        counter.write(paths.replica(A.name))
        sums.update([A], NOW_S)
        paths.closed_usage.rmdir()
        sums.update([A], NOW_S + 86_400)
        assert days(paths) == {(DAY, "alice", "chat"): Tokens(1, 10, 20)}
        paths.make()
        sums.update([A], NOW_S + 86_405)
        assert [path.stem for path in paths.closed_usage.iterdir()] == [DAY]
        assert days(paths) == {(DAY, "alice", "chat"): Tokens(1, 10, 20)}

    def test_a_day_in_both_files_counts_once(self, paths: GatewayPaths) -> None:
        """As after a kill between the two writes; what was not saved with the reports is counted again."""
        counter = UsageCounter()
        counter.add("alice", Tokens(1, 10, 20))
        counter.write(paths.replica(A.name))
        UsageSums(paths).update([A], NOW_S)
        file = paths.closed_usage / f"{DAY}.json"
        state.save(file, (DayUsage(DAY, "alice", "chat", Tokens(9)),))
        assert days(paths) == {(DAY, "alice", "chat"): Tokens(1, 10, 20)}
        UsageSums(paths).update([A], NOW_S + 86_400)
        assert json.loads(paths.usage.read_text())["days"] == []
        assert days(paths) == {(DAY, "alice", "chat"): Tokens(1, 10, 20)}

    def test_a_clock_that_is_set_back_continues_the_day(self, paths: GatewayPaths) -> None:
        counter, sums = UsageCounter(), UsageSums(paths, [key(tokens_per_day=34, tokens_per_minute=9)])
        for after_s, expected in ((0, Tokens(1, 3, 5)), (86_400, Tokens(1, 3, 5)), (60, Tokens(2, 6, 10))):
            counter.add("alice", Tokens(1, 3, 5))
            counter.write(paths.replica(A.name))
            sums.update([A], NOW_S + after_s)
            assert days(paths)[DAY, "alice", "chat"] == expected
        assert sums.held_back(NOW_S + 60) == {}, "what was counted at a later time is none of this minute's"
        assert sum(tokens.requests for tokens in days(paths).values()) == 3


def test_a_key_over_its_daily_limit_waits_until_midnight(paths: GatewayPaths) -> None:
    counter, sums = UsageCounter(), UsageSums(paths, [key(tokens_per_day=100)])
    counter.add("alice", Tokens(1, 50, 50))
    counter.write(paths.replica(A.name))
    sums.update([A], NOW_S)
    found = sums.held_back(NOW_S + 120)["alice"]
    assert time.strftime("%H:%M:%S", time.localtime(found)) == "00:00:00"
    assert 0 < found - NOW_S <= 86_400
    assert sums.held_back(found) == {}
    for limit, expected in ((100, {"alice": found}), (101, {})):
        again = UsageSums(paths, [key(tokens_per_day=limit)])
        again.update([A], NOW_S)
        assert again.held_back(NOW_S) == expected, "also after a restart"


def test_the_command_sums_by_the_given_columns(paths: GatewayPaths, tmp_path: Path) -> None:
    counter, sums = UsageCounter(), UsageSums(paths)
    counter.add("alice", Tokens(2, 30, 40))
    counter.add("bob", Tokens(1, 5, 6, 1))
    counter.write(paths.replica(A.name))
    sums.update([A], time.time())
    (tmp_path / "keys.yaml").write_text("keys: {alice: {sha256: " + 64 * "a" + ", account: physics, user: ada}}")
    services = tmp_path / "services.yaml"
    replica = "{command: 'x {port}'}"
    services.write_text(
        f"directory: {tmp_path}\nlisten: {{keys: keys.yaml}}\nservices: {{chat: {{replica: {replica}}}}}"
    )

    def shown(*argv: str) -> list[str]:
        done = CliRunner().invoke(usage, ["-s", str(services), *argv])
        assert done.exit_code == 0, done.output
        assert b"\r" not in done.stdout_bytes
        return done.output.splitlines()

    assert shown("--csv") == [
        "key,service,requests,prompt,completion,estimated",
        "alice,chat,2,30,40,0",
        "bob,chat,1,5,6,1",
    ]
    assert shown("--by", "account", "--csv")[1:] == ["-,1,5,6,1", "physics,2,30,40,0"]
    assert shown("--by", "user", "--csv")[1:] == ["ada,2,30,40,0", "bob,1,5,6,1"]
    told = {"requests": 3, "prompt": 35, "completion": 46, "estimated": 1}
    assert json.loads("".join(shown("--by", "service", "--json"))) == {"usage": [{"service": "chat", **told}]}
    assert shown("--by", "service")[1].split() == ["chat", "3", "35", "46", "1"]


def test_days_are_those_of_the_calendar_also_where_one_has_23_hours(
    paths: GatewayPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = (DayUsage(f"2026-03-{day}", "alice", "chat", Tokens(1)) for day in (28, 29, 30))
    state.save(paths.usage, UsageState(tuple(known)))
    services = tmp_path / "services.yaml"
    listen = "listen: {host: 127.0.0.1}"
    services.write_text(f"directory: {tmp_path}\n{listen}\nservices: {{chat: {{replica: {{command: 'x {{port}}'}}}}}}")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        now_s = time.mktime((2026, 3, 30, 0, 30, 0, 0, 0, -1))
        monkeypatch.setattr(time, "time", lambda: now_s)
        done = CliRunner().invoke(usage, ["-s", str(services), "--by", "day", "--days", "2", "--csv"])
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [line.partition(",")[0] for line in done.output.splitlines()[1:]] == ["2026-03-29", "2026-03-30"]


def test_old_days_are_deleted(paths: GatewayPaths) -> None:
    counter, sums = UsageCounter(), UsageSums(paths)
    for day in (0, 401):
        counter.add("alice", Tokens(1))
        counter.write(paths.replica(A.name))
        sums.update([A], NOW_S + day * 86_400)
    assert [type(found) for found in read(paths).days] == [DayUsage]


def test_reading_rates_are_kept_by_service(paths: GatewayPaths) -> None:
    rates = ReadingRates(paths)
    assert rates.update([A, B], NOW_S) == {}
    report_reading(paths.replica(A.name), [Stretch(1000.0, 0.5)] * 10)
    report_reading(paths.replica(B.name), [Stretch(1000.0, 0.5)] * 2)
    assert rates.update([A, B], NOW_S + 1) == {}, "not every second"
    assert rates.update([A, B], NOW_S + 6) == {"chat": 2000.0}, "of the other too little is known"
    assert rates.update([], NOW_S + 12) == {"chat": 2000.0}

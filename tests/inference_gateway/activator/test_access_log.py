"""The access log on its way from HAProxy's pipe to the disk."""

import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inference_gateway.dataplane.process import AccessLogWriter, opened_pipe
from inference_gateway.dataplane.settings import ServiceSettings
from tests.inference_gateway.rig import gateway, wait_until


@contextmanager
def running(source: Path, target: Path) -> Iterator[tuple[int, AccessLogWriter]]:
    handle = opened_pipe(source)
    writer = AccessLogWriter(handle, target)
    thread = threading.Thread(target=writer.run)
    thread.start()
    try:
        yield handle, writer
    finally:
        writer.end()
        thread.join()
        os.close(handle)


def test_lines_arrive_in_order_and_the_last_ones_too(tmp_path: Path) -> None:
    lines = [b"{%d}\n" % number for number in range(10_000)]
    with running(tmp_path / "pipe", tmp_path / "log") as (handle, _):
        for line in lines:
            os.write(handle, line)
    assert (tmp_path / "log").read_bytes() == b"".join(lines)


def test_a_backslash_becomes_one_that_json_reads(tmp_path: Path) -> None:
    with running(tmp_path / "pipe", tmp_path / "log") as (handle, _):
        os.write(handle, b'{"path":"/a\\b"}\n')
    assert json.loads((tmp_path / "log").read_bytes()) == {"path": "/a\\b"}


def test_what_haproxy_tells_of_itself_is_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running(tmp_path / "pipe", tmp_path / "log") as (handle, _):
        os.write(handle, b"Proxy gateway stopped (FE: 2).\n{}\n")
        os.write(handle, b"127.0.0.1:39868 gateway/1: SSL handshake failure\n\n{}\n")
    assert (tmp_path / "log").read_bytes() == b"{}\n{}\n"
    told = ["Proxy gateway stopped (FE: 2).", "127.0.0.1:39868 gateway/1: SSL handshake failure"]
    assert [record.getMessage() for record in caplog.records] == [f"HAProxy: {line}" for line in told]


def test_a_file_that_was_moved_away_is_followed_by_another(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(tmp_path / "pipe", log) as (handle, _):
        os.write(handle, b"{old}\n")
        wait_until(log.exists)
        log.rename(tmp_path / "log.1")
        os.write(handle, b"{new}\n")
        wait_until(log.exists)
    assert ((tmp_path / "log.1").read_bytes(), log.read_bytes()) == (b"{old}\n", b"{new}\n")


def test_what_waits_in_the_pipe_outlives_the_reader(tmp_path: Path) -> None:
    writer = opened_pipe(tmp_path / "pipe")
    with running(tmp_path / "pipe", tmp_path / "log"):
        pass
    os.write(writer, b"{meanwhile}\n")
    with running(tmp_path / "pipe", tmp_path / "log"):
        os.write(writer, b"{again}\n")
    os.close(writer)
    assert (tmp_path / "log").read_bytes() == b"{meanwhile}\n{again}\n"


def test_a_full_disk_costs_lines_that_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.symlink_to("/dev/full")
    with running(tmp_path / "pipe", log) as (handle, access_log):
        os.write(handle, b"{one}\n{two}\n")
        wait_until(lambda: access_log.lost_lines == 2)
        log.unlink()
        os.write(handle, b"{three}\n")
        wait_until(log.exists)
    assert log.read_bytes() == b"{three}\n"


def test_a_gateway_serves_on_with_a_full_disk(directory: Path) -> None:
    (directory / "full" / "g").mkdir(parents=True)
    (directory / "full" / "g" / "access.log").symlink_to("/dev/full")
    with gateway(directory / "full", ServiceSettings("chat", cold_start_limit=0)) as rig:
        for _ in range(3):
            assert rig.complete("chat").status == 503
        metrics = ""

        def counted() -> bool:
            nonlocal metrics
            metrics = rig.ask("GET", "/metrics").body.decode()
            lost = re.search(r'access_log_lost_lines_total{where="disk"} (\S+)', metrics)
            return lost is not None and float(lost[1]) >= 3

        wait_until(counted)
        assert 'access_log_lost_lines_total{where="pipe"} 0.0' in metrics

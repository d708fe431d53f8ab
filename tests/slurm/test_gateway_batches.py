"""The batch lane on a real gateway, with OpenAI's own client: files in, results out, whatever is killed on the way."""

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.devcluster import Cluster
from testkit.gateway import Load
from tests.slurm.gateway import in_foreground
from tests.slurm.jobs import empty, run, until

openai = pytest.importorskip("openai")
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy (scripts/install)"),
]


@pytest.fixture
def directory(cluster: Cluster, open_tmp: Path) -> Iterator[Path]:
    """A directory with a path short enough for HAProxy's sockets; all jobs are gone afterwards."""
    yield Path(tempfile.mkdtemp(dir=open_tmp))
    empty(cluster)


def client(url: str) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def requests(count: int, tokens: int = 2) -> bytes:
    body = {"model": "tiny", "max_tokens": tokens, "messages": [{"role": "user", "content": "hello"}]}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    return b"".join(json.dumps({"custom_id": f"r-{number}", **line}).encode() + b"\n" for number in range(count))


def begun(link: Any, count: int, tokens: int = 2) -> Any:
    sent = link.files.create(file=("in.jsonl", requests(count, tokens)), purpose="batch")
    return link.batches.create(input_file_id=sent.id, endpoint="/v1/chat/completions", completion_window="24h")


def answered(link: Any, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in link.files.content(name).text.splitlines()]


def test_a_batch_is_worked_off_whatever_is_killed(cluster: Cluster, directory: Path) -> None:
    with in_foreground(cluster, directory, scale={"min": 2}, batches="idle") as gateway, client(gateway.url) as link:
        until(lambda: gateway.serving() == 2, "both replicas serve")
        batch = begun(link, 300, tokens=10)
        until(lambda: link.batches.retrieve(batch.id).request_counts.completed > 20, "it is being worked off")
        os.kill(gateway.child("inference_gateway.batches.worker"), signal.SIGKILL)
        os.kill(gateway.control_plane(), signal.SIGKILL)
        until(lambda: link.batches.retrieve(batch.id).request_counts.completed > 100, "it goes on")
        run(cluster, "scancel", "--signal=KILL", "--full", str(gateway.status()["replicas"][0]["job_id"]))
        until(lambda: link.batches.retrieve(batch.id).status == "completed", "it ends", 120)
        ended = link.batches.retrieve(batch.id)
        found = answered(link, ended.output_file_id)
        assert sorted(one["custom_id"] for one in found) == sorted(f"r-{number}" for number in range(300))
        assert {one["response"]["status_code"] for one in found} == {200}
        assert found[0]["response"]["body"]["usage"]["completion_tokens"] == 10
        assert (ended.request_counts.total, ended.request_counts.completed, ended.error_file_id) == (300, 300, None)
        assert {file.purpose for file in link.files.list()} == {"batch", "batch_output"}
        assert {event["replicas"] for event in gateway.events("wanted")} == {2}  # none more for it


def test_a_reload_that_drops_its_service_fails_no_request_of_a_batch(cluster: Cluster, directory: Path) -> None:
    with in_foreground(cluster, directory, batches="idle") as gateway, client(gateway.url) as link:
        until(lambda: gateway.serving() == 1, "the replica serves")
        batch = begun(link, 300, tokens=10)
        until(lambda: link.batches.retrieve(batch.id).request_counts.completed > 20, "it is being worked off")
        good = gateway.services.read_text()
        for edited in (good.replace("  tiny:", "  tinny:"), good):
            gateway.services.write_text(edited)
            gateway.command("reload")
            time.sleep(2)
            found = link.batches.retrieve(batch.id)
            assert (found.status, found.request_counts.failed) == ("in_progress", 0)
        until(lambda: link.batches.retrieve(batch.id).status == "completed", "it ends", 120)
        assert link.batches.retrieve(batch.id).request_counts.completed == 300


def test_a_batch_starts_replicas_where_it_may_and_waits_where_not(cluster: Cluster, directory: Path) -> None:
    lazy = {"min": 0, "max": 2}
    with in_foreground(cluster, directory, scale=lazy, batches="idle") as gateway, client(gateway.url) as link:
        batch = begun(link, 20)
        until(lambda: link.batches.retrieve(batch.id).status == "in_progress", "it is begun")
        time.sleep(3)
        assert gateway.jobs("tiny") == []
        with Load(gateway.url, per_s=1).running():
            until(lambda: gateway.serving() == 1, "somebody else's request starts a replica")
        until(lambda: link.batches.retrieve(batch.id).status == "completed", "which the batch uses")
    with in_foreground(cluster, directory, scale=lazy, batches="start") as gateway, client(gateway.url) as link:
        batch = begun(link, 20)
        until(lambda: link.batches.retrieve(batch.id).status == "completed", "a replica was started for it", 120)


def test_a_batch_can_be_cancelled_and_runs_out_of_time(cluster: Cluster, directory: Path) -> None:
    with in_foreground(cluster, directory, batches="idle") as gateway, client(gateway.url) as link:
        until(lambda: gateway.serving() == 1, "the replica serves")
        batch = begun(link, 500, tokens=20)
        until(lambda: link.batches.retrieve(batch.id).request_counts.completed > 0, "it is being worked off")
        assert link.batches.cancel(batch.id).status == "cancelling"
        until(lambda: link.batches.retrieve(batch.id).status == "cancelled", "it is cancelled")
        cancelled = link.batches.retrieve(batch.id)
        done = [one["custom_id"] for one in answered(link, cancelled.output_file_id)]
        assert len(done) == len(set(done)) == cancelled.request_counts.completed < 500
        late = begun(link, 500, tokens=20)
        until(lambda: link.batches.retrieve(late.id).request_counts.completed > 0, "the next one is being worked off")
        [record] = (gateway.state / "batches").glob(f"*/{late.id}.json")
        worker = gateway.child("inference_gateway.batches.worker")
        os.kill(worker, signal.SIGSTOP)
        record.write_text(json.dumps({**json.loads(record.read_text()), "expires_at": int(time.time())}))
        os.kill(worker, signal.SIGKILL)
        until(lambda: link.batches.retrieve(late.id).status == "expired", "its window has passed")
        ended = link.batches.retrieve(late.id)
        whole = [*answered(link, ended.output_file_id), *answered(link, ended.error_file_id)]
        assert sorted(one["custom_id"] for one in whole) == sorted(f"r-{number}" for number in range(500))

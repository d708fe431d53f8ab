"""Whether each request of a batch is answered once on a real gateway while everything is killed.

The gateway is a job of a private Slurm cluster, with replica jobs of the bundled model server. Each time another part
of the requests is done something is killed with SIGKILL, in turn: the batch worker, the control plane, HAProxy, the
activator, a replica's job, and the gateway's whole job, whose successor goes on. Then the results are compared with
the input. Needs root and the Slurm packages; run it from the repository's root.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import click

from inference_gateway.errors import GatewayError
from slurm_plugin import devcluster
from slurm_plugin.devcluster.machine import reserved, until
from testkit.gateway import SERVER, Gateway, services_file

_KINDS = ("worker", "control", "haproxy", "activator", "replica", "gateway")
_REPLICAS = 3
_CONCURRENCY = 16
_PATIENCE_S = 120.0
_LONGEST_S = 1100.0
_BOUNDARY = "7d3f0c"


def measure(directory: Path, requests: int, kills: int) -> dict[str, float]:
    """Work off so many requests under so many kills. `directory` has a short path."""
    directory.mkdir()
    for path in (directory, directory.parent):
        path.chmod(0o755)
    cluster = devcluster.up(devcluster.ClusterSpec(nodes=2, gpus_per_node=0, shards_per_node=0), directory / "c")
    place = directory / "g"
    place.mkdir()
    try:
        with reserved(1) as (port,):
            replica = {"command": f"{SERVER} --token-ms 2"}
            about: dict[str, Any] = {"concurrency": _CONCURRENCY, "requests_per_s": 500, "batches": "idle"}
            services = services_file(place, port, replica, {"min": _REPLICAS, "attempts": 100}, **about)
            gateway = Gateway(cluster.env(), services, f"http://127.0.0.1:{port}", place / "gateway")
            gateway.command("up", "--wait", "60", "--sbatch", f"--export=ALL,TMPDIR={place}")
            until(lambda: gateway.serving() == _REPLICAS, "the replicas serve", _PATIENCE_S)
            try:
                return _measure(gateway, requests, kills)
            finally:
                gateway.command("down", "--now")
    finally:
        devcluster.down(directory / "c")


def _measure(gateway: Gateway, requests: int, kills: int) -> dict[str, float]:
    batch = _begun(gateway, requests)
    began_s = time.monotonic()
    killed: Counter[str] = Counter()
    while (shown := _patiently(gateway, f"/v1/batches/{batch}"))["status"] not in ("completed", "failed", "expired"):
        if time.monotonic() > began_s + _LONGEST_S:
            raise GatewayError(f"the batch has not ended: {shown}")
        count = killed.total()
        if count < kills and shown["request_counts"]["completed"] >= requests * (count + 1) // (kills + 1):
            kind = _KINDS[count % len(_KINDS)]
            if _kill(gateway, kind):
                killed[kind] += 1
        time.sleep(0.1)
    elapsed_s = time.monotonic() - began_s
    names = [shown[kind] for kind in ("output_file_id", "error_file_id") if shown[kind]]
    lines = [line for name in names for line in _get(gateway, f"/v1/files/{name}/content").splitlines()]
    found = Counter(json.loads(line)["custom_id"] for line in lines)
    wanted = {f"r-{number}" for number in range(requests)}
    good = sum(json.loads(line)["response"]["status_code"] == 200 for line in lines if b'"response":{' in line)
    return {
        "batch_requests": float(requests),
        **{f"batch_kills_{kind}": float(killed[kind]) for kind in _KINDS},
        "batch_kills": float(killed.total()),
        "batch_answered_once": float(sum(found[name] == 1 for name in wanted)),
        "batch_answered_twice": float(sum(count > 1 for count in found.values())),
        "batch_missing": float(len(wanted - found.keys())),
        "batch_status_200": float(good),
        "batch_elapsed_s": round(elapsed_s, 1),
    }


def _kill(gateway: Gateway, kind: str) -> bool:
    """SIGKILL one part; False if it is not there just now."""
    try:
        record = json.loads((gateway.state / "gateway.json").read_text())
        run = Path(record["run_directory"])
        if kind in ("worker", "control"):
            module = {"worker": "inference_gateway.batches.worker", "control": "inference_gateway.control.loop"}[kind]
            os.kill(gateway.child(module), signal.SIGKILL)
        elif kind == "haproxy":
            _kill_recorded(run / "haproxy.pid")
        elif kind == "activator":
            _kill_recorded(run / "activator.pid")
        elif kind == "gateway":
            _scancel(gateway, record["job_id"])
            until(lambda: _job(gateway) not in (None, record["job_id"]), "the successor serves", _PATIENCE_S)
        else:
            _scancel(gateway, gateway.status()["replicas"][0]["job_id"])
    except (OSError, GatewayError, IndexError, ValueError):
        return False
    return True


def _kill_recorded(path: Path) -> None:
    for number in [int(word) for word in path.read_text().split()][:1]:
        os.kill(number, signal.SIGKILL)


def _scancel(gateway: Gateway, job_id: int) -> None:
    argv = ["scancel", "--signal=KILL", "--full", str(job_id)]
    subprocess.run(argv, env={**os.environ, **gateway.environment}, check=True, capture_output=True)


def _job(gateway: Gateway) -> int | None:
    path = gateway.state / "gateway.json"
    return json.loads(path.read_text())["job_id"] if path.exists() else None


def _begun(gateway: Gateway, requests: int) -> str:
    """Send the input and begin the batch; its name."""
    body = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
    rest = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    lines = "".join(json.dumps({"custom_id": f"r-{number}", **rest}) + "\n" for number in range(requests))
    form = "".join(
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{text}\r\n'
        for name, more, text in (("purpose", "", "batch"), ("file", '; filename="in.jsonl"', lines))
    )
    sent = _post(gateway, "/v1/files", f"{form}--{_BOUNDARY}--\r\n", f"multipart/form-data; boundary={_BOUNDARY}")
    asked = {"input_file_id": sent["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return str(_post(gateway, "/v1/batches", json.dumps(asked), "application/json")["id"])


def _address(gateway: Gateway) -> str:
    return gateway.url.removeprefix("http://")


def _post(gateway: Gateway, path: str, body: str, kind: str) -> Any:  # noqa: ANN401  JSON
    asked = urllib.request.Request(f"http://{_address(gateway)}{path}", body.encode(), {"content-type": kind})
    with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310  the address is a literal
        return json.load(answer)


def _get(gateway: Gateway, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{_address(gateway)}{path}", timeout=60) as answer:
        return bytes(answer.read())


def _patiently(gateway: Gateway, path: str) -> Any:  # noqa: ANN401  JSON
    """Ask until somebody answers: HAProxy or the activator may be on its way back."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return json.loads(_get(gateway, path))
        except (OSError, urllib.error.HTTPError, ValueError):
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)


@click.command()
@click.option("--requests", default=10_000, show_default=True, type=click.IntRange(1, 50_000))
@click.option("--kills", default=20, show_default=True, type=click.IntRange(0, 1000))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(requests: int, kills: int, as_json: bool) -> None:  # noqa: FBT001  click
    """Kill everything while a batch is worked off."""
    with tempfile.TemporaryDirectory(prefix="igwb") as scratch:
        figures = measure(Path(scratch) / "b", requests, kills)
    print(json.dumps(figures) if as_json else "\n".join(f"{name:<32} {value:.1f}" for name, value in figures.items()))


if __name__ == "__main__":
    main()

"""An inference server beside a training on one real GPU, with torch: `python -m benchmarks.kernel_share_real --json`.

Arms: in time slices; under CUDA MPS; under MPS with client priority; explsched with MPS, the server as high-priority
and the training as best-effort; explsched without MPS. In each of them the server works alone, while the training is
there but idle, and then both do, with the same Poisson arrivals of requests. `outputs` at the end tells whether a
deterministic training beside the server computes the same as alone, bit by bit.

The server replays a CUDA graph for each request, and the training synchronises at every tenth step, so that the GPU is
what they compete for. With `--eager` they launch each kernel, the training with smaller batches and synchronous steps:
then it is rather the host.

Needs an NVIDIA GPU, its driver with nvidia-cuda-mps-control, a CUDA build of torch, and nvidia-ml-py. The last line is
JSON with device, driver and date; `--out` keeps it, from the first arm on, so that a run that is cut off has measured
something. An arm that fails says why, and the others go on:

    python -m benchmarks.kernel_share_real --json --out benchmarks/results/kernel_share_h100.json

takes about two minutes with `--seconds 4`. Where MPS cannot run (in many containers), `--without-mps` saves time.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.kernel_share_arms import ARMS, LOAD, Setup, base_environment, outputs, run
from benchmarks.kernel_share_figures import with_ratios

_MODELS = click.Choice(["resnet50", "transformer", "tiny"])


@click.command()
@click.option("--seconds", default=10.0, show_default=True, type=click.FloatRange(min=0.1),
              help="How long requests arrive in each arm; the server alone gets two thirds.")  # fmt: skip
@click.option("--inference", "served", default="resnet50", show_default=True, type=_MODELS)
@click.option("--training", "trained", default="resnet50", show_default=True, type=_MODELS)
@click.option("--eager", is_flag=True, help="Launch each kernel, with smaller batches: programs that the host limits.")
@click.option("--without-mps", "no_mps", is_flag=True, help="Leave out what needs CUDA MPS.")
@click.option("--out", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Keep the JSON here, too.")
@click.option("--json", "as_json", is_flag=True, help="Print nothing but the JSON.")
@click.option("--cpu", is_flag=True, hidden=True, help="Try this program out; the figures mean nothing.")
def main(
    seconds: float,
    served: str,
    trained: str,
    eager: bool,  # noqa: FBT001
    no_mps: bool,  # noqa: FBT001
    out: Path | None,
    as_json: bool,  # noqa: FBT001  click passes by name
    cpu: bool,  # noqa: FBT001
) -> None:
    """Measure what sharing a real GPU costs and brings."""
    models = {"inference": served, "training": trained}
    result: dict[str, Any] = {"driver": "" if cpu else _driver(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
    result |= {"models": models, "launches": "eager" if eager else "graph", "seconds": seconds, "load": LOAD}
    result["requests_per_s"] = None
    pairs = {name: sides for name, sides in ARMS.items() if not no_mps or "--mps" not in sides[0].options}
    measured: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="sx-") as directory:
        environment = base_environment(Path(directory))
        setup = Setup(models, "cpu" if cpu else "cuda", eager, seconds, environment)
        for name in (*pairs, "outputs"):
            sides = pairs.get(name) or pairs.get("explsched") or pairs["explsched without mps"]
            found = (outputs if name == "outputs" else run)(sides, setup, result["requests_per_s"])
            result |= found.pop("machine", {})
            if "capacity" in found:
                result["requests_per_s"] = LOAD * found["capacity"]["rate"]
            measured[name] = found
            result["arms"] = with_ratios(measured)
            if not as_json:
                click.echo(f"{name}: {json.dumps(result['arms'][name])}")
            if out is not None:
                out.write_text(json.dumps(result) + "\n")
    click.echo(json.dumps(result))


def _driver() -> str:
    """The driver's version. Raises ClickException where there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise click.ClickException(
            f"no NVIDIA GPU can be used here ({error}); run it on a GPU node, "
            "or the virtual GPU instead: python -m benchmarks.kernel_share --virtual --json"
        ) from error
    return str(pynvml.nvmlSystemGetDriverVersion())


if __name__ == "__main__":
    main()

"""One side of `benchmarks.kernel_share_real`: an inference server or a training, in a process of its own.

Says on what it runs after its warm-up. Then it answers each line on standard input by one line of JSON:

    SECONDS          one unit of work after the other, until another line comes
    SECONDS RATE     requests that arrive at this rate per second; what has arrived is served, unless the input ends
    STEPS            of the role `outputs`: a training from its start, by eager steps, and four times as many as a graph
    stop             nothing
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import torch
from torch import Tensor, nn

from benchmarks.kernel_share_load import run_closed_loop, serve_open_loop
from kernel_intercept.profile.manager import SOCKET_VARIABLE, ask
from wrappers import mps

_WARM_UP = 20
_BATCH_INFERENCE = 4
_BATCH_TRAINING = {"resnet50": 128, "transformer": 32, "tiny": 8}
_EAGER_PART = 4  # eager batches are as in Orion's evaluation (EuroSys'24, table 1), and bound by the host
_LOSS_EVERY = 10
_CLASSES, _TOKENS, _WIDTH = 1000, 128, 768


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """With its normalization."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """The residual block of ResNet-50 (He et al., 2016, figure 5)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs, relu = 4 * width, nn.ReLU(inplace=True)
        first, second = convolution(inputs, width, 1), convolution(width, width, 3, stride)
        self.body = nn.Sequential(first, relu, second, relu, convolution(width, outputs, 1))
        same = inputs == outputs and stride == 1
        self.skip: nn.Module = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def forward(self, images: Tensor) -> Tensor:
        """Same extents as the input, or half of them."""
        return torch.relu(self.body(images) + self.skip(images))


def resnet(blocks: tuple[int, ...]) -> nn.Sequential:
    """ResNet-50 for blocks 3, 4, 6, 3; without torchvision, which not every node has."""
    layers: list[nn.Module] = [convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            layers.append(Bottleneck(inputs, width, 2 if stage and not block else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, _CLASSES))


def transformer(layers: int) -> nn.Sequential:
    """An encoder of BERT-base's width (Devlin et al., 2019), with a classifier at its end."""
    block = nn.TransformerEncoderLayer(_WIDTH, 12, 4 * _WIDTH, dropout=0.1, activation="gelu", batch_first=True)
    encoder = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Flatten(), nn.Linear(_TOKENS * _WIDTH, _CLASSES))


def build(model: str, device: torch.device, batch: int) -> tuple[nn.Module, Tensor]:
    """A model and one batch of its inputs."""
    torch.manual_seed(1)
    if model == "transformer":
        return transformer(12).to(device), torch.randn(batch, _TOKENS, _WIDTH, device=device)
    blocks, extent = ((3, 4, 6, 3), 224) if model == "resnet50" else ((1,), 32)
    network = resnet(blocks).to(device, memory_format=torch.channels_last)
    return network, torch.randn(batch, 3, extent, extent).to(device, memory_format=torch.channels_last)


def inference(model: str, device: torch.device, eager: bool) -> Callable[[], None]:  # noqa: FBT001
    """A function that serves one request and returns when its result is there: as a CUDA graph, unless `eager`."""
    network, inputs = build(model, device, _BATCH_INFERENCE)
    network.eval()

    def forward() -> Tensor:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16):
            return network(inputs).argmax(1)

    if eager or device.type != "cuda":
        return lambda: forward().cpu()
    for _ in range(_WARM_UP):
        forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = forward()

    def serve() -> None:
        graph.replay()
        answer.cpu()

    return serve


def training(model: str, device: torch.device, eager: bool, steps: int) -> Callable[[], None]:  # noqa: FBT001
    """A function that does so many steps of SGD and reads the loss, so that it returns when they are done."""
    batch = _BATCH_TRAINING[model] // (_EAGER_PART if eager else 1)
    network, inputs = build(model, device, batch)
    network.train()
    labels = torch.randint(_CLASSES, (batch,), device=device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9)

    def work() -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16):
                loss = nn.functional.cross_entropy(network(inputs), labels)
            loss.backward()
            optimizer.step()
        loss.item()

    return work


def digests(device: torch.device, steps: float) -> dict[str, dict[str, str]]:
    """Of the parameters after a deterministic training, by eager steps, and then by replays of one captured step."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(mode=True)
    torch.manual_seed(3)
    first, second = (nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64)), nn.Conv2d(64, 128, 3, 2, 1)
    last = (nn.Flatten(), nn.Linear(128 * 256, 512), nn.GELU(), nn.Linear(512, 100))
    network = nn.Sequential(*first, nn.ReLU(), second, nn.ReLU(), *last).to(device)
    images, labels = torch.randn(64, 3, 32, 32).to(device), torch.randint(100, (64,)).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()

    def digest() -> str:
        parts = [parameter.detach().cpu().numpy().tobytes() for parameter in network.parameters()]
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]

    for _ in range(int(steps)):
        step()
    found = {"eager": digest()}
    if device.type != "cuda":
        return {"digests": found}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()
    for _ in range(4 * int(steps)):
        graph.replay()
    return {"digests": {**found, "graph": digest()}}


def loaded(work: Callable[[], None], size: int, seconds: float, rate: float | None = None) -> dict[str, float]:
    """What the work takes, in a closed loop or with requests at this rate."""

    def wait(seconds: float) -> bool:
        return not select.select([sys.stdin], [], [], max(0.0, seconds))[0]

    if rate is None:
        return run_closed_loop(work, size, seconds, wait)
    return serve_open_loop(work, rate, seconds, wait)


@click.command()
@click.argument("role", type=click.Choice(["inference", "training", "outputs"]))
@click.argument("device")
@click.option("--model", type=click.Choice(list(_BATCH_TRAINING)), required=True)
@click.option("--eager", is_flag=True)
def main(role: str, device: str, model: str, eager: bool) -> None:  # noqa: FBT001  click passes by name
    """Warm up, say on what, and answer lines."""
    try:
        place = torch.device(device)
        answer = prepared(role, place, model, eager=eager)
        name = torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu: a try, not a measurement"
        say({"machine": {"device": name, "torch": torch.__version__, "cuda": torch.version.cuda}})
        for line in sys.stdin:
            if line != "stop\n":
                say(answer(*map(float, line.split())))
    except Exception as error:
        click.echo(json.dumps({"failed": f"{type(error).__name__}: {error}"}))
        raise


def prepared(role: str, device: torch.device, model: str, *, eager: bool) -> Callable[..., dict[str, object]]:
    """The function that answers a line's numbers, after its warm-up."""
    if role == "outputs":
        digests(device, 1)
        return partial(digests, device)
    size = 1 if eager or role == "inference" else _LOSS_EVERY
    work = inference(model, device, eager) if role == "inference" else training(model, device, eager, size)
    for _ in range(-(-_WARM_UP // size)):
        work()
    return partial(loaded, work, size)


def say(found: dict[str, object]) -> None:
    """Answer a line, and tell whether MPS and the gate serve this process."""
    click.echo(json.dumps({**found, "mps": mps.answering(os.environ) is not None, "gate": gate_counters()}))


def gate_counters() -> dict[str, object] | None:
    """What the kernel manager counts for this process; None without a manager, empty before any launch."""
    address = os.environ.get(SOCKET_VARIABLE)
    if not address:
        return None
    clients = [client for gpu in ask(Path(address)).answer["gpus"] for client in gpu["clients"]]
    return next((client for client in clients if client["pid"] == os.getpid()), {})


if __name__ == "__main__":
    main()

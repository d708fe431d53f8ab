"""One side of `benchmarks.kernel_share_real`: an inference server or a training, in a process of its own.

Prints `ready` after its warm-up, waits for a line on standard input, works, and prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click
import torch
from torch import Tensor, nn

from benchmarks.kernel_share_load import run_closed_loop, serve_open_loop
from kernel_intercept.profile.manager import SOCKET_VARIABLE, ask
from wrappers import mps

_WARM_UP = 30
_BATCH_INFERENCE, _BATCH_RESNET, _BATCH_TRANSFORMER = 4, 32, 8  # as in Orion's evaluation (EuroSys'24, table 1)
_IMAGE, _CLASSES, _TOKENS, _WIDTH = 224, 1000, 128, 768


class Bottleneck(nn.Module):
    """The residual block of ResNet-50 (He et al., 2016, figure 5)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = inputs == outputs and stride == 1
        skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.skip: nn.Module = nn.Identity() if same else skip

    def forward(self, images: Tensor) -> Tensor:
        """Same extents as the input, or half of them."""
        return torch.relu(self.body(images) + self.skip(images))


def resnet(blocks: tuple[int, ...]) -> nn.Sequential:
    """ResNet-50 for blocks 3, 4, 6, 3; without torchvision, which not every node has."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
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
    network = resnet((3, 4, 6, 3) if model == "resnet50" else (1,))
    images = torch.randn(batch, 3, _IMAGE if model == "resnet50" else 32, _IMAGE if model == "resnet50" else 32)
    return (
        network.to(device, memory_format=torch.channels_last),
        images.to(device).contiguous(memory_format=torch.channels_last),
    )


def inference(model: str, device: torch.device) -> Callable[[], None]:
    """A function that serves one request and returns when its result is there."""
    network, inputs = build(model, device, _BATCH_INFERENCE)
    network.eval()

    def serve() -> None:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16):
            network(inputs).argmax(1).cpu()

    return serve


def training(model: str, device: torch.device) -> Callable[[], None]:
    """A function that does one step of SGD and returns when it is done."""
    batch = _BATCH_TRANSFORMER if model == "transformer" else _BATCH_RESNET
    network, inputs = build(model, device, batch)
    network.train()
    labels = torch.randint(_CLASSES, (batch,), device=device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(network(inputs), labels)
        loss.backward()
        optimizer.step()
        loss.item()  # as a training that logs: it keeps one step in flight

    return step


@click.command()
@click.argument("role", type=click.Choice(["inference", "training"]))
@click.option("--model", type=click.Choice(["resnet50", "transformer", "tiny"]), required=True)
@click.option("--device", required=True, help="As torch names it.")
@click.option("--seconds", type=float, required=True)
@click.option("--rate", type=float, help="Requests per second; without it one follows the other.")
@click.option("--seed", type=int, default=1)
def main(role: str, model: str, device: str, seconds: float, rate: float | None, seed: int) -> None:
    """Warm up, say `ready`, wait for a line, work, print JSON."""
    place = torch.device(device)
    work = inference(model, place) if role == "inference" else training(model, place)
    for _ in range(_WARM_UP):
        work()
    click.echo("ready")
    sys.stdin.readline()
    found = run_closed_loop(work, seconds) if rate is None else serve_open_loop(work, rate, seconds, seed)
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

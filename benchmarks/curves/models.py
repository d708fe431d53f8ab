"""Who learns: small torch models, all fed with rows of numbers, shape (N, inputs)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

IMAGE_SIDE = 8  # of scikit-learn's digits, which convolutional and recurrent models see as images


def build(model: str, inputs: int, outputs: int, width: int, depth: int, dropout: float) -> nn.Module:
    """The model of that family. Raises `KeyError` if there is none."""
    return _BUILDERS[model](inputs, outputs, width, depth, dropout)


def _mlp(inputs: int, outputs: int, width: int, depth: int, dropout: float) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(dropout)]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def _autoencoder(inputs: int, outputs: int, width: int, depth: int, dropout: float) -> nn.Module:
    """`depth` layers down to a bottleneck of an eighth of the inputs, and the same way back."""
    code = max(2, inputs // 8)
    return nn.Sequential(_mlp(inputs, code, width, depth, dropout), _mlp(code, outputs, width, depth, dropout))


def _cnn(_inputs: int, outputs: int, width: int, depth: int, dropout: float) -> nn.Module:
    layers: list[nn.Module] = [nn.Unflatten(1, (1, IMAGE_SIDE, IMAGE_SIDE))]
    channels = 1
    for _ in range(depth):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        channels = width
    side = IMAGE_SIDE // 2
    return nn.Sequential(
        *layers, nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(dropout), nn.Linear(width * side * side, outputs)
    )


class _Gru(nn.Module):
    """Reads an image row by row."""

    def __init__(self, outputs: int, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.cells = nn.GRU(IMAGE_SIDE, width, depth, batch_first=True)
        self.last = nn.Sequential(nn.Dropout(dropout), nn.Linear(width, outputs))

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.cells(x.view(-1, IMAGE_SIDE, IMAGE_SIDE))
        return self.last(states[:, -1])


class _Residual(nn.Module):
    """A layer that adds to what it is given, normalised (as in a transformer, without attention)."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def _resmlp(inputs: int, outputs: int, width: int, depth: int, dropout: float) -> nn.Module:
    blocks = [_Residual(width, dropout) for _ in range(depth)]
    return nn.Sequential(nn.Linear(inputs, width), *blocks, nn.Linear(width, outputs))


_BUILDERS: Mapping[str, Callable[[int, int, int, int, float], nn.Module]] = {
    "mlp": _mlp,
    "resmlp": _resmlp,
    "autoencoder": _autoencoder,
    "cnn": _cnn,
    "gru": lambda _inputs, outputs, width, depth, dropout: _Gru(outputs, width, depth, dropout),
}

OPTIMISERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda parameters, **options: torch.optim.SGD(parameters, momentum=0.9, **options),
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}

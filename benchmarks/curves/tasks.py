"""What is learned: the data sets that scikit-learn ships, as tensors in one form for all models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import datasets
from torch import Tensor, nn

VALIDATION_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Task:
    """A data set split for training and validation, and the loss to be lowered on it.

    Inputs are standardised by the training part, shape (N, inputs); `outputs` is the width of the model's last layer.
    """

    train_x: Tensor
    train_y: Tensor
    valid_x: Tensor
    valid_y: Tensor
    outputs: int
    loss: nn.Module


@cache
def task(data: str, model: str) -> Task:
    """The task of this data set; an autoencoder learns to give its input back. Raises `KeyError` for unknown data."""
    kind = _KINDS[data]
    inputs, target = getattr(datasets, f"load_{data}")(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(inputs))  # one split for all trainings: their losses compare
    valid, train = np.split(order, [int(VALIDATION_SHARE * len(order))])
    x = torch.from_numpy(_standardised(inputs, train))
    if model == "autoencoder":
        y, outputs, loss = x, x.shape[1], nn.MSELoss()
    elif kind == "numbers":
        y, outputs, loss = torch.from_numpy(_standardised(target[:, None], train)), 1, nn.MSELoss()
    else:
        y, outputs, loss = torch.from_numpy(target.astype(np.int64)), int(target.max()) + 1, nn.CrossEntropyLoss()
    return Task(x[train], y[train], x[valid], y[valid], outputs, loss)


def _standardised(values: NDArray[np.float64], train: NDArray[np.int64]) -> NDArray[np.float32]:
    """Zero mean and unit variance over the training rows; columns that never change stay zero."""
    mean, spread = values[train].mean(axis=0), values[train].std(axis=0)
    return ((values - mean) / np.where(spread > 0, spread, 1.0)).astype(np.float32)


_KINDS = {"digits": "classes", "wine": "classes", "breast_cancer": "classes", "iris": "classes", "diabetes": "numbers"}

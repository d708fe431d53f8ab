"""Lightning with explsched: one callback reports `val_loss` after each epoch, and saves a checkpoint when asked."""

import argparse
import os
from pathlib import Path

import lightning
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch.utils.data import DataLoader, TensorDataset, random_split

from explsched.integrations.lightning import ExplschedCallback


class Line(lightning.LightningModule):
    """A linear layer. The callback reports what `save_hyperparameters` keeps as the hyper-parameters."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters({"lr": lr})
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: list[torch.Tensor], _index: int) -> None:
        self.log("val_loss", self.loss(batch))

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layer(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(1)
    inputs = torch.randn(512, 8)
    training, validation = random_split(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), [384, 128])
    path = Path(f"line-{os.environ.get('SLURM_JOB_ID', 'local')}.ckpt")
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        accelerator="auto",
        devices=1,
        callbacks=[ExplschedCallback(checkpoint=path)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        plugins=[LightningEnvironment()],  # Lightning's own handling of Slurm would take the signal
    )
    trainer.fit(
        Line(options.lr),
        DataLoader(training, batch_size=32, shuffle=True),
        DataLoader(validation, batch_size=128),
        ckpt_path=path if path.exists() else None,
    )


if __name__ == "__main__":
    main()

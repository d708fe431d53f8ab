"""Lightning with explsched: a callback reports the loss after each step and saves a checkpoint when asked."""

import argparse
import os
from pathlib import Path

import lightning
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment

import explsched


class Explsched(lightning.Callback):
    """Reports `train_loss` and, when the scheduler asks for the GPU, saves to `path`; the training goes on."""

    def __init__(self, checkpoint: explsched.CheckpointSignal, path: Path) -> None:
        self.checkpoint, self.path = checkpoint, path

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        explsched.report(
            step=trainer.global_step,
            loss=trainer.callback_metrics["train_loss"],
            total_steps=int(trainer.estimated_stepping_batches),
        )
        if self.checkpoint.requested:
            trainer.save_checkpoint(self.path.with_suffix(".new"))
            self.path.with_suffix(".new").replace(self.path)  # in one step: a job killed meanwhile keeps the old one
            self.checkpoint.saved(trainer.global_step)


class Line(lightning.LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr, self.layer = lr, torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(1)
    inputs = torch.randn(512, 8)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    path = Path(f"line-{os.environ.get('SLURM_JOB_ID', 'local')}.ckpt")
    with explsched.CheckpointSignal() as checkpoint:
        trainer = lightning.Trainer(
            max_epochs=options.epochs,
            accelerator="auto",
            devices=1,
            callbacks=[Explsched(checkpoint, path)],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            plugins=[LightningEnvironment()],  # Lightning's own handling of Slurm would take the signal
        )
        loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
        trainer.fit(Line(options.lr), loader, ckpt_path=path if path.exists() else None)


if __name__ == "__main__":
    main()

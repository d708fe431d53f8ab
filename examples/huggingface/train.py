"""The Hugging Face trainer with explsched: one callback reports its loss, and saves when asked."""

import argparse
import os

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from explsched.integrations.huggingface import ExplschedCallback, last_checkpoint


class Words(torch.utils.data.Dataset):
    """Sentences of random words; the class is whether the first word comes before the second."""

    def __init__(self, size: int) -> None:
        self.words = torch.randint(0, 64, (size, 16), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = self.words[index]
        return {"input_ids": words, "labels": (words[0] < words[1]).long()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    directory = f"bert-{os.environ.get('SLURM_JOB_ID', 'local')}"
    small = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    trainer = Trainer(
        model=BertForSequenceClassification(small),
        args=TrainingArguments(
            output_dir=directory,
            learning_rate=options.lr,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=32,
            logging_steps=5,
            save_strategy="no",  # but when asked
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Words(1024),
        callbacks=[ExplschedCallback(params={"lr": options.lr})],
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(directory))


if __name__ == "__main__":
    main()

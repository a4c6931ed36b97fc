"""Trains a checkpoint on after `tensorwright convert-heads`, for models as small as pico.

    tensorwright convert-heads models/pico out/pico-mqa --kv-heads 1
    python -m tensorwright.models.train_pooled_heads --model out/pico-mqa --minutes 10 --out out/pico-mqa-trained

It learns to predict the Python standard library, as pico did, and, with --teacher, the probabilities of the model
before the conversion too. It prints the perplexity of held-out files before and after. Needs torch and transformers.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import click
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tensorwright.models.train_pico import Recipe, batches, encode, loss_of, perplexity, read_texts, train_for

KEPT = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json")
TEACHER_SHARE = 0.5
"""What the teacher's probabilities count of the loss; the text's own tokens count the rest."""
TESTED = 32
"""Windows of held-out text that are measured."""


def loss_with(teacher: torch.nn.Module, model: torch.nn.Module, window: torch.Tensor) -> torch.Tensor:
    """Returns the mean loss of a window [B, S + 1], in nats: against its tokens, and against the teacher."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(window[:, :-1]).logits.float()
        with torch.no_grad():
            wanted = torch.softmax(teacher(window[:, :-1]).logits.float(), -1)
    known = torch.nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
    taught = -(wanted * torch.log_softmax(logits, -1)).sum(-1).mean()
    return (1 - TEACHER_SHARE) * known + TEACHER_SHARE * taught


@click.command(help=__doc__)
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="The checkpoint that is trained on.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Where the trained checkpoint goes.")
@click.option(
    "--teacher",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The checkpoint before the conversion.",
)
@click.option("--minutes", type=float, default=10.0, show_default=True, help="How long it is trained.")
@click.option("--files", type=int, help="The number of files that it learns from.  [default: all]")
@click.option("--peak-rate", type=float, default=5e-4, show_default=True, help="The highest learning rate.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the order of the text.")
def main(
    model: Path, out: Path, teacher: Path | None, minutes: float, files: int | None, peak_rate: float, seed: int
) -> None:  # fmt: skip
    if out.exists():
        raise click.BadParameter(f"{out} exists; choose another folder", param_hint="--out")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    train_texts, held_out = (encode(tokenizer, texts) for texts in read_texts(files))
    student = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).train()
    known = None
    if teacher is not None:
        known = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32).eval().requires_grad_(False)
    recipe = Recipe(seed=seed, peak_rate=peak_rate)
    before = perplexity(student, held_out, recipe.sequence, TESTED)

    def loss(window: torch.Tensor) -> torch.Tensor:
        return loss_of(student, window) if known is None else loss_with(known, student, window)

    steps = train_for(student, batches(train_texts, recipe, 0), loss, recipe, minutes * 60)
    after = perplexity(student, held_out, recipe.sequence, TESTED)
    student.to(torch.bfloat16).save_pretrained(out)
    for name in KEPT:
        if (model / name).is_file():
            shutil.copyfile(model / name, out / name)
    click.echo(f"{steps} steps; perplexity of {TESTED} held-out windows: {before:.4g} -> {after:.4g}")


if __name__ == "__main__":
    main()

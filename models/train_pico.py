"""Trains a pico pair from scratch on the Python standard library of the machine it runs on.

    python -m tensorwright.models.train_pico --which target --minutes 100 --out out/pico
    python -m tensorwright.models.train_pico --which draft --minutes 14 --tokenizer out/pico --out out/pico-draft

Writes a Hugging Face checkpoint (bfloat16) and prints the perplexity per token on held-out files. Stopped early, the
same command with --resume goes on from its last save. Needs torch, transformers and tokenizers.
"""

from __future__ import annotations

import math
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import click
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

Batch = TypeVar("Batch")
END = "<|endoftext|>"
VOCAB_SIZE = 8192
HOLD_OUT_EVERY = 50


@dataclass(frozen=True)
class Shape:
    """The sizes of a model. head_dim is always 64."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int


SHAPES = {
    "target": Shape(384, 1024, 8, 6, 2),
    "draft": Shape(192, 512, 2, 3, 1),
    "tiny": Shape(64, 128, 1, 1, 1),  # for trying the script
}


@dataclass(frozen=True)
class Recipe:
    """All settings that decide the result, except the training time."""

    sequence: int = 512
    batch: int = 8
    peak_rate: float = 1e-3
    warmup: float = 0.02  # the fraction of the whole run
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0


# -- data -------------------------------------------------------------------------------------------------------------


def library_files() -> list[Path]:
    """Returns every .py file of the standard library, sorted, without third-party packages."""
    root = Path(sysconfig.get_paths()["stdlib"])
    outside = {"site-packages", "dist-packages", "__pycache__"}
    return sorted(p for p in root.rglob("*.py") if not outside & set(p.relative_to(root).parts))


def read_texts(limit: int | None) -> tuple[list[str], list[str]]:
    """Returns (training texts, held-out texts). Every 50th file is held out. Unreadable and empty files are left
    out."""
    files = library_files()[:limit]
    texts: tuple[list[str], list[str]] = ([], [])
    for i, path in enumerate(files):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # A few test files are broken on purpose.
            continue
        if text.strip():
            texts[i % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1].append(text)
    return texts


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Trains a byte-level BPE of 8,192 tokens. Token 0 ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def end_token(tokenizer: Tokenizer) -> int:
    end = tokenizer.token_to_id(END)
    if end is None:
        raise click.UsageError(f"the tokenizer must have a token {END}")
    return end


def encode(tokenizer: Tokenizer, texts: list[str]) -> torch.Tensor:
    """Returns int64 [tokens]: the texts one after the other, each followed by the end token."""
    end = end_token(tokenizer)
    pieces = []
    for encoding in tokenizer.encode_batch(texts):
        pieces.append(np.array([*encoding.ids, end], np.int64))
    return torch.from_numpy(np.concatenate(pieces))


def batches(tokens: torch.Tensor, recipe: Recipe, start: int) -> Iterator[torch.Tensor]:
    """Yields windows [batch, sequence + 1] at random places, from step `start` on. The same seed gives the same
    windows."""
    step = start
    while True:
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        begins = torch.randint(len(tokens) - recipe.sequence, (recipe.batch,), generator=generator)
        yield torch.stack([tokens[b : b + recipe.sequence + 1] for b in begins.tolist()])
        step += 1


# -- training ---------------------------------------------------------------------------------------------------------


def make_model(which: str, vocab_size: int, end: int, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        **asdict(SHAPES[which]),
        head_dim=64,
        vocab_size=vocab_size,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        rms_norm_eps=1e-6,
        bos_token_id=end,
        eos_token_id=end,
    )
    return LlamaForCausalLM(config)


def make_optimizer(model: torch.nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """Makes an AdamW optimizer. Vectors (the norms) have no weight decay."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.peak_rate, betas=recipe.betas)


def rate(done: float, recipe: Recipe) -> float:
    """Returns the learning rate when the fraction `done` of the run is over: a linear warm-up, then a cosine to
    zero."""
    if done < recipe.warmup:
        return recipe.peak_rate * max(done, 1e-3) / recipe.warmup
    return recipe.peak_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def loss_of(model: torch.nn.Module, window: torch.Tensor) -> torch.Tensor:
    """Returns the mean cross-entropy of a window [batch, sequence + 1], computed under bfloat16 autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(window[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())


def train_for(
    model: torch.nn.Module,
    batches: Iterator[Batch],
    loss_of: Callable[[Batch], torch.Tensor],
    recipe: Recipe,
    seconds: float,
) -> int:
    """Trains for so many seconds and returns the number of steps. The rate follows the time."""
    optimizer = make_optimizer(model, recipe)
    begin = time.perf_counter()
    for step, batch in enumerate(batches):
        spent = time.perf_counter() - begin
        if spent >= seconds:
            return step
        for group in optimizer.param_groups:
            group["lr"] = rate(spent / seconds, recipe)
        loss = loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            click.echo(f"step {step}  {spent:.0f}/{seconds:.0f} s  loss {loss.item():.3f}")
    raise AssertionError("the batches never end")


@torch.inference_mode()
def perplexity(model: torch.nn.Module, tokens: torch.Tensor, sequence: int, limit: int | None = None) -> float:
    """Returns exp of the mean loss per token over consecutive windows of `sequence` tokens, at most `limit` windows."""
    model.eval()
    windows = [tokens[b : b + sequence + 1] for b in range(0, len(tokens) - sequence, sequence)][:limit]
    losses = [loss_of(model, window[None]).item() for window in windows]
    model.train()
    return math.exp(sum(losses) / len(losses))


@dataclass
class Run:
    """A training in progress. spent: the seconds of training over all resumptions."""

    model: LlamaForCausalLM
    optimizer: torch.optim.AdamW
    recipe: Recipe
    state_path: Path
    steps: int = 0
    spent: float = 0.0

    def save(self) -> None:
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        temporary = self.state_path.with_suffix(".tmp")
        torch.save({**state, "steps": self.steps, "spent": self.spent}, temporary)
        temporary.replace(self.state_path)

    def restore(self) -> None:
        state = torch.load(self.state_path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps, self.spent = state["steps"], state["spent"]

    def train(self, tokens: torch.Tensor, seconds: float, save_every: float = 300.0) -> None:
        """Trains until `seconds` are spent. The learning rate follows the time, so the cosine ends on any machine."""
        saved = self.spent
        for window in batches(tokens, self.recipe, self.steps):
            if self.spent >= seconds:
                break
            begin = time.perf_counter()
            for group in self.optimizer.param_groups:
                group["lr"] = rate(self.spent / seconds, self.recipe)
            loss = loss_of(self.model, window)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.steps += 1
            self.spent += time.perf_counter() - begin
            if self.steps % 50 == 0:
                click.echo(f"step {self.steps}  {self.spent:.0f}/{seconds:.0f} s  loss {loss.item():.3f}")
            if self.spent - saved >= save_every:
                self.save()
                saved = self.spent


@click.command(help=__doc__)
@click.option("--which", type=click.Choice(list(SHAPES)), required=True)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), required=True, help="Training time.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Checkpoint directory to write.")
@click.option("--tokenizer", "tokenizer_dir", type=click.Path(exists=True, path_type=Path), help="Use this one's.")
@click.option("--files", type=click.IntRange(min=HOLD_OUT_EVERY), help="Read only the first so many files.")
@click.option("--seed", default=0, show_default=True)
@click.option("--resume", is_flag=True, help="Go on from the last save in --out.")
def main(
    which: str, minutes: float, out: Path, tokenizer_dir: Path | None, files: int | None, seed: int, resume: bool
) -> None:
    recipe = Recipe(seed=seed)
    training, held_out = read_texts(files)
    if resume:
        tokenizer_dir = out
    tokenizer = (
        Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json")) if tokenizer_dir else train_tokenizer(training)
    )
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    tokens, held_out_tokens = encode(tokenizer, training), encode(tokenizer, held_out)
    click.echo(f"{len(training)} files, {len(tokens)} tokens; held out: {len(held_out)} files, {len(held_out_tokens)}")

    model = make_model(which, tokenizer.get_vocab_size(), end_token(tokenizer), seed)
    run = Run(model, make_optimizer(model, recipe), recipe, out / "training-state.pt")
    if resume:
        run.restore()
    run.train(tokens, minutes * 60)
    run.save()

    # The written checkpoint is bfloat16, so the model is measured in bfloat16.
    model.bfloat16()
    model.save_pretrained(out)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END).save_pretrained(out)
    held = perplexity(model, held_out_tokens, recipe.sequence)
    click.echo(f"{run.steps} steps; held-out perplexity per token {held:.2f}")


if __name__ == "__main__":
    main()

"""Trains a draft model to say what an engine says, for `--speculative draft`.

    python -m tensorwright.models.distill --engine out/pico --student models/pico-draft --minutes 30 --out out/draft

The engine answers pieces of the Python standard library, greedily and sampled, and tells its likeliest tokens at each
position. The student learns from these probabilities (Hinton et al. 2015, "Distilling the Knowledge in a Neural
Network"; on the teacher's own texts as in Kim and Rush 2016, "Sequence-Level Knowledge Distillation"). It prints how
often the student's likeliest token is the engine's, on answers that it did not learn from, before and after. The
answers are kept in --out, so the same command with --resume goes on. Needs torch and transformers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM

from tensorwright import LLM, SamplingParams
from tensorwright.models.train_pico import Recipe, encode, read_texts, train_for

LIKELIEST = 16
"""The tokens of each position whose probabilities are kept. What is left over is one class more."""
PROMPTS = (32, 512)
"""The lengths of prompts, from the first to the second."""
ANSWER = 256
TEMPERATURES = (0.0, 0.0, 0.6, 1.0)
"""Half of the answers are greedy, since a draft is right most often where the engine is sure."""
AT_ONCE = 64
HELD_OUT = 64
ROUND = 256
"""Answers between two saves."""


@dataclass
class Answers:
    """What an engine said. tokens: int32 [answers, longest prompt + ANSWER], -1 behind the end. starts: int32
    [answers], the lengths of the prompts. likeliest and logprobs: int32 and float32 [answers, ANSWER, LIKELIEST], the
    tokens that could stand at each place of the answer."""

    tokens: np.ndarray
    starts: np.ndarray
    likeliest: np.ndarray
    logprobs: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, rows: slice | np.ndarray) -> Answers:
        return Answers(*(getattr(self, part.name)[rows] for part in fields(self)))

    def save(self, path: Path) -> None:
        temporary = path.with_suffix(".tmp.npz")
        np.savez(temporary, **{part.name: getattr(self, part.name) for part in fields(self)})
        temporary.replace(path)

    @staticmethod
    def load(path: Path) -> Answers:
        with np.load(path) as held:
            return Answers(*(held[part.name] for part in fields(Answers)))

    @staticmethod
    def join(parts: list[Answers]) -> Answers:
        return Answers(*(np.concatenate([getattr(one, part.name) for one in parts]) for part in fields(Answers)))


def ask(llm: LLM, text: np.ndarray, count: int, seed: int) -> Answers:
    """Returns the engine's answers to `count` pieces of `text`, int64 [tokens], at places that `seed` decides."""
    rng = np.random.default_rng(seed)
    starts = rng.integers(PROMPTS[0], PROMPTS[1] + 1, count)
    begins = rng.integers(0, len(text) - PROMPTS[1], count)
    prompts: list[Any] = [{"prompt_token_ids": text[b : b + n].tolist()} for b, n in zip(begins, starts, strict=True)]
    params = [
        SamplingParams(
            max_tokens=ANSWER,
            temperature=TEMPERATURES[i % len(TEMPERATURES)],
            seed=seed * count + i,
            logprobs=LIKELIEST,
            detokenize=False,
        )
        for i in range(count)
    ]
    tokens = np.full((count, PROMPTS[1] + ANSWER), -1, np.int32)
    likeliest = np.zeros((count, ANSWER, LIKELIEST), np.int32)
    logprobs = np.full((count, ANSWER, LIKELIEST), -np.inf, np.float32)
    for row, output in enumerate(llm.generate(prompts, params)):
        answer = output.outputs[0]
        whole = [*output.prompt_token_ids, *answer.token_ids]
        tokens[row, : len(whole)] = whole
        for place, table in enumerate(answer.logprobs or []):
            best = sorted(table.items(), key=lambda entry: entry[1].rank)[:LIKELIEST]
            likeliest[row, place] = [token for token, _ in best]
            logprobs[row, place] = [entry.logprob for _, entry in best]
    return Answers(tokens, starts.astype(np.int32), likeliest, logprobs)


def gather(engine: Path, text: np.ndarray, count: int, path: Path, seed: int) -> Answers:
    """Returns `count` answers, those of the file at `path` first. The file then has all of them."""
    parts = [Answers.load(path)] if path.exists() else []
    have = sum(map(len, parts))
    with LLM(engine, max_batch_size=AT_ONCE, enable_prefix_caching=False) as llm:
        begin = time.perf_counter()
        while have < count:
            parts.append(ask(llm, text, min(ROUND, count - have), seed * 1_000_003 + have))
            have += len(parts[-1])
            Answers.join(parts).save(path)
            click.echo(f"{have} of {count} answers after {time.perf_counter() - begin:.0f} s")
    return Answers.join(parts).part(slice(count))


def student_logits(model: LlamaForCausalLM, answers: Answers) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the student's logits at the places of the answers, float32 [places, vocabulary], and which places of
    [answers * ANSWER] these are: those before an end."""
    tokens = torch.from_numpy(answers.tokens).long()
    places = torch.from_numpy(answers.starts).long()[:, None] + torch.arange(ANSWER)
    there = (tokens.gather(1, places) >= 0).flatten().nonzero()[:, 0]
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(tokens.clamp(min=0)).last_hidden_state
        before = hidden.gather(1, (places - 1)[..., None].expand(-1, -1, hidden.shape[-1]))
        logits = model.lm_head(before.flatten(0, 1)[there])
    return logits.float(), there


def divergence(model: LlamaForCausalLM, answers: Answers) -> torch.Tensor:
    """Returns the mean Kullback-Leibler divergence of the student from the engine, in nats per token, over LIKELIEST
    + 1 classes: the likeliest tokens, and all others together."""
    logits, there = student_logits(model, answers)
    ours = torch.log_softmax(logits, -1)
    likeliest = torch.from_numpy(answers.likeliest).long().flatten(0, 1)[there]
    theirs = torch.from_numpy(answers.logprobs).flatten(0, 1)[there]
    ours = ours.gather(1, likeliest)
    ours_left = torch.log1p(-ours.exp().sum(1).clamp(max=1 - 1e-6))
    share = theirs.exp()
    left = (1 - share.sum(1)).clamp(min=1e-6)
    each = (share * (theirs - ours)).sum(1) + left * (left.log() - ours_left)
    return each.mean()


@torch.inference_mode()
def agreement(model: LlamaForCausalLM, answers: Answers) -> float:
    """Returns the share of the places at which the student's likeliest token is the engine's."""
    model.eval()
    right = places = 0
    for row in range(0, len(answers), 8):
        part = answers.part(slice(row, row + 8))
        logits, there = student_logits(model, part)
        best = torch.from_numpy(part.likeliest[:, :, 0]).flatten()[there]
        right += int((logits.argmax(-1) == best).sum())
        places += len(there)
    model.train()
    return right / places


def batches(answers: Answers, recipe: Recipe) -> Iterator[Answers]:
    rng = np.random.default_rng(recipe.seed)
    while True:
        order = rng.permutation(len(answers))
        for begin in range(0, len(order) - recipe.batch + 1, recipe.batch):
            yield answers.part(order[begin : begin + recipe.batch])


@click.command(help=__doc__)
@click.option("--engine", type=click.Path(exists=True, path_type=Path), required=True, help="The engine to learn from.")
@click.option(
    "--student", type=click.Path(exists=True, path_type=Path), required=True, help="Checkpoint to begin with."
)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), required=True, help="Training time.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Checkpoint directory to write.")
@click.option("--answers", type=click.IntRange(min=2 * HELD_OUT), default=4096, show_default=True)
@click.option("--files", type=click.IntRange(min=50), help="Read only the first so many files of the library.")
@click.option("--peak-rate", default=1e-3, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--resume", is_flag=True, help="Take the answers that --out has already.")
def main(
    engine: Path, student: Path, minutes: float, out: Path, answers: int, files: int | None, peak_rate: float,
    seed: int, resume: bool,
) -> None:  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "answers.npz"
    if kept.exists() and not resume:
        raise click.UsageError(f"{kept} is there: add --resume to use it, or choose another --out")
    tokenizer = Tokenizer.from_file(str(student / "tokenizer.json"))
    training, _ = read_texts(files)
    said = gather(engine, encode(tokenizer, training).numpy(), answers, kept, seed)
    held_out, learned = said.part(slice(HELD_OUT)), said.part(slice(HELD_OUT, None))

    model = LlamaForCausalLM.from_pretrained(student, dtype=torch.float32)
    before = agreement(model, held_out)
    recipe = Recipe(seed=seed, peak_rate=peak_rate)
    steps = train_for(model, batches(learned, recipe), partial(divergence, model), recipe, minutes * 60)
    model.bfloat16()
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(student).save_pretrained(out)
    after = agreement(model, held_out)
    click.echo(f"{steps} steps; the likeliest token was the engine's {before:.3f} of the time, now {after:.3f}")


if __name__ == "__main__":
    main()

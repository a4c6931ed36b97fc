"""What a bounded KV cache costs and saves: engines of one model with windows and sink tokens, and with budgets.

    python benchmarks/long_contexts.py MODEL FOLDER [--kept 256+4 kv192 kv256/128] [--dtype float32] [--tokens 8192]
        [--threads 2] [--decode 64] [--rounds 5] [--away 320]

256+4 is a window of 256 and 4 sink tokens; kv256 is a budget of 256 tokens, and kv256/128 one of which 128 are recent.
Each engine is built in FOLDER with accuracy measured on `--tokens` tokens of the text of this package, unless it is
there. Then all engines compute a sequence of as many tokens as the model takes, in turn, and as often as `--rounds`
says. A row tells an engine's perplexity beside the reference's, KL divergence and agreement of the first choice, from
its record, which measures the sooner an engine forgets, the shorter sequences; perplexity of that one sequence, and how
often its first choice is that of the engine which keeps all; the KV bytes that the sequence holds at most, of blocks in
use; and processor seconds of its prompt, and of a token behind it, the least of the rounds.

The last column is recall: a passage of 64 tokens stands near the beginning, and again behind every `--away` tokens of
other text. It is the perplexity of the repeated passages, but for the first 8 tokens of each, over 4 texts. No window
of fewer tokens than lie between two passages shows the one before.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorwright import LLM, SamplingParams, build
from tensorwright.builder.measure.sample import bundled_text

ALL = "all"
PASSAGE, BEGUN, TEXTS = 64, 8, 4


@dataclass
class Row:
    """What is known of one engine: its record of accuracy, the most bytes in use, and seconds of each round."""

    kept: str
    llm: LLM
    record: dict[str, Any]
    held: int = 0
    prompt: list[float] = field(default_factory=list)
    token: list[float] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)
    perplexity: float = 0.0
    recalled: float = 0.0


def bounds_of(kept: str) -> dict[str, int]:
    """Returns the options of `build` for a name of the command line."""
    if kept == ALL:
        return {}
    if kept.startswith("kv"):
        budget, _, recent = kept.removeprefix("kv").partition("/")
        return {"kv_budget": int(budget), **({"recent_tokens": int(recent)} if recent else {})}
    window, _, sinks = kept.partition("+")
    return {"attention_window": int(window), "sink_tokens": int(sinks)}


def make_engine(model: str, folder: Path, kept: str, dtype: str, tokens: int) -> Path:
    out = folder / f"{kept.replace('/', '-')}-{dtype}-{tokens}"
    if not out.is_dir():
        build(model, out, dtype=dtype, accuracy_tokens=tokens, **bounds_of(kept))
    return out


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run_once(row: Row, ids: list[int], decode: int) -> None:
    """Computes the prompt, then the prompt again with `decode` more tokens, and notes what both took."""
    begin = processor_seconds()
    row.llm.generate({"prompt_token_ids": ids}, SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False))
    prompt = processor_seconds() - begin
    params = SamplingParams(max_tokens=decode, ignore_eos=True, detokenize=False)
    begin = processor_seconds()
    handle = row.llm.generate_async({"prompt_token_ids": ids}, params)
    while not handle.done:
        used = max(group["used_blocks"] for group in row.llm.get_stats()["groups"])
        row.held = max(row.held, used * row.llm.engine.kv_block_bytes)
        time.sleep(0.01)
    row.prompt.append(prompt)
    row.token.append((processor_seconds() - begin - prompt) / (decode - 1))


def read(row: Row, ids: list[int]) -> None:
    """Notes the first choices of all positions of a sequence, and its perplexity."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=1, detokenize=False)
    tables = row.llm.generate({"prompt_token_ids": ids}, params).prompt_logprobs
    assert tables is not None
    logprobs = []
    for token, table in zip(ids, tables, strict=True):
        if table is not None:
            logprobs.append(table[token].logprob)
            row.choices.append(next(other for other, entry in table.items() if entry.rank == 1))
    row.perplexity = math.exp(-sum(logprobs) / len(logprobs))


def recall_text(text: list[int], length: int, away: int, seed: int) -> tuple[list[int], list[int]]:
    """Returns tokens with a passage that comes again and again, and the places of the tokens to be recalled."""
    draw = random.Random(seed)
    begin = draw.randrange(len(text) - PASSAGE)
    passage = text[begin : begin + PASSAGE]
    start = draw.randrange(len(text) // 2)
    ids, places = text[start : start + PASSAGE], []
    ids = [*ids, *passage]
    while len(ids) + away + PASSAGE < length:
        start = draw.randrange(len(text) - away)
        ids += text[start : start + away]
        places += range(len(ids) + BEGUN, len(ids) + PASSAGE)
        ids += passage
    return ids, places


def recall(row: Row, text: list[int], away: int) -> float:
    """Returns the perplexity of the tokens to be recalled."""
    logprobs = []
    for seed in range(TEXTS):
        ids, places = recall_text(text, row.llm.engine.max_seq_len - 1, away, seed)
        params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        tables = row.llm.generate({"prompt_token_ids": ids}, params).prompt_logprobs
        assert tables is not None
        for place in places:
            table = tables[place]
            assert table is not None
            logprobs.append(table[ids[place]].logprob)
    return math.exp(-sum(logprobs) / len(logprobs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kept", nargs="+", default=["256+4", "256+0", "kv192", "kv256"], metavar="W+S|kvN[/R]")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--away", type=int, default=320)
    args = parser.parse_args()
    rows = []
    for kept in [ALL, *args.kept]:
        path = make_engine(args.model, args.folder, kept, args.dtype, args.tokens)
        llm = LLM(
            path, threads=args.threads, kv_cache_memory="256MiB", max_batch_size=1, max_num_tokens=256,
            enable_prefix_caching=False,
        )  # fmt: skip
        rows.append(Row(kept, llm, llm.engine.config.to_dict()["accuracy"]))
    length = rows[0].llm.engine.max_seq_len
    text = list(rows[0].llm.tokenizer.encode(bundled_text().content))
    ids = text[: length - args.decode]
    for _ in range(args.rounds):
        for row in rows:
            run_once(row, ids, args.decode)
    for row in rows:
        read(row, ids)
        row.recalled = recall(row, text, args.away)
    print(f"{args.model}, {args.dtype}, a prompt of {len(ids)} tokens, {args.threads} threads", file=sys.stderr)
    heads = (
        "keeps", "perplexity, engine / reference", "KL", "same first choice", "perplexity here", "same here", "KV held",
        "prompt, s", "token, ms",
    )  # fmt: skip
    print(f"| {' | '.join(heads)} | recall |")
    print(f"|{'---|' * (len(heads) + 1)}")
    for row in rows:
        kept = row.record
        same = sum(one == other for one, other in zip(row.choices, rows[0].choices, strict=True)) / len(row.choices)
        ratio = f"{kept['perplexity_engine']:.3f} / {kept['perplexity_reference']:.3f}"
        print(
            f"| {row.kept} | {ratio} | {kept['kl_divergence']:.4f} | {kept['top1_agreement']:.3f} | "
            f"{row.perplexity:.1f} | {same:.3f} | "
            f"{row.held / 2**20:.2f} MiB | {min(row.prompt):.3f} | {1000 * min(row.token):.2f} | {row.recalled:.1f} |"
        )
        row.llm.shutdown()


if __name__ == "__main__":
    main()

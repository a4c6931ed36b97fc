"""What a bounded attention costs and saves: engines of one model with several windows and numbers of sink tokens.

    python benchmarks/attention_window.py MODEL FOLDER [--seen 256+4 256+0 512+4] [--dtype float32] [--tokens 8192]
        [--threads 2] [--decode 64] [--rounds 5]

Each engine is built in FOLDER with accuracy measured on `--tokens` tokens of the text of this package, unless it is
there. Then all engines compute a sequence of as many tokens as the model takes, in turn, and as often as `--rounds`
says. A row tells an engine's perplexity beside the reference's, KL divergence and agreement of the first choice, from
its record; the KV bytes that the sequence holds at most, of blocks in use; and processor seconds of its prompt, and of
a token behind it, the least of the rounds.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorwright import LLM, SamplingParams, build
from tensorwright.builder.measure.sample import bundled_text

ALL = "all"


@dataclass
class Row:
    """What is known of one engine: its record of accuracy, the most bytes in use, and seconds of each round."""

    seen: str
    llm: LLM
    record: dict[str, Any]
    held: int = 0
    prompt: list[float] = field(default_factory=list)
    token: list[float] = field(default_factory=list)


def make_engine(model: str, folder: Path, seen: str, dtype: str, tokens: int) -> Path:
    out = folder / f"{seen}-{dtype}-{tokens}"
    if not out.is_dir():
        window, _, sinks = seen.partition("+")
        bounds = {} if seen == ALL else {"attention_window": int(window), "sink_tokens": int(sinks)}
        build(model, out, dtype=dtype, accuracy_tokens=tokens, **bounds)
    return out


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run_once(row: Row, ids: list[int], decode: int) -> None:
    """Computes the prompt, then the prompt's last tokens again with `decode` more, and notes what both took."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seen", nargs="+", default=["256+4", "256+0", "512+4"], help="WINDOW+SINKS")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rows = []
    for seen in [ALL, *args.seen]:
        path = make_engine(args.model, args.folder, seen, args.dtype, args.tokens)
        llm = LLM(
            path, threads=args.threads, kv_cache_memory="256MiB", max_batch_size=1, max_num_tokens=256,
            enable_prefix_caching=False,
        )  # fmt: skip
        rows.append(Row(seen, llm, llm.engine.config.to_dict()["accuracy"]))
    length = rows[0].llm.engine.max_seq_len
    text = rows[0].llm.tokenizer.encode(bundled_text().content)
    ids = list(text)[: length - args.decode]
    for _ in range(args.rounds):
        for row in rows:
            run_once(row, ids, args.decode)
    print(f"{args.model}, {args.dtype}, a prompt of {len(ids)} tokens, {args.threads} threads", file=sys.stderr)
    print("| sees | perplexity, engine / reference | KL | same first choice | KV held | prompt, s | token, ms |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        kept = row.record
        ratio = f"{kept['perplexity_engine']:.3f} / {kept['perplexity_reference']:.3f}"
        print(
            f"| {row.seen} | {ratio} | {kept['kl_divergence']:.4f} | {kept['top1_agreement']:.3f} | "
            f"{row.held / 2**20:.2f} MiB | {min(row.prompt):.3f} | {1000 * min(row.token):.2f} |"
        )
        row.llm.shutdown()


if __name__ == "__main__":
    main()

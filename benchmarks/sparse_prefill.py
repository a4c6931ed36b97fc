"""What sparse prefill costs and saves: engines of one model with several budgets, and prompts of several lengths.

    python benchmarks/sparse_prefill.py MODEL FOLDER [--budgets 1024 2048] [--lengths 4096 8192 16384]
        [--dtype float32] [--accuracy-tokens 8192] [--accuracy-text FILE] [--threads 2] [--chunk 512] [--rounds 3]

Each engine is built in FOLDER, unless it is there. With --accuracy-tokens its record has what the budget costs, and the
first table shows perplexity beside the reference's, KL divergence and agreement of the first choice; this is for
trained models. With --lengths all engines compute prompts of random tokens, in turn, as often as --rounds says, and the
second table shows the least processor seconds of each, and how many times those of full attention are of them.
"""

from __future__ import annotations

import argparse
import resource
import sys
from pathlib import Path

import numpy as np

from tensorwright import LLM, SamplingParams, build

ALL = 0


def make_engine(model: str, folder: Path, budget: int, args: argparse.Namespace) -> Path:
    tokens = args.accuracy_tokens
    out = folder / f"{budget}-{args.dtype}-{tokens}"
    if not out.is_dir():
        text = args.accuracy_text if budget else None
        measured = {"accuracy": "none"} if not tokens else {"accuracy_tokens": tokens, "accuracy_text": text}
        build(model, out, dtype=args.dtype, sparse_prefill=budget, **measured)
    return out


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def prompt_seconds(llm: LLM, length: int) -> float:
    """Returns the processor seconds of a prompt of `length` random tokens."""
    ids = np.random.default_rng(length).integers(0, llm.engine.vocab_size, length).tolist()
    begin = processor_seconds()
    llm.generate({"prompt_token_ids": ids}, SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False))
    return processor_seconds() - begin


def show_costs(engines: dict[int, LLM]) -> None:
    print("| budget | tokens | perplexity, engine / reference | KL | same first choice |")
    print("|---|---|---|---|---|")
    for budget, llm in engines.items():
        kept = llm.engine.config.to_dict()["accuracy"]
        ratio = f"{kept['perplexity_engine']:.3f} / {kept['perplexity_reference']:.3f}"
        print(
            f"| {budget or 'all'} | {kept['tokens']} | {ratio} | {kept['kl_divergence']:.4f} | "
            f"{kept['top1_agreement']:.3f} |"
        )


def show_times(engines: dict[int, LLM], lengths: list[int], rounds: int) -> None:
    print(f"| tokens of the prompt | {' | '.join('all' if not b else str(b) for b in engines)} |")
    print("|---|" + "---|" * len(engines))
    for length in lengths:
        best = dict.fromkeys(engines, float("inf"))
        for _ in range(rounds):
            for budget, llm in engines.items():
                best[budget] = min(best[budget], prompt_seconds(llm, length))
        times = [f"{s:.2f} s" if not b else f"{s:.2f} s, {best[ALL] / s:.2f} x" for b, s in best.items()]
        print(f"| {length} | {' | '.join(times)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budgets", nargs="+", type=int, default=[1024, 2048])
    parser.add_argument("--lengths", nargs="*", type=int, default=[])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--accuracy-tokens", type=int, default=0, help="0 measures no costs")
    parser.add_argument("--accuracy-text", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=512, help="tokens of a step")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    engines = {
        budget: LLM(
            make_engine(args.model, args.folder, budget, args), threads=args.threads, kv_cache_memory="1GiB",
            max_batch_size=1, max_num_tokens=args.chunk, enable_prefix_caching=False,
        )
        for budget in (ALL, *args.budgets)
    }  # fmt: skip
    print(f"{args.model}, {args.dtype}, {args.threads} threads, chunks of {args.chunk}", file=sys.stderr)
    if args.accuracy_tokens:
        show_costs(engines)
    if args.lengths:
        show_times(engines, args.lengths, args.rounds)
    for llm in engines.values():
        llm.shutdown()


if __name__ == "__main__":
    main()

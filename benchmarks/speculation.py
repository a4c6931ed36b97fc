"""Decode with and without speculation, on texts of several kinds: tokens per second, and what became of the proposals.

    python benchmarks/speculation.py ENGINE [--speculative ngram ngram,tokens=4] [--batch 1 4] [--rounds 5]

All forms take turns, A B C A B C; the best round of each counts, since other programs only slow a round down, but for a
first one that warms up. The texts are Python sources of this package (code), eight copies of a function (repetition),
and random ids. Each is answered greedily and with temperature 0.8. The tokens must be the same in all forms, or the run
fails.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

from tensorwright import LLM, SamplingParams

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (
    "runtime/requests/outputs.py", "runtime/requests/request_state.py", "runtime/api/llm.py", "models/checkpoint.py",
    "runtime/engine/native.py", "ir/graph.py", "ir/verify.py", "passes/pipeline.py", "runtime/tools/inspect.py",
    "runtime/text/detokenizer.py", "models/registry.py", "builder/cli.py", "plugins/packing.py", "ir/interpret.py",
    "engine_format/targets.py", "runtime/tools/profile.py",
)  # fmt: skip
CHARACTERS = 1500
IDS = 200
TOKENS = 128
PLAIN = "none"


def prompts(kind: str, vocabulary: int) -> list[Any]:
    if kind == "code":
        return [(ROOT / name).read_text(encoding="utf-8")[:CHARACTERS] for name in SOURCES]
    if kind == "repetition":
        return [f"def add_{i}(a, b):\n    return a + b + {i}\n\n" * 8 for i in range(len(SOURCES))]
    rng = random.Random(1)
    return [{"prompt_token_ids": [rng.randrange(vocabulary) for _ in range(IDS)]} for _ in SOURCES]


def measure(llm: LLM, batch: list[Any], params: SamplingParams) -> tuple[float, list[list[int]], tuple[int, int]]:
    """Returns (tokens per second after the first token of all, the tokens, (proposed, right))."""
    begin = time.perf_counter()
    outputs = llm.generate(batch, params)
    seconds = time.perf_counter() - begin - max(o.metrics.time_to_first_token or 0.0 for o in outputs)
    counts = sum(o.metrics.draft_tokens for o in outputs), sum(o.metrics.accepted_tokens for o in outputs)
    return len(batch) * (TOKENS - 1) / seconds, [list(o.outputs[0].token_ids) for o in outputs], counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--speculative", nargs="+", default=["ngram"], metavar="METHOD[,NAME=VALUE]")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    forms = [PLAIN, *args.speculative]
    llms = {form: LLM(args.engine, enable_prefix_caching=False, speculative=form) for form in forms}
    rows = []
    for kind in ("code", "repetition", "random ids"):
        texts = prompts(kind, llms[PLAIN].engine.vocab_size)
        for temperature in (0.0, 0.8):
            for batch in args.batch:
                params = SamplingParams(max_tokens=TOKENS, temperature=temperature, seed=1, ignore_eos=True)
                best: dict[str, float] = dict.fromkeys(forms, 0.0)
                counts, tokens = {}, {}
                for measured in range(-1, args.rounds):
                    for form, llm in llms.items():
                        rate, tokens[form], counts[form] = measure(llm, texts[:batch], params)
                        best[form] = max(best[form], rate if measured >= 0 else 0.0)
                if any(made != tokens[PLAIN] for made in tokens.values()):
                    raise SystemExit(f"{kind}, temperature {temperature}, batch {batch}: the tokens differ")
                row = {
                    "text": kind,
                    "temperature": temperature,
                    "batch": batch,
                    "tokens_per_second": best,
                    "drafts": counts,
                }
                rows.append(row)
                show(row)
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def show(row: dict[str, Any]) -> None:
    rates = row["tokens_per_second"]
    cells = []
    for form, rate in rates.items():
        proposed, right = row["drafts"][form]
        share = f", {right / proposed:.0%} of {proposed} right" if proposed else ""
        cells.append(f"{form} {rate:.0f}" + (f" ({rate / rates[PLAIN]:.2f}{share})" if form != PLAIN else ""))
    print(f"{row['text']}, temperature {row['temperature']}, batch {row['batch']}: {'; '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()

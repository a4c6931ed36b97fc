"""Compares what an engine says with what target cpu says, on a machine that has no checkpoint and no builder.

    python benchmarks/gpu/gpu_logits.py make ENGINE EXACT SAME     here: EXACT and SAME are engines of target cpu, in
                                                                   float32 and in ENGINE's type
    python benchmarks/gpu/gpu_logits.py check ENGINE [--json FILE] there

`make` writes ENGINE-expected.json beside ENGINE. The check passes if the logprobs of given texts are no further from
float32 than FACTOR times those of target cpu in the engine's type. Greedy tokens are counted: where two tokens are
nearly as good, they may differ.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from tensorwright import LLM, SamplingParams
from tensorwright.runtime.engine.engine_dir import open_engine

LENGTHS = (5, 33, 100, 300)
ANSWER = 32
FACTOR = 3.0
"""Both round each activation to the same type, in another order; the worst of some hundred logprobs is compared."""


def expected_file(engine: Path) -> Path:
    return engine.with_name(engine.name + "-expected.json")


def prompts(vocab_size: int) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(10, vocab_size, length).tolist() for length in LENGTHS]


def logprobs(llm: Any, texts: list[list[int]]) -> list[list[float]]:
    """Returns the logprob of each token of the texts but the first."""
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, prompt_logprobs=1)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in texts], params)
    return [
        [row[token].logprob for row, token in zip(output.prompt_logprobs[1:], ids[1:], strict=True)]
        for output, ids in zip(outputs, texts, strict=True)
    ]


def answers(llm: Any, texts: list[list[int]]) -> list[list[int]]:
    params = SamplingParams(max_tokens=ANSWER, temperature=0.0, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in texts], params)
    return [list(output.outputs[0].token_ids) for output in outputs]


def worst(found: list[list[float]], exact: list[list[float]]) -> float:
    return max(abs(a - b) for mine, theirs in zip(found, exact, strict=True) for a, b in zip(mine, theirs, strict=True))


def make(engine: Path, exact: Path, same: Path) -> None:
    with LLM(exact) as llm:
        texts = prompts(llm.engine.vocab_size)
        tokens = answers(llm, texts)
        whole = [ids + answer for ids, answer in zip(texts, tokens, strict=True)]
        reference = logprobs(llm, whole)
    with LLM(same) as llm:
        allowed = worst(logprobs(llm, whole), reference)
    content = {"texts": texts, "answers": tokens, "logprobs": reference, "worst_of_cpu": allowed}
    expected_file(engine).write_text(json.dumps(content), encoding="utf-8")
    print(f"target cpu in the engine's type is off by {allowed:.4f} at most")


def check(engine: Path, report: str | None) -> None:
    expected = json.loads(expected_file(engine).read_text(encoding="utf-8"))
    texts, tokens = expected["texts"], expected["answers"]
    found_engine = open_engine(engine)
    # ONNX Runtime does not say how much of a GPU's memory is free.
    memory = len(texts) * found_engine.kv_block_bytes if found_engine.target == "onnx" else None
    with LLM(engine, kv_cache_memory=memory) as llm:
        found = logprobs(llm, [ids + answer for ids, answer in zip(texts, tokens, strict=True)])
        own = answers(llm, texts)
    off = worst(found, expected["logprobs"])
    equal = sum(a == b for mine, theirs in zip(own, tokens, strict=True) for a, b in zip(mine, theirs, strict=True))
    first = [next((i for i, pair in enumerate(zip(*p, strict=True)) if pair[0] != pair[1]), ANSWER) for p in
             zip(own, tokens, strict=True)]  # fmt: skip
    result = {
        "logprobs": sum(map(len, found)), "worst": off, "worst_of_cpu_in_this_type": expected["worst_of_cpu"],
        "equal_greedy_tokens": equal, "of": sum(map(len, tokens)), "first_difference": first,
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    if report:
        Path(report).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    raise SystemExit(off > FACTOR * expected["worst_of_cpu"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    for name in ("engine", "exact", "same"):
        making.add_argument(name, type=Path)
    checking = commands.add_parser("check")
    checking.add_argument("engine", type=Path)
    checking.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if args.command == "make":
        make(args.engine, args.exact, args.same)
    else:
        check(args.engine, args.json)


if __name__ == "__main__":
    main()

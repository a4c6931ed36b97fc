"""Measures what optimizations are worth by switching them off: `tensorwright explain --measure`.

Steps run by hand with random ids, and the fastest of some rounds counts, since other programs only slow a round down.
What an environment variable switches is measured in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping

from tensorwright.errors import EngineError
from tensorwright.insight.explain.engine_view import BATCH
from tensorwright.insight.explain.finding import Worth
from tensorwright.options.engine import DEFAULT_LIMITS
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.base.host import default_threads
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine
from tensorwright.runtime.requests.prompts import PromptDict
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.tools.tune import Steps, Work, works_for

ROUNDS = 5
LOWER = "avx2"
"""The instruction set that "instruction sets" is compared with."""
_KINDS = {"decode 1": "decode", f"decode {BATCH}": "batch", "prompt": "prefill"}


def measure_worths(engine: EngineDir) -> dict[str, Worth]:
    """Returns what was measured, by the name of the row. Engines of other targets than cpu have nothing to switch."""
    if engine.target != "cpu":
        return {}
    count = default_threads()
    base = step_seconds(engine, count)
    worths = {"in-flight batching": Worth(batch=BATCH * base["decode"] / base["batch"], how="measured")}
    if count > 1:
        worths["threads"] = _ratio(step_seconds(engine, 1), base)
    lower = _with_instruction_set(engine, count)
    if lower is not None:
        worths["instruction sets"] = _ratio(lower, base)
    worths["prefix reuse"] = Worth(prefill=_prefix_gain(engine), how="measured")
    worths["speculation: ngram, suffix"] = Worth(decode=_ngram_gain(engine), how="measured")
    return worths


def step_seconds(engine: EngineDir, threads: int) -> dict[str, float]:
    """Returns the seconds of a token of one sequence, of a step of BATCH, and of a prompt: the fastest of ROUNDS."""
    works: list[Work] = works_for(engine.max_seq_len, DEFAULT_LIMITS["max_num_tokens"])
    steps = Steps(engine, threads, works)
    best = {work.name: steps.seconds(work.name, ()) for work in works}
    for _ in range(ROUNDS):
        for work in works:
            best[work.name] = min(best[work.name], steps.seconds(work.name, ()))
    return {_KINDS[name]: seconds for name, seconds in best.items()}


def _ratio(without: Mapping[str, float], base: Mapping[str, float]) -> Worth:
    decode, batch, prefill = (without[kind] / base[kind] for kind in ("decode", "batch", "prefill"))
    return Worth(decode, batch, prefill, how="measured")


def _with_instruction_set(engine: EngineDir, threads: int) -> dict[str, float] | None:
    """Returns the step seconds with LOWER's kernels; None where the environment chooses the kernels, and on a
    processor that lacks those."""
    if os.environ.get("TENSORWRIGHT_ISA") or not native.load_module().cpu_features()[LOWER]:
        return None
    command = [sys.executable, "-P", "-m", "tensorwright.insight.explain.measure", str(engine.path), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"TENSORWRIGHT_ISA": LOWER})
    if done.returncode != 0:
        raise EngineError(f"{engine.path}: steps with {LOWER} kernels failed: {done.stderr.strip().splitlines()[-1:]}")
    seconds: dict[str, float] = json.loads(done.stdout)
    return seconds


def _prefix_gain(engine: EngineDir) -> float:
    """Returns how many times as soon a prompt's first token comes if the first half of the prompt is known."""
    length = max(2, min(DEFAULT_LIMITS["max_num_tokens"], engine.max_seq_len - 2))
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    best = {True: float("inf"), False: float("inf")}
    with LLM(engine.path) as llm:
        for turn in range(ROUNDS):
            shared = _ids(engine, length // 2, turn)
            for known in (False, True):
                prompt: PromptDict = {
                    "prompt_token_ids": [*shared, *_ids(engine, length - length // 2, 1000 + 2 * turn + known)]
                }
                begin = time.perf_counter()
                llm.generate([prompt], params)
                best[known] = min(best[known], time.perf_counter() - begin)
    return best[False] / best[True]


def _ngram_gain(engine: EngineDir) -> float:
    """Returns how many times as fast a greedy answer comes with ngram, after a prompt that repeats itself."""
    room = engine.max_seq_len - 1
    answer = max(1, min(64, room // 2))
    part = _ids(engine, min(16, max(1, (room - answer) // 4)), 7)
    prompt: PromptDict = {"prompt_token_ids": part * 4}
    params = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True)
    best: dict[str, float] = {}
    for method in ("none", "ngram"):
        with LLM(engine.path, speculative=method, enable_prefix_caching=False) as llm:
            for _ in range(ROUNDS):
                begin = time.perf_counter()
                (output,) = llm.generate([prompt], params)
                seconds = time.perf_counter() - begin - (output.metrics.time_to_first_token or 0.0)
                best[method] = min(best.get(method, float("inf")), seconds)
    return best["none"] / best["ngram"]


def _ids(engine: EngineDir, count: int, seed: int) -> list[int]:
    """Returns token ids that are spread over the vocabulary, the same for the same seed."""
    return [(seed * 7919 + i * 104729 + i * i * 31) % engine.vocab_size for i in range(count)]


if __name__ == "__main__":
    print(json.dumps(step_seconds(open_engine(sys.argv[1]), int(sys.argv[2]))))

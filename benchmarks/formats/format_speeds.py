"""Measures how fast an engine decodes one sequence, and how fast it reads a prompt."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

PROMPT = 512
"""Tokens of the prompt that is read."""
CONTEXT = 32
"""Tokens of the prompt before the decoded ones."""
STEPS = 128
"""Decode steps."""


def speeds(engine: Path, vocabulary: int, seed: int) -> dict[str, float]:
    """Returns tokens per second of decoding and of reading a prompt, by made-up tokens, once each."""
    from tensorwright import LLM, SamplingParams

    def seconds(llm: LLM, prompt: list[int], steps: int) -> tuple[float, float]:
        """Returns the time to the first token, and that of all tokens after it."""
        params = SamplingParams(max_tokens=steps + 1, temperature=0.0, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        (output,) = llm.generate([{"prompt_token_ids": prompt}], params)
        wall = time.perf_counter() - start
        first = float(output.metrics.time_to_first_token)
        return first, wall - first

    tokens = np.random.default_rng(seed).integers(0, vocabulary, (2, PROMPT)).tolist()
    limits = {"max_num_tokens": PROMPT, "max_batch_size": 1, "kv_cache_memory": "64MiB"}
    with LLM(engine, enable_prefix_caching=False, **limits) as llm:
        seconds(llm, tokens[0], 8)  # pages the weights in
        _, decode = seconds(llm, tokens[1][:CONTEXT], STEPS)
        prefill, _ = seconds(llm, tokens[1], 0)
    return {"decode": STEPS / decode, "prefill": PROMPT / prefill}

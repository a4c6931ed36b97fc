"""Runs this project by its public API, with in-flight batching and sampling. Forms: bf16, and specs of quantize."""

from __future__ import annotations

import time
from pathlib import Path

import protocol

NAME = "tensorwright"
FORMS = {"bf16": 16, "int8": 8, "w8a8": 8, "int4": 4, "int4:g128": 4}
PACKAGES = ("tensorwright", "numpy")
REMOVE = ()
ENVIRONMENT: dict[str, str] = {}
ENGINE = "engine"
STEP_TOKENS = 2048
SEQUENCES = 16
KV_CACHE = "512MiB"


def convert(checkpoint: Path, folder: Path, form: str) -> None:
    from tensorwright import build

    folder.mkdir(parents=True, exist_ok=True)
    quantize = None if form == "bf16" else form
    build(checkpoint, folder / ENGINE, dtype="bfloat16", accuracy="none", quantize=quantize, overwrite=True)


def bytes_per_token(checkpoint: Path, folder: Path, form: str) -> int:
    from tensorwright.runtime.engine.engine_dir import open_engine
    from tensorwright.runtime.engine.native import weight_reads

    return int(weight_reads(open_engine(folder / ENGINE))["bytes"])


class Tensorwright:
    def __init__(self, folder: Path, form: str, threads: int):
        from tensorwright import LLM

        self.llm = LLM(folder / ENGINE, threads=threads, max_num_tokens=STEP_TOKENS, max_batch_size=SEQUENCES,
                       enable_prefix_caching=False, kv_cache_memory=KV_CACHE)  # fmt: skip

    def run(self, prompts: list[list[int]], steps: int) -> protocol.Timing:
        from tensorwright import SamplingParams

        requests = [{"prompt_token_ids": p} for p in prompts]
        params = SamplingParams(max_tokens=steps + 1, temperature=0.0, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        outputs = self.llm.generate(requests, params)
        wall = time.perf_counter() - start
        tokens = [output.outputs[0].token_ids[0] for output in outputs]
        if steps == 0:
            return protocol.Timing(wall, 0.0, tokens)
        first = max(o.metrics.time_to_first_token for o in outputs)  # the step in which the last prompt was done
        return protocol.Timing(first, wall - first, tokens)


if __name__ == "__main__":
    protocol.main(convert, Tensorwright, bytes_per_token, PACKAGES)

"""`tensorwright simulate` against a real engine whose steps sleep for as long as the simulator says that they take.

    python benchmarks/simulation_clock.py [--seconds 30] [--step 0.04]

Everything but the computing is real: the engine's thread and scheduler, the client of `LLM`, and the clock. So it shows
what the simulation misses beside the costs of steps, and it can be run on a machine that others use: steps of tens of
milliseconds are long beside what a busy machine adds. The loads are those of simulation_accuracy.py, and so is the
second table, whose costs are how long the steps really slept.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from machine import busy_fraction, describe  # noqa: E402
from simulation_accuracy import KV_BYTES, LIMITS, loads, predict, prompts_of, send, show  # noqa: E402

from tensorwright.insight.simulate.measure_costs import SteppedClient, samples_of  # noqa: E402
from tensorwright.insight.simulate.replica_shape import ReplicaShape  # noqa: E402
from tensorwright.insight.simulate.step_costs import StepCosts, StepSample, fit_costs  # noqa: E402
from tensorwright.runtime.engine import native  # noqa: E402
from tensorwright.runtime.engine.options import EngineOptions  # noqa: E402

VOCABULARY = 512
OPTIONS = EngineOptions(
    kv_cache_bytes=KV_BYTES,
    max_batch_size=LIMITS["max_batch_size"],
    max_num_tokens=LIMITS["max_num_tokens"],
    max_prefill_chunk=LIMITS["max_num_tokens"],
    max_prompt_logprob_rows=1,
    threads=1,
    load="map",
    enable_prefix_caching=True,
    max_queue_size=LIMITS["max_queue_size"],
)
SHAPE = ReplicaShape(
    max_seq_len=2048, block_size=32, block_bytes=(131072,), group_windows=(0,), kv_cache_bytes=KV_BYTES,
    max_batch_size=OPTIONS.max_batch_size, max_num_tokens=OPTIONS.max_num_tokens, max_chunk=OPTIONS.max_prefill_chunk,
    max_queue=OPTIONS.max_queue_size, prefix_cache=True,
)  # fmt: skip


class SleepingExecutor:
    """Runs steps that take their time and compute nothing (runtime/bindings/python_executor.h)."""

    def __init__(self, costs: StepCosts):
        self._costs = costs

    def facts(self) -> dict[str, Any]:
        return {
            "vocab_size": VOCABULARY, "max_seq_len": SHAPE.max_seq_len, "block_size": SHAPE.block_size,
            "block_bytes": list(SHAPE.block_bytes), "group_windows": list(SHAPE.group_windows),
        }  # fmt: skip

    def allocate(self, blocks: list[int], max_tokens: int, max_rows: int, max_seqs: int) -> None:
        self._logits = np.zeros((max_rows, VOCABULARY), np.float32)

    def run(self, step: Any) -> np.ndarray:
        begin = time.perf_counter()
        tokens = np.diff(step.seq_starts).tolist()
        pairs, reads = SHAPE.attention(list(zip(tokens, step.context_lens.tolist(), strict=True)))
        rows = len(step.logit_rows)
        seconds = self._costs.of(StepSample(len(step.token_ids), len(tokens), rows, pairs, reads, 0.0))
        time.sleep(max(0.0, begin + seconds - time.perf_counter()))
        return self._logits[:rows]

    def copy_block(self, group: int, source: int, target: int) -> None:
        """There is nothing to copy."""

    def close(self) -> None:
        """There is nothing to close."""


def start(costs: StepCosts) -> SteppedClient:
    options = native.load_module().EngineOptions()
    options.kv_cache_bytes, options.max_batch_size = KV_BYTES, OPTIONS.max_batch_size
    options.max_num_tokens, options.max_chunk = OPTIONS.max_num_tokens, OPTIONS.max_prefill_chunk
    options.max_queue, options.prefix_cache = OPTIONS.max_queue_size, OPTIONS.enable_prefix_caching
    options.threads, options.trace_steps = 1, True
    return SteppedClient(native.load_module().Engine(SleepingExecutor(costs), options), OPTIONS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each load, about")
    parser.add_argument("--step", type=float, default=0.04, help="seconds of the shortest step")
    args = parser.parse_args()
    costs = StepCosts((1, 512), (args.step, 3 * args.step), 1e-7, 0.0, args.step / 100, 0.0, "made up")
    print(describe(), f"others use {busy_fraction():.0%} of the machine", flush=True)
    table: dict[str, dict[str, tuple[float, ...]]] = {}
    for number, (name, traffic) in enumerate(loads(SHAPE, costs, args.seconds, 0).items()):
        client = start(costs)
        try:
            measured = send(client, traffic, prompts_of(traffic, VOCABULARY, number))
            own = fit_costs(samples_of(client.stop(), SHAPE), "the run itself")
        finally:
            client.close()
        predicted, afterwards = predict(SHAPE, costs, traffic), predict(SHAPE, own, traffic)
        table[name] = {figure: (predicted[figure], measured[figure], afterwards[figure]) for figure in measured}
        print(f"  {name}: {len(traffic)} requests", flush=True)
    show([table], "predicted / measured", 0)
    show([table], "with the costs of the run itself", 2)


if __name__ == "__main__":
    main()

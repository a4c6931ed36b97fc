"""Times steps and generation of target cuda with models of published shapes and random weights.

    python benchmarks/gpu/cuda_shapes.py make CONFIG.json OUT [--sm 90] [--quantize int4]    here: no GPU, no weights
    python benchmarks/gpu/cuda_shapes.py run OUT [--json FILE]                               on the machine with the GPU

`make` writes the plan of a model of which there is a config alone, and the sizes of its weights. `run` fills a file of
weights with random numbers, opens the executor by itself, and times single steps; then it lets the engine with its
scheduler and its sampler generate. Seconds of a step are from the begin of run() until its logits are in the host's
memory. The floor is each weight and each key and value read once, at the rate of a copy on the device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

WEIGHTS, FACTS = "weights.json", "facts.json"
BLOCK = 32
STEPS = (("decode", 1, 1, 1024), ("decode", 8, 1, 1024), ("decode", 64, 1, 1024), ("decode", 1, 1, 16384),
         ("prefill", 1, 512, 512), ("prefill", 1, 2048, 2048), ("prefill", 1, 8192, 8192))  # fmt: skip
"""(kind, sequences, tokens of each, context)"""
DRAWS = {"greedy": (0.0, 0, 1.0, 0.0, 0.0), "temperature": (0.8, 0, 1.0, 0.0, 0.3), "top_p": (0.8, 0, 0.9, 0.0, 0.3),
         "top_k": (0.8, 50, 0.9, 0.05, 0.3)}  # fmt: skip
"""How tokens are drawn on the GPU, beside steps whose logits all travel: temperature, top_k, top_p, min_p, and the
random number."""
BATCHES = (1, 8, 64)
PROMPT, ANSWER = 512, 128
MAX_SEQ_LEN = 32768
PIECE = 1 << 28


def make(config: Path, out: Path, sm: int, quantize: str | None, dtype: str, max_step: tuple[int, int]) -> None:
    from tensorwright.builder.emit.cuda.emit import plan_graph
    from tensorwright.builder.emit.cuda.plan_file import to_bytes
    from tensorwright.builder.emit.step_limits import max_rows
    from tensorwright.builder.graphs import import_tracing, rewrite_graph, trace_model
    from tensorwright.builder.options import BuildOptions
    from tensorwright.builder.phases import Phases
    from tensorwright.builder.target.interface import find_target
    from tensorwright.models.config_only import ConfigOnly
    from tensorwright.plugins.gpu.compile import compile_kernel

    seqs, tokens = max_step
    options = BuildOptions(target="cuda", dtype=dtype, max_seq_len=MAX_SEQ_LEN, accuracy="none", quantize=quantize,
                           sm=(sm,), max_batch_size=seqs, max_num_tokens=tokens)  # fmt: skip
    checkpoint, target, phases = ConfigOnly(config), find_target("cuda"), Phases.since(None, None)
    import_tracing()
    from tensorwright.builder.trace.declare_tensors import declare_tensors

    declare_tensors(checkpoint)
    graph, _ = trace_model(options, target, checkpoint, phases)
    report = rewrite_graph(graph, target, checkpoint, phases)
    facts = report.graph.facts
    planned = plan_graph(report.graph, checkpoint, facts.dtype, (tokens, max_rows(seqs, tokens), seqs))
    planner, instructions = planned.traced(sm)
    plan = planned.plan(sm, instructions, tuple(compile_kernel(spec, sm) for spec in planner.specs))
    out.mkdir(parents=True, exist_ok=True)
    (out / f"sm_{sm}.plan").write_bytes(to_bytes(plan))
    stored = [
        {"offset": offset, "bytes": size, "dtype": planned.emitter.file.tensor(str(number), "").dtype,
         "shape": planned.emitter.file.tensor(str(number), "").shape}
        for number, (offset, size) in enumerate(plan.weights)
    ]  # fmt: skip
    (out / WEIGHTS).write_text(json.dumps({"bytes": plan.weights_bytes, "tensors": stored}) + "\n")
    read = sum(one["bytes"] for one in stored)
    facts_out = {"sm": sm, "config": config.name, "quantize": quantize, "dtype": facts.dtype, "weight_bytes": read,
                 "kv_bytes_of_a_token": planned.block_bytes / facts.block_size, "kernels": len(plan.kernels),
                 "instructions": len(plan.instructions), "vocab_size": facts.vocab_size}  # fmt: skip
    (out / FACTS).write_text(json.dumps(facts_out, indent=1) + "\n")
    print(json.dumps(facts_out))


def write_weights(listed: dict[str, Any], path: Path) -> None:
    """Writes random numbers of the size of trained ones: products keep the scale of what they multiply."""
    rng = np.random.default_rng(0)
    pool = rng.standard_normal(1 << 22, dtype=np.float32)
    with path.open("wb") as file:
        file.truncate(listed["bytes"])
        for one in listed["tensors"]:
            file.seek(one["offset"])
            scale = (one["shape"][-1] if len(one["shape"]) > 1 else 1.0) ** -0.5
            file.write(_random_bytes(one, pool, scale))


def _random_bytes(one: dict[str, Any], pool: np.ndarray, scale: float) -> bytes:
    dtype, count = one["dtype"], int(np.prod(one["shape"]))
    if dtype == "float32":
        return np.resize(np.abs(pool[:1024]) if len(one["shape"]) == 1 else pool, count).astype(np.float32).tobytes()
    if dtype in ("int32", "int8"):
        words = np.frombuffer(pool.tobytes(), np.int32) * np.int32(-1640531535)
        return np.resize(words, -(-one["bytes"] // 4)).tobytes()[: one["bytes"]]
    small = pool * np.float32(scale * (0.1 if "int4" in dtype else 1.0))
    if dtype == "bfloat16":
        return np.resize((small.view(np.uint32) >> 16).astype(np.uint16), count).tobytes()
    return np.resize(small.astype(np.float16), count).tobytes()


def step_of(seqs: int, tokens: int, context: int, vocab: int) -> tuple[Any, ...]:
    """Returns the arguments of a step: the blocks of all sequences lie in random order."""
    rng = np.random.default_rng(1)
    width = -(-context // BLOCK)
    table = rng.permutation(seqs * width).astype(np.int32).reshape(seqs, width)
    position = np.arange(context - tokens, context)
    slots = (table[:, position // BLOCK] * BLOCK + position % BLOCK).astype(np.int32).reshape(-1)
    ids = rng.integers(0, vocab, seqs * tokens).astype(np.int32)
    starts = (np.arange(seqs + 1) * tokens).astype(np.int32)
    rows = (starts[1:] - 1).astype(np.int32)
    lengths = np.full(seqs, context, np.int32)
    return ids, np.tile(position, seqs).astype(np.int32), starts, lengths, rows, [(table, slots)]


def run(out: Path, report: str | None, place: Path, copy_rate: float, graphs: bool, draws: bool) -> None:
    from tensorwright.runtime import _runtime
    from tensorwright.runtime.engine.cuda.library import cublaslt_names

    facts = json.loads((out / FACTS).read_text())
    weights = place / "weights.bin"
    begin = time.perf_counter()
    write_weights(json.loads((out / WEIGHTS).read_text()), weights)
    made = time.perf_counter()

    def opened() -> Any:
        return _runtime.CudaExecutor(
            str(out / f"sm_{facts['sm']}.plan"),
            str(weights),
            0,
            cublaslt=cublaslt_names(),
            graphs=graphs,
            threads=0,
            draws=draws,
        )

    executor = opened()
    loaded = time.perf_counter()
    own = executor.facts()
    print(f"{own['device']}: weights made in {made - begin:.1f} s, loaded in {loaded - made:.1f} s "
          f"({facts['weight_bytes'] / (loaded - made) / 1e9:.1f} GB/s)", flush=True)  # fmt: skip
    most_seqs, most_tokens = own["max_batch_size"], own["max_num_tokens"]
    blocks = max(seqs * -(-context // BLOCK) for _, seqs, _, context in STEPS)
    executor.allocate([blocks], most_tokens, min(own["max_rows"], most_tokens), most_seqs)
    rows: list[dict[str, Any]] = []
    for kind, seqs, tokens, context in STEPS:
        if seqs * tokens > most_tokens:
            continue
        arguments = step_of(seqs, tokens, context, own["vocab_size"])
        logits = executor.step(*arguments)
        times = executor.step_seconds(*arguments, 20 if kind == "decode" else 5)[2:]
        drawn = {name: statistics.median(executor.step_seconds(*arguments, 20, [how] * seqs)[2:]) * 1e3
                 for name, how in DRAWS.items()} if kind == "decode" and draws else {}  # fmt: skip
        read = facts["weight_bytes"] + facts["kv_bytes_of_a_token"] * seqs * context
        row = {"case": f"{kind} {seqs} x {context if tokens == 1 else tokens}", "ms": statistics.median(times) * 1e3,
               "least_ms": min(times) * 1e3, "finite": bool(np.isfinite(logits).all()),
               "floor_ms": read / copy_rate * 1e3, "drawn_ms": drawn}  # fmt: skip
        rows.append(row)
        print(f"{row['case']:20} {row['ms']:9.3f} ms (least {row['least_ms']:.3f}), bytes once {row['floor_ms']:.3f} "
              f"({row['floor_ms'] / row['ms']:.0%}){'' if row['finite'] else '  NOT FINITE'}"
              + "".join(f"; {name} {ms:.3f}" for name, ms in drawn.items()), flush=True)  # fmt: skip
    print(executor.counters())
    executor.close()
    served = [_generate(opened(), batch, own) for batch in BATCHES]
    for row in served:
        print(f"engine, batch {row['batch']:3}: {row['tokens_per_second']:9.1f} tokens/s, {row['ms']:.3f} ms a step, "
              f"prompts {row['prefill_tokens_per_second']:.0f} tokens/s", flush=True)  # fmt: skip
    weights.unlink()
    if report:
        Path(report).write_text(json.dumps({**facts, **own, "steps": rows, "engine": served}, indent=1) + "\n")


def _generate(executor: Any, batch: int, own: dict[str, Any]) -> dict[str, Any]:
    """Lets the engine answer so many random prompts at once, greedily."""
    from tensorwright.runtime import _runtime

    options = _runtime.EngineOptions()
    options.max_batch_size = own["max_batch_size"]
    options.max_num_tokens = options.max_chunk = own["max_num_tokens"]
    options.max_prompt_rows = 1
    options.max_queue = batch
    options.prefix_cache = False
    options.kv_cache_bytes = sum(own["block_bytes"]) * (-(-(PROMPT + ANSWER) // BLOCK) + 1) * batch
    engine = _runtime.Engine(executor, options)
    rng = np.random.default_rng(2)
    walls = []
    for round_ in range(2):  # the first makes graphs
        sampling = _runtime.Sampling()
        sampling.max_tokens, sampling.temperature, sampling.ignore_eos = ANSWER, 0.0, True
        begin = time.perf_counter()
        for i in range(batch):
            prompt = rng.integers(0, own["vocab_size"], PROMPT).astype(np.int32)
            engine.submit(1000 * round_ + i, prompt, sampling)
        done, firsts, last = 0, {}, 0.0
        while done < batch:
            for event in engine.wait_events(10.0):
                last = time.perf_counter()
                if event.error:
                    raise SystemExit(f"{event.error_type}: {event.error}")
                if len(event.tokens):
                    firsts.setdefault(event.request_id, last)
                done += event.finish != ""
        walls.append((begin, max(firsts.values()), last))
    engine.shutdown(False)
    begin, first, last = walls[-1]
    seconds = (last - first) / (ANSWER - 1)
    return {"batch": batch, "ms": seconds * 1e3, "tokens_per_second": batch / seconds,
            "prefill_tokens_per_second": batch * PROMPT / (first - begin)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("config", type=Path)
    making.add_argument("out", type=Path)
    making.add_argument("--sm", type=int, default=90)
    making.add_argument("--quantize")
    making.add_argument("--dtype", default="bfloat16")
    making.add_argument("--max-batch-size", type=int, default=64)
    making.add_argument("--max-num-tokens", type=int, default=8192)
    running = commands.add_parser("run")
    running.add_argument("out", type=Path)
    running.add_argument("--json", metavar="FILE")
    running.add_argument("--weights-in", type=Path, default=Path("/dev/shm"), help="the folder of the file of weights")
    running.add_argument(
        "--copy-rate", type=float, default=2.8e12, help="bytes/s that the GPU reads (default: %(default)s)"
    )
    running.add_argument("--no-graphs", action="store_true")
    running.add_argument("--no-draws", action="store_true", help="the host draws all tokens")
    args = parser.parse_args()
    if args.command == "make":
        make(args.config, args.out, args.sm, args.quantize, args.dtype, (args.max_batch_size, args.max_num_tokens))
    else:
        run(args.out, args.json, args.weights_in, args.copy_rate, not args.no_graphs, not args.no_draws)


if __name__ == "__main__":
    sys.exit(main())

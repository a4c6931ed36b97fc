"""What LoRA adapters cost: tokens per second of 8 sequences that decode, with 0, 1 and 8 adapters of rank 16 in a step.

    python benchmarks/lora.py FOLDER [--threads 2] [--tokens 64] [--repeats 5] [pico] [qwen2.5-0.5b]

FOLDER keeps engines and adapters for another run. For each model (pico in bfloat16, and the shape of a model of 0.5
billion weights with random ones, in int4): an engine without room for adapters, one with room and requests that name
none, and requests that name one adapter together or one each. Engines take turns within a repeat, so that a machine
that grows slower is no fault of one of them; each figure is the median. A prefill of 512 tokens is measured with 0 and
1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tensorwright import LLM, SamplingParams, build
from tensorwright.engine_format.adapter_places import AdapterPlaces
from tensorwright.engine_format.file_names import CPU_ADAPTERS

sys.path.insert(0, str(Path(__file__).parent))

import machine
import shapes

BATCH = 8
RANK = 16
PREFILL = 512
ROOT = Path(__file__).resolve().parent.parent


def engine_of(name: str, folder: Path) -> Path:
    engine = folder / f"{name}-engine"
    if engine.exists():
        return engine
    if name == "pico":
        return build(ROOT / "models" / "pico", engine, accuracy="none").path
    model = folder / f"{name}-model"
    if not model.exists():
        shapes.make(name, model)
    return build(model, engine, quantize="int4", dtype="bfloat16", accuracy="none", max_seq_len=2048).path


def adapters_of(name: str, engine: Path, folder: Path) -> dict[str, Path]:
    """Makes as many adapters of all modules as there are sequences."""
    places = AdapterPlaces.from_bytes(engine / CPU_ADAPTERS, (engine / CPU_ADAPTERS).read_bytes())
    made = {}
    for number in range(BATCH):
        place = made[str(number)] = folder / f"{name}-adapter{number}"
        if place.exists():
            continue
        place.mkdir(parents=True)
        rng = np.random.default_rng(number)
        tensors = {}
        for module, (outputs, inputs) in places.modules.items():
            for side, shape in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
                values = 0.01 * rng.standard_normal(shape, np.float32)
                tensors[f"base_model.model.{module}.lora_{side}.weight"] = values
        save_file(tensors, place / "adapter_model.safetensors")
        (place / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": RANK}))
    return made


def decode_rate(llm: LLM, names: list[str | None], tokens: int) -> float:
    """Tokens per second of sequences that decode together, from their first token on."""
    params = [
        SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False, adapter=name)
        for name in names
    ]
    prompts = [{"prompt_token_ids": [100 + number, *range(5, 21)]} for number in range(len(names))]
    times = [output.metrics.time_per_output_token for output in llm.generate(prompts, params)]
    return len(names) / statistics.mean(seconds for seconds in times if seconds is not None)


def prefill_seconds(llm: LLM, name: str | None, number: int) -> float:
    prompt = {"prompt_token_ids": [1 + number, *(5 + i % 900 for i in range(PREFILL - 1))]}
    begin = time.perf_counter()
    llm.generate(prompt, SamplingParams(max_tokens=1, temperature=0, detokenize=False, adapter=name))
    return time.perf_counter() - begin


def measure(name: str, folder: Path, threads: int, tokens: int, repeats: int) -> dict[str, float]:
    engine = engine_of(name, folder)
    adapters = adapters_of(name, engine, folder)
    options = {"threads": threads, "kv_cache_memory": "256MiB", "enable_prefix_caching": False}
    rates: dict[str, list[float]] = {}
    with LLM(engine, **options) as plain, LLM(engine, adapters=adapters, **options) as ready:
        cases: dict[str, tuple[LLM, list[str | None]]] = {
            "engine without room for adapters": (plain, [None] * BATCH),
            "0 adapters": (ready, [None] * BATCH),
            "1 adapter": (ready, ["0"] * BATCH),
            "8 adapters": (ready, [str(number) for number in range(BATCH)]),
        }
        for repeat in range(repeats + 1):  # The first is not counted.
            for case, (llm, names) in cases.items():
                rate = decode_rate(llm, names, tokens)
                if repeat:
                    rates.setdefault(f"decode, tokens/s, {case}", []).append(rate)
            for case, adapter in (("0 adapters", None), ("1 adapter", "0")):
                seconds = prefill_seconds(ready, adapter, repeat)
                if repeat:
                    rates.setdefault(f"prefill of {PREFILL}, tokens/s, {case}", []).append(PREFILL / seconds)
    return {case: statistics.median(values) for case, values in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", default=["pico", "qwen2.5-0.5b"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_intermixed_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    print(machine.describe(), f"busy {machine.wait_until_idle():.0%}")
    table = {}
    for name in args.models:
        table[name] = measure(name, args.folder, args.threads, args.tokens, args.repeats)
        for case, rate in table[name].items():
            print(f"{name:16}{case:56}{rate:10.1f}")
    if args.json is not None:
        args.json.write_text(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()

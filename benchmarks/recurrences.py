"""The share of a prefill that recurrences take, on int4 engines of a few layers with the widths of published models.

    python benchmarks/recurrences.py FOLDER [--threads 2] [--tokens 512] [--repeats 5] [SHAPE ...]

For each shape: milliseconds of one prefill, and of the convolutions, scans and delta rules in it. The layers of a model
are alike, so a few of them in the proportion of the whole have the same shares. Engines stay in FOLDER for another run.
With --build they are only made.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tensorwright import build
from tensorwright.runtime import _runtime

sys.path.insert(0, str(Path(__file__).parent))

import shapes
from profile_ops import profile, step_inputs

SMALL = {"vocab_size": 1024, "max_position_embeddings": 4096, "tie_word_embeddings": True}
"""A prefill computes the logits of one row, so a small vocabulary takes next to nothing from the shares."""

SHAPES: dict[str, dict[str, Any]] = {
    "lfm2-1.2b": {
        **shapes.SHAPES["lfm2-1.2b"],
        **SMALL,
        "num_hidden_layers": 8,
        "layer_types": ["full_attention" if layer in (2, 4, 6) else "conv" for layer in range(8)],
    },
    "granite-4.0-h-1b": {
        **SMALL,
        "model_type": "granitemoehybrid",
        "hidden_size": 1536,
        "shared_intermediate_size": 4096,
        "intermediate_size": 4096,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "num_hidden_layers": 10,
        "layer_types": ["full_attention" if layer == 5 else "linear_attention" for layer in range(10)],
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "mamba_n_heads": 48,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
        "mamba_expand": 2,
        "position_embedding_type": "nope",
    },
    "qwen3.5-4b": {
        **SMALL,
        "model_type": "qwen3_5_text",
        "hidden_size": 2560,
        "intermediate_size": 9216,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
    "mamba-790m": {
        **SMALL,
        "model_type": "mamba",
        "hidden_size": 1536,
        "intermediate_size": 3072,
        "num_hidden_layers": 6,
        "state_size": 16,
        "expand": 2,
        "conv_kernel": 4,
        "time_step_rank": 96,
    },
}


def make_engine(name: str, folder: Path) -> Path:
    """Returns the folder of an int4 engine of one of SHAPES. It is built unless it is there already."""
    out = folder / name / "engine"
    if not out.exists():
        shapes.SHAPES[name] = SHAPES[name]
        model = shapes.make(name, folder / name / "model")
        build(model, out, dtype="bfloat16", quantize="int4", max_seq_len=2048, accuracy="none")
    return out


def measure(engine: Path, threads: int, tokens: int, repeats: int) -> tuple[float, dict[str, float]]:
    """Returns the seconds of the fastest of some prefills, and those of each recurrence in it by its instruction."""
    cpu = engine / "cpu"
    executor = _runtime.CpuExecutor(str(cpu / "plan.bin"), str(cpu / "weights.bin"), threads, "map")
    facts = executor.facts()
    groups = len(facts["group_windows"])
    *rest, tables = step_inputs(1, 0, tokens, facts["block_size"])
    executor.allocate([-(-tokens // facts["block_size"])] * groups, tokens, 1, 1, 2)
    runs = [profile(executor, (*rest, tables * groups, [1]), 1) for _ in range(repeats)]
    wall, ops = min(runs, key=lambda run: run[0])
    return wall, {name: row["seconds"] for name, row in ops.items() if name.startswith("carried_")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("shape", nargs="*", help=f"of {', '.join(SHAPES)}; default: all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--build", action="store_true", help="only make the engines")
    args = parser.parse_args()

    from machine import describe

    print(describe(), f"threads {args.threads}, prefill {args.tokens}")
    for name in args.shape or SHAPES:
        engine = make_engine(name, args.folder)
        if args.build:
            continue
        wall, found = measure(engine, args.threads, args.tokens, args.repeats)
        parts = ", ".join(f"{op} {s * 1e3:.2f} ms ({s / wall:.1%})" for op, s in sorted(found.items()))
        print(f"{name}: {wall * 1e3:.1f} ms; {parts}")


if __name__ == "__main__":
    main()

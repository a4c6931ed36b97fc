"""Which engines TensorRT for RTX builds here, without a GPU: the tables of docs/tensorrt.md.

    python benchmarks/tensorrt_matrix.py pairs           pico, each type and format on each SM
    python benchmarks/tensorrt_matrix.py families        a tiny model of each family, all SMs of a kind in one engine
    python benchmarks/tensorrt_matrix.py large           the shape of a Llama with 1.24 B parameters, weights random

Prints Markdown rows as they come. No plan is deserialized and no kernel runs: that needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KINDS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "float16": ((75, 80, 86, 89, 120), {"dtype": "float16"}),
    "bfloat16": ((80, 86, 89, 120), {"dtype": "bfloat16"}),
    "float32": ((80, 86, 89, 120), {"dtype": "float32"}),
    "int4": ((80, 86, 89, 120), {"dtype": "bfloat16", "quantize": "int4"}),
    "int4, plugin": ((80, 86, 89, 120), {"dtype": "bfloat16", "quantize": "int4", "int4_kernel": "plugin"}),
    "int8": ((75, 80, 86, 89, 120), {"dtype": "float16", "quantize": "int8"}),
    "fp8": ((89, 120), {"dtype": "bfloat16", "quantize": "fp8"}),
    "int8 cache": ((75, 80, 86, 89, 120), {"dtype": "float16", "kv_cache_dtype": "int8"}),
}
FAMILY_KINDS = ("float16", "bfloat16", "int4", "fp8")
WIDE = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16}
"""Heads of the tiny models have 8 dimensions; the GPU kernels take 16 and more."""
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "vocab_size": 128_256,
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def run(model: Path, name: str, kind: str, sms: tuple[int, ...]) -> None:
    """Builds one engine and prints its row."""
    from tensorwright import build
    from tensorwright.errors import TensorwrightError

    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tensorwright-matrix-") as folder:
        options = {**KINDS[kind][1], "target": "tensorrt-rtx", "accuracy": "none", "sm": list(sms)}
        where = ", ".join(map(str, sms)) or "default"
        try:
            result = build(model, Path(folder) / "engine", **options)
        except TensorwrightError as error:
            text = " ".join(str(error).split())
            print(f"| {name} | {kind} | {where} | {type(error).__name__}: {text[:300]} |", flush=True)
            return
    notes, whole = result.report["tensorrt"], result.report["peak_memory_bytes"]
    child = notes["peak_memory_bytes"]
    columns = (
        name, kind, where, f"{notes['plan_bytes'] / 1e6:.2f}", f"{notes['kernel_bytes'] / 1e6:.3f}",
        f"{notes['seconds']:.1f}", f"{time.perf_counter() - begin:.0f}", f"{child['anonymous'] / 1e6:.0f}",
        f"{child['resident'] / 1e6:.0f}", f"{whole['anonymous'] / 1e6:.0f}",
        json.dumps(notes["layers"]["plugins"]).strip("{}").replace('"', ""),
    )  # fmt: skip
    print("| " + " | ".join(columns) + " |", flush=True)


def run_pairs() -> None:
    for kind, (sms, _) in KINDS.items():
        for sm in sms:
            run(ROOT / "models/pico", "pico", kind, (sm,))
        run(ROOT / "models/pico", "pico", kind, sms)
        if kind != "fp8":
            run(ROOT / "models/pico", "pico", kind, ())


def run_families(only: list[str]) -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    from support.tiny_families import FAMILIES
    from support.tiny_models import make_tiny

    with tempfile.TemporaryDirectory() as folder:
        for family in only or FAMILIES:
            own = {"head_dim"} if family == "falcon" else set()  # falcon has no such option
            wide = {name: value for name, value in WIDE.items() if name not in own}
            model = make_tiny(Path(folder) / family, family, **wide)
            for kind in FAMILY_KINDS:
                run(model, family, kind, KINDS[kind][0])


def run_large() -> None:
    import numpy as np
    from safetensors.numpy import save_file

    sys.path.insert(0, str(ROOT / "tests"))
    from support.large_checkpoint import llama_shapes

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(LLAMA))
        tensors = {}
        for name, shape in llama_shapes(LLAMA).items():
            tensors[name] = rng.standard_normal(shape, np.float32).astype(np.float16) * np.float16(0.02)
        save_file(tensors, model / "model.safetensors")
        del tensors
        for kind in ("bfloat16", "int4"):
            run(model, "llama 1.24 B", kind, (80, 89))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["pairs", "families", "large"])
    parser.add_argument("family", nargs="*")
    options = parser.parse_args()
    head = (
        "model",
        "kind",
        "SM",
        "plan MB",
        "kernels MB",
        "build s",
        "all s",
        "child MB",
        "with files",
        "parent MB",
        "plugins",
    )
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
    if options.what == "pairs":
        run_pairs()
    elif options.what == "families":
        run_families(options.family)
    else:
        run_large()


if __name__ == "__main__":
    main()

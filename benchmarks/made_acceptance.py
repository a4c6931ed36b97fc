"""Speculation at a chosen acceptance: what proposals bring to a model of real size, if they are right so often.

    python benchmarks/made_acceptance.py OUT [--shape qwen2.5-0.5b] [--right 0.4 0.6 0.8] [--quantize int4]
                                             [--batch 1 4] [--rounds 3] [--json FILE]

It writes a checkpoint whose greedy answer is known: each token has one that follows it, a fixed permutation. All
matrices are read and multiplied as in a trained model, but the layers add nothing to the embedding, and a row of the
output matrix is the embedding of the token before. The checkpoint has a layer that predicts further tokens (MTP), made
alike, with an embedding of its own: for a part of the tokens it is another token's, and then the proposal is wrong.
So proposals are right with the chosen probability, each by itself, and take the time that such a layer takes, the whole
vocabulary included. Texts and tokens are the same with and without proposals, or the run fails.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tensorwright import LLM, SamplingParams, build

TOKENS = 96
PROMPT = 32
SURE = 20.0
"""The logit of the token that follows. Those of all others are some 3.5 at most."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a dense decoder."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int


SHAPES = {
    "tiny": Shape(64, 128, 2, 4, 2, 16, 512),
    "qwen2.5-0.5b": Shape(896, 4864, 24, 14, 2, 64, 151936),
    "llama-3.2-1b": Shape(2048, 8192, 16, 32, 8, 64, 128256),
}


def config_of(shape: Shape) -> dict[str, Any]:
    """Returns the config of a GLM-4.5 whose layers are all dense: a Llama with a layer that predicts further tokens."""
    return {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate, "moe_intermediate_size": 64, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "vocab_size": shape.vocab, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "attention_bias": False,
        "use_qk_norm": False, "partial_rotary_factor": 1.0, "first_k_dense_replace": 1000, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False, "dtype": "bfloat16", "eos_token_id": None, "bos_token_id": None,
    }  # fmt: skip


def write_checkpoint(folder: Path, shape: Shape, right: float) -> None:
    """Writes the checkpoint. right: the part of the tokens whose follower the further layer knows."""
    draw = torch.Generator().manual_seed(1)
    embedding = torch.randn(shape.vocab, shape.hidden, generator=draw)
    followers = torch.randperm(shape.vocab, generator=draw)  # token t is followed by followers[t]
    output = torch.empty_like(embedding)
    output[followers] = embedding * (SURE / shape.hidden)
    own = embedding.clone()
    wrong = torch.rand(shape.vocab, generator=draw) >= right
    own[wrong] = embedding[(torch.arange(shape.vocab) + 1) % shape.vocab][wrong]
    tensors = {
        "model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(shape.hidden), "lm_head.weight": output,
    }  # fmt: skip
    width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for layer in range(shape.layers + 1):
        name = f"model.layers.{layer}."
        matrices = {
            "self_attn.q_proj": (width, shape.hidden), "self_attn.k_proj": (kv_width, shape.hidden),
            "self_attn.v_proj": (kv_width, shape.hidden), "mlp.gate_proj": (shape.intermediate, shape.hidden),
            "mlp.up_proj": (shape.intermediate, shape.hidden),
        }  # fmt: skip
        tensors |= {f"{name}{key}.weight": 0.02 * torch.randn(*size, generator=draw) for key, size in matrices.items()}
        tensors[f"{name}self_attn.o_proj.weight"] = torch.zeros(shape.hidden, width)
        tensors[f"{name}mlp.down_proj.weight"] = torch.zeros(shape.hidden, shape.intermediate)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}{norm}.weight"] = torch.ones(shape.hidden)
    further = f"model.layers.{shape.layers}."
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{further}{norm}.weight"] = torch.ones(shape.hidden)
    tensors[f"{further}embed_tokens.weight"] = own
    tensors[f"{further}eh_proj.weight"] = torch.eye(shape.hidden, 2 * shape.hidden)
    folder.mkdir(parents=True)
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_of(shape), indent=1), encoding="utf-8")


def measure(llm: LLM, batch: int, vocab: int) -> tuple[float, list[Any], int, int]:
    """Returns tokens per second after the first token, the answers, and how many tokens were proposed and right."""
    prompts = [{"prompt_token_ids": [(17 * i + 31 * j) % vocab for j in range(PROMPT)]} for i in range(batch)]
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True, detokenize=False)
    begin = time.perf_counter()
    outputs = llm.generate(prompts, params)
    seconds = time.perf_counter() - begin - max(o.metrics.time_to_first_token or 0.0 for o in outputs)
    proposed, right = (sum(getattr(o.metrics, n) for o in outputs) for n in ("draft_tokens", "accepted_tokens"))
    return batch * (TOKENS - 1) / seconds, [list(o.outputs[0].token_ids) for o in outputs], proposed, right


def compare(engine: Path, shape: Shape, right: float, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures each form in turn, and returns a row for each batch. The best round counts."""
    forms = [None, *args.speculative]
    llms = [LLM(engine, kv_cache_memory="64MiB", enable_prefix_caching=False, speculative=form) for form in forms]
    rows = []
    for batch in args.batch:
        best, counts = [0.0] * len(forms), [(0, 0)] * len(forms)
        for _ in range(args.rounds):
            answers = []
            for i, llm in enumerate(llms):
                rate, answer, *counts[i] = measure(llm, batch, shape.vocab)  # type: ignore[list-item]
                best[i] = max(best[i], rate)
                answers.append(answer)
            if any(answer != answers[0] for answer in answers):
                raise SystemExit("the answers differ")
        cells = [
            f"{form or 'plain'} {rate:.1f} ({rate / best[0]:.2f}, {good} of {proposed})"
            for form, rate, (proposed, good) in zip(forms, best, counts, strict=True)
        ]
        print(f"right {right:.2f}, batch {batch}: {'; '.join(cells)}", flush=True)
        rows.append({"right": right, "batch": batch, "forms": forms, "tokens_per_second": best, "counts": counts})
    for llm in llms:
        llm.shutdown()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="a folder for checkpoints and engines, which are removed again")
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-0.5b")
    parser.add_argument("--right", type=float, nargs="+", default=[0.4, 0.6, 0.8])
    parser.add_argument("--quantize", help="formats of the weights, as in build-engine")
    parser.add_argument("--speculative", nargs="+", default=["heads"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    shape, rows = SHAPES[args.shape], list[dict[str, Any]]()
    for right in args.right:
        model, engine = args.out / "model", args.out / "engine"
        for folder in (model, engine):
            shutil.rmtree(folder, ignore_errors=True)
        write_checkpoint(model, shape, right)
        build(model, engine, accuracy="none", heads="mtp", quantize=args.quantize)
        shutil.rmtree(model)
        rows += compare(engine, shape, right, args)
        shutil.rmtree(engine)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

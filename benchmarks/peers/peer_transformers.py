"""Runs transformers on torch's CPU kernels, as its users do: bf16, cache on, logits of the last position only."""

from __future__ import annotations

import json
import time
from pathlib import Path

import protocol

NAME = "transformers"
FORMS = {"bf16": 16}
PACKAGES = ("torch==2.13.0", "transformers", "safetensors")
REMOVE = ()
ENVIRONMENT: dict[str, str] = {}


def convert(checkpoint: Path, folder: Path, form: str) -> None:
    """Links to the checkpoint, since nothing must be converted."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in checkpoint.iterdir():
        (folder / file.name).symlink_to(file.resolve())


def bytes_per_token(checkpoint: Path, folder: Path, form: str) -> int:
    from safetensors import safe_open

    tied = json.loads((folder / "config.json").read_text()).get("tie_word_embeddings", False)
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a dict)
                if tied or "embed_tokens" not in name:
                    total += tensors.get_tensor(name).nbytes
    return total


class Transformers:
    def __init__(self, folder: Path, form: str, threads: int):
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def run(self, prompts: list[list[int]], steps: int) -> protocol.Timing:
        with self.torch.inference_mode():
            ids = self.torch.tensor(prompts)
            start = time.perf_counter()
            out = self.model(ids, use_cache=True, logits_to_keep=1)
            token = out.logits[:, -1:].argmax(-1)
            first = token[:, 0].tolist()
            middle = time.perf_counter()
            for _ in range(steps):
                out = self.model(token, past_key_values=out.past_key_values, use_cache=True)
                token = out.logits[:, -1:].argmax(-1)
            return protocol.Timing(middle - start, time.perf_counter() - middle, first)


if __name__ == "__main__":
    protocol.main(convert, Transformers, bytes_per_token, PACKAGES)

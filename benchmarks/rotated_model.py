"""Copies of a checkpoint that compute what it computes, with the residual in other axes, for quantization_accuracy.py.

h: [T, C] the residual, Q: [C, C] orthogonal, D: [d, d] the same for every head of v.

    norm(h) * g, read by W      ->  norm(h Q), read by W diag(g) Q       (a norm of the root of the mean square keeps Q)
    h + x W^T                   ->  h Q + x (Q^T W)^T
    embedding E, lm_head E      ->  embedding E Q, lm_head E diag(g) Q   (two matrices from here on)
    v = x V^T, read by O        ->  D^T V in every head of v, O D in every head that attends

This is the part of QuaRot (https://arxiv.org/abs/2404.00456) that costs nothing while a model runs. For checkpoints of
one file whose tensors have Llama's names.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

READERS = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight")
WRITERS = ("o_proj.weight", "down_proj.weight")
NORMS = {"input_layernorm": READERS[:3], "post_attention_layernorm": READERS[3:]}
AXES = ("own", "principal", "hadamard", "principal+hadamard")
"""What the residual is turned to: nothing, so that only the norms are folded; the principal axes of its values on the
built-in text, in which a few channels are far larger than the others; by a random Hadamard matrix; or both in turn."""


def rotate_model(model: Path, folder: Path, axes: str, seed: int = 0) -> Path:
    """Returns a copy of a checkpoint, in float32, with its residual in some of AXES."""
    from safetensors.torch import load_file, save_file
    from torch import Tensor, from_numpy

    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}
    fold_norms(tensors, config["num_hidden_layers"])
    config["tie_word_embeddings"] = False
    width = config["hidden_size"]
    q = principal_axes(model) if "principal" in axes else np.eye(width)
    if "hadamard" in axes:
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], width)
        q = q @ (signs[:, None] * hadamard(width))
    turn: Tensor = from_numpy(q)
    for name, tensor in tensors.items():
        if name.endswith((*READERS, "embed_tokens.weight", "lm_head.weight")):
            tensors[name] = tensor @ turn
        elif name.endswith(WRITERS):
            tensors[name] = turn.T @ tensor
    if "hadamard" in axes:
        head = from_numpy(hadamard(config["head_dim"]))
        for name, tensor in tensors.items():
            if name.endswith("v_proj.weight"):
                tensors[name] = (head.T @ tensor.reshape(-1, len(head), width)).reshape(tensor.shape)
            elif name.endswith("o_proj.weight"):
                tensors[name] = (tensor.reshape(width, -1, len(head)) @ head).reshape(tensor.shape)
    stored = {name: tensor.float().contiguous() for name, tensor in tensors.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def fold_norms(tensors: dict, layers: int) -> None:
    """Multiplies the weight of each norm into the matrices that read it, and makes it ones. lm_head is then a matrix of
    its own."""
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    tensors["lm_head.weight"] = head * tensors["model.norm.weight"]
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * 0 + 1
    for layer in range(layers):
        for norm, readers in NORMS.items():
            weight = tensors[f"model.layers.{layer}.{norm}.weight"]
            for reader in readers:
                part = "self_attn" if reader in READERS[:3] else "mlp"
                tensors[f"model.layers.{layer}.{part}.{reader}"] *= weight
            tensors[f"model.layers.{layer}.{norm}.weight"] = weight * 0 + 1


def hadamard(size: int) -> np.ndarray:
    """Returns an orthogonal matrix [size, size] of equal magnitudes; size is a power of two, or 12 times one."""
    made = paley_12() if size % 3 == 0 else np.ones((1, 1))
    while len(made) < size:
        made = np.kron(made, [[1, 1], [1, -1]])
    if len(made) != size:
        raise SystemExit(f"a Hadamard matrix of {size} rows is not made here: only of 2^n and 12 * 2^n")
    return made / np.sqrt(size)


def paley_12() -> np.ndarray:
    """Returns the Hadamard matrix of 12 rows that the squares modulo 11 make."""
    squares = {i * i % 11 for i in range(1, 11)}
    differences = np.subtract.outer(np.arange(11), np.arange(11)) % 11
    inner = np.where(differences == 0, 0, np.where(np.isin(differences, list(squares)), 1, -1))
    skew = np.block([[np.zeros((1, 1)), np.ones((1, 11))], [-np.ones((11, 1)), inner]])
    made: np.ndarray = skew + np.eye(12)
    return made


def principal_axes(model: Path, tokens: int = 8192, length: int = 512) -> np.ndarray:
    """Returns the principal axes [C, C] of normalised residuals between the layers, on the built-in text."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    from tensorwright.builder.measure.sample import bundled_text

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(bundled_text().content).ids[:tokens]
    total = 0
    with torch.no_grad():
        for start in range(0, len(ids), length):
            states = network(torch.tensor([ids[start : start + length]]), output_hidden_states=True).hidden_states
            for state in states[:-1]:
                rows = state[0].double()
                rows = rows / rows.square().mean(-1, keepdim=True).sqrt()
                total = total + rows.T @ rows
    axes: np.ndarray = torch.linalg.eigh(total)[1].numpy()
    return axes

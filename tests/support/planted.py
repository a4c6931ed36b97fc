"""Outliers that tests plant in the activations of a tiny model, and texts to calibrate it on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tensorwright.builder.calibrate.sample import Sample
from tensorwright.builder.measure.reference import reference_inputs
from tensorwright.builder.measure.streamed_weights import StreamedWeights
from tensorwright.ir.graph import Graph
from tensorwright.ir.walk import Walk
from tensorwright.models.checkpoint import Checkpoint

IDS = np.random.default_rng(1).integers(3, 100, 64).tolist()
SAMPLE = Sample([np.random.default_rng(2 + i).integers(3, 100, 32).tolist() for i in range(4)], "made")
TEXT = " ".join(f"t{i}" for i in np.random.default_rng(0).integers(3, 100, 80))
OUTLIERS = [3, 17]


def plant_outliers(path: Path) -> None:
    """Makes two channels behind each norm 100 times as large, and the columns that read them as much smaller. The model
    computes what it did."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("layernorm.weight"):
            tensor[OUTLIERS] *= 100
        elif name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight")):
            tensor[:, OUTLIERS] /= 100
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def logits(graph: Graph, checkpoint: Checkpoint) -> np.ndarray:
    with StreamedWeights(checkpoint) as weights:
        graph, inputs = reference_inputs(graph, checkpoint, IDS)
        return Walk(graph, inputs, weights).finish()[0].numpy()

"""Runs ONNX Runtime GenAI with its own model builder: int4, int8 arithmetic (accuracy level 4)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import protocol

NAME = "onnxruntime-genai"
FORMS = {"int4": 4}
PACKAGES = ("onnxruntime-genai", "onnxruntime", "onnx_ir", "torch==2.13.0", "transformers")
REMOVE = ()
ENVIRONMENT: dict[str, str] = {}


def convert(checkpoint: Path, folder: Path, form: str) -> None:
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-m", str(checkpoint), "-o", str(folder)]
    options = ["-p", form, "-e", "cpu", "-c", str(folder / "cache"), "--extra_options", "int4_accuracy_level=4"]
    subprocess.run(command + options, check=True)


def bytes_per_token(checkpoint: Path, folder: Path, form: str) -> int:
    import onnx_ir

    graph = onnx_ir.load(folder / "model.onnx").graph
    constants = {name: value.const_value.nbytes for name, value in graph.initializers.items()}
    users: dict[str, list[tuple[str, str]]] = {}
    for node in graph:
        for value in node.inputs:
            if value is not None:
                users.setdefault(value.name, []).append((node.op_type, node.outputs[0].name))
    return protocol.read_at_each_token(constants, users, {"Cast", "DequantizeLinear", "Reshape", "Transpose"})


class OnnxRuntime:
    def __init__(self, folder: Path, form: str, threads: int):
        import onnxruntime_genai

        self.lib = onnxruntime_genai
        config = onnxruntime_genai.Config(str(folder))
        options = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": options}}))
        self.model = onnxruntime_genai.Model(config)

    def run(self, prompts: list[list[int]], steps: int) -> protocol.Timing:
        import numpy as np

        length = len(prompts[0])
        params = self.lib.GeneratorParams(self.model)
        end = length + steps + 2
        params.set_search_options(max_length=end, min_length=end, batch_size=len(prompts), do_sample=False)
        generator = self.lib.Generator(self.model, params)
        ids = np.array(prompts, np.int32)
        start = time.perf_counter()
        generator.append_tokens(ids if len(prompts) > 1 else ids[0])
        generator.generate_next_token()
        middle = time.perf_counter()
        for _ in range(steps):
            generator.generate_next_token()
        done = time.perf_counter()
        first = [int(generator.get_sequence(i)[length]) for i in range(len(prompts))]
        return protocol.Timing(middle - start, done - middle, first)


if __name__ == "__main__":
    protocol.main(convert, OnnxRuntime, bytes_per_token, PACKAGES)

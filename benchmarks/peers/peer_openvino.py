"""Runs OpenVINO GenAI's LLMPipeline: int4 in groups of 128, with AWQ or without, and int8; otherwise its defaults.

Its KV cache is int8 then. AWQ is the form that needs no text.
"""

from __future__ import annotations

import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import protocol

NAME = "openvino-genai"
FORMS = {"int4:g128": 4, "int4:g128:awq": 4, "int8": 8}
PACKAGES = ("torch==2.13.0", "optimum-intel[openvino]", "openvino-genai", "openvino-tokenizers")
REMOVE = ("torchvision",)  # this comes in a build that does not fit torch's
ENVIRONMENT: dict[str, str] = {}
GROUPS = ["int4", "--group-size", "128", "--ratio", "1.0"]
OPTIONS = {"int4:g128": GROUPS, "int4:g128:awq": [*GROUPS, "--awq"], "int8": ["int8"]}
STEP_TOKENS = 8192
"""More than the prompts of any case, so that one step computes all of them."""


def convert(checkpoint: Path, folder: Path, form: str) -> None:
    command = [sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino", "-m", str(checkpoint)]
    task = ["--task", "text-generation-with-past", "--weight-format", *OPTIONS[form], str(folder)]
    subprocess.run(command + task, check=True)


def bytes_per_token(checkpoint: Path, folder: Path, form: str) -> int:
    root = ElementTree.parse(folder / "openvino_model.xml").getroot()
    kinds = {layer.get("id", ""): layer.get("type", "") for layer in root.iterfind("./layers/layer")}
    constants = {
        layer.get("id", ""): int(data.get("size", "0"))
        for layer in root.iterfind("./layers/layer")
        if layer.get("type") == "Const" and (data := layer.find("data")) is not None
    }
    users: dict[str, list[tuple[str, str]]] = {}
    for edge in root.iterfind("./edges/edge"):
        target = edge.get("to-layer", "")
        users.setdefault(edge.get("from-layer", ""), []).append((kinds[target], target))
    return protocol.read_at_each_token(constants, users, {"Convert", "Subtract", "Multiply", "Reshape"})


class OpenVino:
    def __init__(self, folder: Path, form: str, threads: int):
        import openvino
        import openvino_genai

        self.tensor, self.lib = openvino.Tensor, openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = STEP_TOKENS
        options: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self.pipeline = openvino_genai.LLMPipeline(str(folder), "CPU", scheduler_config=scheduler, **options)

    def run(self, prompts: list[list[int]], steps: int) -> protocol.Timing:
        import numpy as np

        ids = np.array(prompts, np.int64)
        options = self.lib.GenerationConfig()
        options.max_new_tokens, options.ignore_eos, options.do_sample = steps + 1, True, False
        inputs = self.lib.TokenizedInputs(self.tensor(ids), self.tensor(np.ones_like(ids)))
        start = time.perf_counter()
        result = self.pipeline.generate(inputs, options)
        wall = time.perf_counter() - start
        sizes = list(result.perf_metrics.raw_metrics.m_batch_sizes)
        if sizes != [len(prompts)] * (steps + 1):
            raise RuntimeError(f"the prompts were not computed in one step: tokens of each step were {sizes}")
        first = result.perf_metrics.get_ttft().mean / 1000
        return protocol.Timing(first, wall - first, [int(tokens[0]) for tokens in result.tokens])


if __name__ == "__main__":
    protocol.main(convert, OpenVino, bytes_per_token, PACKAGES)

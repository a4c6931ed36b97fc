"""Lists the names of an engine's files, relative to the engine's folder."""

from __future__ import annotations

CONFIG = "config.json"
CHECKSUMS = "checksums.txt"
REPORT = "build-report.json"
GRAPH = "graph.txt"
"""The graph at stage "cached", as text."""
KEPT_WEIGHTS = "weights.safetensors"
"""The tensors of the checkpoint, in an engine that keeps them."""

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
GENERATION_CONFIG = "generation_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
"""The default chat template. The others are in the folder CHAT_TEMPLATES."""
CHAT_TEMPLATES = "additional_chat_templates"
CHAT_TEMPLATE_SUFFIX = ".jinja"

CPU_PLAN = "cpu/plan.bin"
CPU_WEIGHTS = "cpu/weights.bin"
ONNX_MODEL = "onnx/model.onnx"
ONNX_DATA = "onnx/model.onnx.data"
ONNX_IO = "onnx/io.json"
TENSORRT_ENGINE = "tensorrt/rank0.engine"
TENSORRT_IO = "tensorrt/io.json"

"""What atheris feeds with bytes, and tests with the corpus that it found: each takes any bytes and lets nothing out but
a bug. Typed errors are answers.
"""

from __future__ import annotations

from collections.abc import Callable

from fuzz import file_targets as files
from fuzz import request_targets as requests
from fuzz.answer_target import answer
from fuzz.connection_target import connection
from fuzz.transfer_target import transfer

OF_REQUESTS = (
    answer, requests.body, requests.chat, connection, requests.grammar, requests.guided, requests.sampling_params,
    requests.shape, transfer, requests.triton,
)  # fmt: skip
OF_FILES = (
    files.adapter, files.checkpoint, files.engine, files.events, files.gguf, files.graph, files.manifest,
    files.safetensors_header, files.tokenizer,
)  # fmt: skip
TARGETS: dict[str, Callable[[bytes], None]] = {target.__name__: target for target in (*OF_REQUESTS, *OF_FILES)}

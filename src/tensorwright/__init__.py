"""Tensorwright: compile a Hugging Face checkpoint into an engine and serve it.

The public names load on first use, so that `import tensorwright` needs neither torch nor transformers.
"""

from __future__ import annotations

__version__ = "0.1.0"

# This file imports nothing, because a command can handle Ctrl-C only after this file has run (tensorwright/entry.py).
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tensorwright.builder.build import build as build
    from tensorwright.runtime.api.c_library import get_cmake_dir as get_cmake_dir
    from tensorwright.runtime.api.c_library import get_include as get_include
    from tensorwright.runtime.api.c_library import get_library_dir as get_library_dir
    from tensorwright.runtime.api.llm import LLM as LLM
    from tensorwright.runtime.guided.params import GuidedDecodingParams as GuidedDecodingParams
    from tensorwright.runtime.requests.outputs import CompletionOutput as CompletionOutput
    from tensorwright.runtime.requests.outputs import Logprob as Logprob
    from tensorwright.runtime.requests.outputs import RequestOutput as RequestOutput
    from tensorwright.runtime.requests.sampling_params import SamplingParams as SamplingParams

_HOMES = {
    "LLM": "tensorwright.runtime.api.llm",
    "GuidedDecodingParams": "tensorwright.runtime.guided.params",
    "SamplingParams": "tensorwright.runtime.requests.sampling_params",
    "RequestOutput": "tensorwright.runtime.requests.outputs",
    "CompletionOutput": "tensorwright.runtime.requests.outputs",
    "Logprob": "tensorwright.runtime.requests.outputs",
    "build": "tensorwright.builder.build",
    "get_cmake_dir": "tensorwright.runtime.api.c_library",
    "get_include": "tensorwright.runtime.api.c_library",
    "get_library_dir": "tensorwright.runtime.api.c_library",
}

__all__ = [
    "LLM",
    "CompletionOutput",
    "GuidedDecodingParams",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "build",
    "get_cmake_dir",
    "get_include",
    "get_library_dir",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tensorwright' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

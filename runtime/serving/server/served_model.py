"""Says what the server needs of a model: LLM has it, and so has whatever computes a model's requests elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from tensorwright.runtime.engine.adapters import LoadedAdapter
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.options import EngineOptions
from tensorwright.runtime.requests.cache_events import CacheEvents
from tensorwright.runtime.requests.engine_client import Observer
from tensorwright.runtime.requests.pinned_prefixes import PinTable
from tensorwright.runtime.requests.prompts import Prompt
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.requests.sampling_params import SamplingParams


class ServedModel(Protocol):
    """A model behind the server. Its members are those of LLM (runtime/api/llm.py), which documents them."""

    engine: EngineDir
    options: EngineOptions
    chat_template: str | None
    tool_parser: str
    reasoning_parser: str
    sampling_defaults: dict[str, Any]
    pins: PinTable

    @property
    def adapters(self) -> dict[str, LoadedAdapter]: ...

    @property
    def running(self) -> bool: ...

    @property
    def trouble(self) -> str: ...

    @property
    def stalled_seconds(self) -> float: ...

    def generate_async(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> RequestHandle: ...

    def load_adapter(self, name: str, path: str | Path) -> LoadedAdapter: ...

    def unload_adapter(self, name: str) -> None: ...

    def cache_events(self, after: str | None = None, *, limit: int = ...) -> CacheEvents: ...

    def get_stats(self) -> dict[str, Any]: ...

    def add_observer(self, observer: Observer) -> None: ...

    def shutdown(self) -> None: ...

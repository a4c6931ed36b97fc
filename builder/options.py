"""What a build can be asked for, and how it tells what it is doing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tensorwright.errors import CheckpointError, InvalidOptionError
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.plugins.paged_attention.quantize import KV_CACHE_DTYPES
from tensorwright.plugins.quantized_matmul.formats import parse_spec

TARGETS = ("cpu",)
DTYPES = ("auto", "float32", "bfloat16")
ACCURACY = ("none", "quick", "full")
MOST_POSITIONS = 1 << 24
"""As runtime/core/plan.cc says."""

Progress = Callable[[str, int, int], None]
"""(phase, done, total): called with done 0 when a phase starts, then as it goes; total 0 where it is unknown."""


@dataclass(frozen=True)
class BuildOptions:
    """What decides the engine, the checkpoint aside. Raises InvalidOptionError for a value that does not exist."""

    target: str = "cpu"
    dtype: str = "auto"
    max_seq_len: int | None = None
    accuracy: str = "quick"
    quantize: str | None = None
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        choices = {"target": TARGETS, "dtype": DTYPES, "accuracy": ACCURACY, "kv_cache_dtype": KV_CACHE_DTYPES}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InvalidOptionError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        if self.quantize is not None:
            parse_spec(self.quantize)
        length = self.max_seq_len
        if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 2):
            raise InvalidOptionError(f"max_seq_len must be a whole number of at least 2, not {length!r}")

    def dtype_for(self, checkpoint: Checkpoint) -> str:
        """The activation type: "auto" keeps bfloat16 checkpoints and runs all others in float32."""
        if self.dtype != "auto":
            return self.dtype
        return "bfloat16" if checkpoint.native_dtype == "bfloat16" else "float32"

    def max_seq_len_for(self, checkpoint: Checkpoint) -> int:
        """The engine's context: the model's own, unless a shorter one is asked for."""
        key = "max_position_embeddings"
        if key not in checkpoint.config and "n_positions" in checkpoint.config:
            key = "n_positions"
        own: Any = checkpoint.config.get(key)
        if own is None and self.max_seq_len is None:
            raise InvalidOptionError(f"{checkpoint.path}/config.json gives no {key}: say max_seq_len (--max-seq-len)")
        if own is not None and (not isinstance(own, int) or isinstance(own, bool) or own < 2):
            raise CheckpointError(
                f"{checkpoint.path}/config.json: {key} must be a whole number of at least 2, not {own!r}; correct it"
            )
        length: int = self.max_seq_len if self.max_seq_len is not None else own  # type: ignore[assignment]
        if own is not None and length > own:
            raise InvalidOptionError(f"max_seq_len must be at most the model's {own} positions, not {length}")
        if length > MOST_POSITIONS:
            raise InvalidOptionError(f"max_seq_len must be at most {MOST_POSITIONS}, not {length}; say a shorter one")
        return length


@dataclass
class Phases:
    """Times every phase of a build and tells `progress` of it."""

    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def run(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """Around one phase; gives a function of (done, total) for use inside it."""
        self.progress(name, 0, 0)
        begin = time.perf_counter()
        yield lambda done, total: self.progress(name, done, total)
        self.seconds[name] = round(time.perf_counter() - begin, 3)

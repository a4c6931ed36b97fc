"""What a build can be asked for, and how it tells what it is doing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tensorwright.engine_format.dtypes import full_name
from tensorwright.engine_format.kv_cache import KV_CACHE_DTYPES
from tensorwright.engine_format.targets import DTYPE_CHOICES, TARGET_NAMES, TARGETS, TENSORRT_TARGETS, TargetFormat
from tensorwright.engine_format.weight_formats import QuantizeSpec
from tensorwright.errors import CheckpointError, InvalidOptionError
from tensorwright.models.checkpoint import Checkpoint

ACCURACY = ("none", "quick", "full")
ACTIVATIONS = ("auto", "int8")
INT4_KERNELS = ("tensorrt", "plugin")
ONLY_FOR = {
    "activations": ("onnx",),
    **dict.fromkeys(("sm", "max_batch_size", "max_num_tokens", "int4_kernel"), TENSORRT_TARGETS),
}
"""Options that some targets have, and which. Others refuse them, and their config.json does not know them."""
MOST_TOKENS = 1 << 20
"""Of a step of an engine with fixed limits."""
MOST_POSITIONS = 1 << 24
"""As runtime/core/plan/plan.cc says."""

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
    keep_weights: bool = False
    activations: str = "auto"
    sm: tuple[int, ...] = ()
    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    int4_kernel: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", full_name(self.dtype))
        choices = {"target": TARGET_NAMES, "accuracy": ACCURACY, "kv_cache_dtype": KV_CACHE_DTYPES}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InvalidOptionError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        if self.dtype not in DTYPE_CHOICES:
            own = " or ".join(self.target_format.dtypes)
            raise InvalidOptionError(f"dtype must be auto, {own} on target {self.target}, not {self.dtype!r}")
        _ = self.quantize_spec  # raises for a text that names no formats
        length = self.max_seq_len
        if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 2):
            raise InvalidOptionError(f"max_seq_len must be a whole number of at least 2, not {length!r}")
        self._check_own()

    @property
    def target_format(self) -> TargetFormat:
        return TARGETS[self.target]

    @cached_property
    def quantize_spec(self) -> QuantizeSpec | None:
        """The formats that `quantize` names, None without. Raises InvalidOptionError for what the target cannot do."""
        return None if self.quantize is None else self.target_format.parse_quantize(self.quantize)

    def _check_own(self) -> None:
        """Options of ONLY_FOR."""
        for name, targets in ONLY_FOR.items():
            if getattr(self, name) not in (None, (), "auto") and self.target not in targets:
                raise InvalidOptionError(
                    f"{name} is an option of target {' and '.join(targets)}; leave it out for {self.target}"
                )
        if self.activations not in ACTIVATIONS:
            raise InvalidOptionError(f"activations must be one of {', '.join(ACTIVATIONS)}, not {self.activations!r}")
        if self.activations != "auto" and self.quantize is None:
            raise InvalidOptionError(
                f"activations={self.activations!r} is for quantized weights, and these stay as they are; "
                "leave it out, or say quantize"
            )
        for name in ("max_batch_size", "max_num_tokens"):
            value = getattr(self, name)
            if value is not None and not (type(value) is int and 1 <= value <= MOST_TOKENS):
                raise InvalidOptionError(f"{name} must be a whole number from 1 to {MOST_TOKENS}, not {value!r}")
        if any(type(sm) is not int for sm in self.sm) or len(set(self.sm)) != len(self.sm):
            raise InvalidOptionError(f"sm must be distinct whole numbers, such as 80 and 89, not {list(self.sm)!r}")
        if self.int4_kernel not in (None, *INT4_KERNELS):
            raise InvalidOptionError(f"int4_kernel must be {' or '.join(INT4_KERNELS)}, not {self.int4_kernel!r}")

    def record(self) -> dict[str, Any]:
        """As config.json keeps them: without the options of other targets."""
        options = asdict(self)
        if not self.keep_weights:
            del options["keep_weights"]
        return {name: value for name, value in options.items() if self.target in ONLY_FOR.get(name, TARGETS)}

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
    """Times every phase of a build and tells `progress` of it.

    begin: of the build, a moment of time.perf_counter. What passes between two phases counts to the second, so that all
    of them together are the time from `begin` to the end of the last.
    """

    progress: Progress
    begin: float = field(default_factory=time.perf_counter)
    seconds: dict[str, float] = field(default_factory=dict)
    """Of every phase so far."""

    def __post_init__(self) -> None:
        self._end = self.begin

    @classmethod
    def since(cls, begin: float | None, progress: Progress | None) -> Phases:
        """Of a build that began then, by default now; what passed since is phase "start"."""
        tell = progress or (lambda phase, done, total: None)
        if begin is None:
            return cls(tell)
        phases = cls(tell, begin)
        phases.mark("start")
        return phases

    @property
    def total(self) -> float:
        """Seconds from `begin` to the end of the last phase."""
        return self._end - self.begin

    @contextmanager
    def run(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """Around one phase; gives a function of (done, total) for use inside it."""
        self.progress(name, 0, 0)
        yield lambda done, total: self.progress(name, done, total)
        self.mark(name)

    def mark(self, name: str) -> None:
        """What passed since the end of the last phase was phase `name`."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._end
        self._end = now


def process_start() -> float:
    """When this process was started, as a moment of time.perf_counter; now, where there is no /proc."""
    now = time.perf_counter()
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return now
    return now - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK"))

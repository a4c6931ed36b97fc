"""Gives the metadata of a GGUF file by type, and knows which of them were asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tensorwright.errors import CheckpointError
from tensorwright.models.gguf.gguf_file import GgufFile

ARCHITECTURE = "general.architecture"
_NEUTRAL: dict[str, Any] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attn_logit_softcapping": 0.0,
    "embedding_scale": 1.0,
    "expert_count": 0,
    "expert_shared_count": 0,
    "expert_used_count": 0,
    "final_logit_softcapping": 0.0,
    "leading_dense_block_count": 0,
    "logit_scale": 1.0,
    "nextn_predict_layers": 0,
    "pooling_type": 0,
    "residual_scale": 1.0,
}
"""Keys of an architecture with the value that changes nothing, which files of models without the part may have."""


class Metadata:
    """The metadata of one file. Keys of the architecture are named without its name: "block_count".

    Raises CheckpointError for values that are missing or of another type.
    """

    def __init__(self, file: GgufFile):
        self._file, self._values = file, file.metadata
        self.architecture = self.text(ARCHITECTURE)
        self._asked: set[str] = set()

    def text(self, key: str, default: str | None = None) -> str:
        """Returns a text, by its whole key."""
        value = self._values.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a text")
        return value

    def token(self, name: str) -> int | None:
        """Returns the number of a special token; None if the file names none."""
        key = f"tokenizer.ggml.{name}_token_id"
        value = self._values.get(key)
        if value is not None and (not isinstance(value, int) or not 0 <= value < 1 << 31):
            raise self._wrong(key, "the number of a token")
        return value

    def has(self, key: str) -> bool:
        """Returns whether the architecture has this key."""
        return self._own(key) in self._values

    def whole(self, key: str, default: int | None = None) -> int:
        """Returns a whole number from 0 to 2^31 - 1."""
        value = self._ask(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
            raise self._wrong(self._own(key), "a whole number below 2^31")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """Returns a number, rounded to float32's shortest decimal: the file's 1e-5 is 1e-5, not its nearest float32."""
        value = self._ask(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not np.isfinite(value):
            raise self._wrong(self._own(key), "a number")
        return float(str(np.float32(value)))

    def numbers(self, key: str, count: int) -> list[int]:
        """Returns `count` whole numbers: a list, or one that stands for all."""
        value = self._ask(key, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return [self.whole(key)] * count
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iub" or len(value) != count:
            raise self._wrong(self._own(key), f"a whole number or {count} of them")
        return [int(each) for each in value]

    def skip(self, *keys: str) -> None:
        """Notes keys that say nothing of the model's arithmetic, or nothing that is not known from elsewhere."""
        self._asked.update(self._own(key) for key in keys)

    def unknown(self) -> list[str]:
        """Returns the keys of the architecture that nobody asked for, but those that change nothing."""
        own = (key for key in self._values if key.startswith(f"{self.architecture}."))
        return sorted(key for key in own if key not in self._asked and not self._is_neutral(key))

    def _is_neutral(self, key: str) -> bool:
        name, value = key.removeprefix(f"{self.architecture}."), self._values[key]
        if name == "tensor_data_layout":  # How the writer found the weights, in words.
            return isinstance(value, str)
        return name in _NEUTRAL and isinstance(value, (int, float)) and value == _NEUTRAL[name]

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Returns those keys of the architecture that the file lacks."""
        return [self._own(key) for key in keys if not self.has(key)]

    def _own(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def _ask(self, key: str, default: Any) -> Any:
        self._asked.add(self._own(key))
        return self._values.get(self._own(key), default)

    def _wrong(self, key: str, what: str) -> CheckpointError:
        if key not in self._values:
            return self._file.error(f"lacks the metadata {key}; give a whole file, with the metadata of its model")
        value = self._values[key]
        shown = f"{len(value)} values" if isinstance(value, (list, np.ndarray)) else f"{value!r:.100}"
        return self._file.error(f"{key} must be {what}, not {shown}")

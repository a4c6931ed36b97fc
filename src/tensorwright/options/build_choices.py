"""What a user chooses for an engine that is built from a model directory on its first use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorwright.engine_format.dtypes import full_name
from tensorwright.engine_format.engine_config import EngineConfig
from tensorwright.engine_format.kv_cache import AS_ACTIVATIONS
from tensorwright.engine_format.quantize_config import with_config
from tensorwright.engine_format.weight_formats import MAX_RULES_SHOWN, parse_spec, with_sparsity
from tensorwright.errors import InvalidOptionError
from tensorwright.options.build import FIRST_USE, BuildFields
from tensorwright.options.declare import check_values, options_in, same_as
from tensorwright.options.long_contexts import RECENT_SHARE, SINK_TOKENS
from tensorwright.options.text_file import read_text_file


@dataclass(frozen=True)
class BuildChoices:
    """The options that a user may choose for an engine that is built from a model directory on first use.

    BuildFields declares them. The key of a BuildChoices is a part of the engine's key in the cache of engines.
    """

    dtype: str = same_as(BuildFields, "dtype")
    max_seq_len: int | None = same_as(BuildFields, "max_seq_len")
    quantize: str | None = same_as(BuildFields, "quantize")
    quantize_config: str | None = same_as(BuildFields, "quantize_config")
    sparsity: str = same_as(BuildFields, "sparsity")
    kv_cache_dtype: str = same_as(BuildFields, "kv_cache_dtype")
    attention_window: int | None = same_as(BuildFields, "attention_window")
    sink_tokens: int | None = same_as(BuildFields, "sink_tokens")
    kv_budget: int | None = same_as(BuildFields, "kv_budget")
    recent_tokens: int | None = same_as(BuildFields, "recent_tokens")
    sparse_prefill: int | None = same_as(BuildFields, "sparse_prefill")
    calibrate: str = same_as(BuildFields, "calibrate")
    calibration_text: str | None = same_as(BuildFields, "calibration_text")

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", full_name(self.dtype))

    def __str__(self) -> str:
        """Returns the choices in words, for people: of many rules of formats the number only."""
        many = self.quantize is not None and self.quantize.count("=") > MAX_RULES_SHOWN
        formats = parse_spec(self.quantize).summary if many and self.quantize is not None else self.quantize
        kv_cache = "" if self.kv_cache_dtype == AS_ACTIVATIONS else f"{self.kv_cache_dtype} KV cache"
        window = "" if not self.attention_window else f"attention window {self.attention_window}"
        sinks = "" if self.sink_tokens is None else f"{self.sink_tokens} sink tokens"
        budget = "" if not self.kv_budget else f"KV budget {self.kv_budget}"
        recent = "" if self.recent_tokens is None else f"{self.recent_tokens} recent tokens"
        prefill = "" if not self.sparse_prefill else f"sparse prefill {self.sparse_prefill}"
        length = "" if self.max_seq_len is None else f"at most {self.max_seq_len} tokens"
        sparsity = "" if self.sparsity == "none" else f"{self.sparsity} sparse"
        calibrated = "" if self.calibrate == "none" else f"calibrated with {self.calibrate}"
        seen = (window, budget, recent, sinks, prefill)
        choices = (self.dtype, formats, self.quantize_config, sparsity, calibrated, kv_cache, *seen, length)
        return ", ".join(choice for choice in choices if choice)

    @property
    def key(self) -> str:
        """The text that tells these choices from all others: a text counts by what it holds."""
        own = self.spelled_out()
        if own.calibration_text is not None:
            own = replace(own, calibration_text=read_text_file("calibration_text", own.calibration_text).xxh3_128)
        return str(tuple(getattr(own, option.name) for option in options_in(BuildChoices)))

    def without_files(self) -> BuildChoices:
        """Returns the same choices with what the file quantize_config says now. The calibration's text stays a file,
        which the build reads. Raises InvalidOptionError."""
        return replace(self, quantize=asked_formats(self), quantize_config=None, sparsity="none")

    def spelled_out(self) -> BuildChoices:
        """Returns the choices of a first use, without files, in the spelling that the cache's keys use. Raises
        InvalidOptionError for formats that target FIRST_USE lacks."""
        own = self.without_files()
        return replace(own, quantize=None if own.quantize is None else str(FIRST_USE.parse_quantize(own.quantize)))

    def check(self, first_use: bool) -> None:
        """Raises InvalidOptionError for a value that the engine cannot have.

        first_use: whether an engine of target FIRST_USE is to be built. Otherwise the engine exists and is of any
        target.
        """
        check_values(self, BuildChoices)
        asked = asked_formats(self)
        if asked is not None:
            parse = FIRST_USE.parse_quantize if first_use else parse_spec
            parse(asked)

    def check_built(self, config: EngineConfig, path: Path) -> None:
        """Raises InvalidOptionError unless the engine at `path` was built as the choices say. A choice that is left out
        fits any engine."""
        if self.dtype not in ("auto", config.dtype):
            raise _other("dtype", self.dtype, f"{path} is an engine built as {config.dtype}")
        asked = asked_formats(self)
        if asked is not None and parse_spec(asked) not in config.quantize_specs.values():
            specs = config.quantize_specs.items()
            names = [repr(spec.summary if len(spec.rules) > MAX_RULES_SHOWN else name) for name, spec in specs]
            built = " or ".join(dict.fromkeys(names))
            built = f"built as {built}" if built else "without quantized weights"
            option = "quantize" if self.quantize_config is None else "quantize_config"
            raise _other(option, getattr(self, option), f"{path} is an engine {built}")
        if self.kv_cache_dtype not in (AS_ACTIVATIONS, config.kv_cache_dtype):
            found = f"{path} is an engine with a KV cache of {config.kv_cache_dtype!r}"
            raise _other("kv_cache_dtype", self.kv_cache_dtype, found)
        self._check_window(config, path)
        self._check_calibrated(config, path)
        if self.max_seq_len not in (None, config.limits.max_seq_len):
            found = f"{path} is an engine of at most {config.limits.max_seq_len} tokens"
            raise _other("max_seq_len", self.max_seq_len, found)

    def _check_window(self, config: EngineConfig, path: Path) -> None:
        """Raises InvalidOptionError unless attention in the engine sees what the choices say."""
        window = config.build_options.get("attention_window")
        if self.attention_window not in (None, window or 0):
            found = "without an attention window" if window is None else f"with an attention window of {window}"
            raise _other("attention_window", self.attention_window, f"{path} is an engine {found}")
        budget = config.build_options.get("kv_budget")
        if self.kv_budget not in (None, budget or 0):
            found = "without a KV budget" if budget is None else f"with a KV budget of {budget}"
            raise _other("kv_budget", self.kv_budget, f"{path} is an engine {found}")
        recent = config.build_options.get("recent_tokens", (budget or 0) // RECENT_SHARE)
        if self.recent_tokens not in (None, recent):
            raise _other("recent_tokens", self.recent_tokens, f"{path} is an engine with {recent} recent tokens")
        bounded = window is not None or budget is not None
        sinks = config.build_options.get("sink_tokens", SINK_TOKENS if bounded else 0)
        if self.sink_tokens not in (None, sinks):
            raise _other("sink_tokens", self.sink_tokens, f"{path} is an engine with {sinks} sink tokens")
        sparse = config.build_options.get("sparse_prefill")
        if self.sparse_prefill not in (None, sparse or 0):
            found = "without sparse prefill" if sparse is None else f"with sparse prefill {sparse}"
            raise _other("sparse_prefill", self.sparse_prefill, f"{path} is an engine {found}")

    def _check_calibrated(self, config: EngineConfig, path: Path) -> None:
        record = None if config.quantization is None else config.quantization.calibration
        method = "none" if record is None else record.method
        if self.calibrate not in ("none", method):
            raise _other("calibrate", self.calibrate, f"{path} is an engine with calibrate={method!r}")
        if self.calibration_text is None:
            return
        chosen = None if config.quantization is None else config.quantization.choice
        texts = {part.text for part in (record, chosen) if part is not None}
        if read_text_file("calibration_text", self.calibration_text).as_recorded not in texts:
            raise _other("calibration_text", self.calibration_text, f"{path} is an engine that saw no such text")


def asked_formats(options: BuildFields | BuildChoices) -> str | None:
    """Returns the text of the formats that three options ask for: quantize, the rules of a file, and sparsity of the
    layers; None without any.

    Raises InvalidOptionError for a file that cannot be read, and for formats that are not sparse.
    """
    quantize, config = options.quantize, options.quantize_config
    asked = quantize if config is None else with_config(quantize, config)
    return asked if options.sparsity == "none" else with_sparsity(asked)


def _other(option: str, value: Any, found: str) -> InvalidOptionError:
    return InvalidOptionError(f"{option}={value!r}: {found}; build another one")

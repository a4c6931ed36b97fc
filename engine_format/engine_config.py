"""Reads and writes config.json, which says what an engine is.

It holds no time, host or path, so that two builds of one input have the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from tensorwright.engine_format.checksums import REMEDY
from tensorwright.engine_format.file_names import CHECKSUMS, CONFIG
from tensorwright.engine_format.kv_cache import AS_ACTIVATIONS
from tensorwright.engine_format.pooling import GENERATE, PoolingRecord, read_pooling
from tensorwright.engine_format.strict_json import OPTIONAL, as_text, fits, read_value, write_value
from tensorwright.engine_format.targets import TARGETS
from tensorwright.engine_format.weight_formats import QuantizeSpec, parse_spec
from tensorwright.errors import EngineError, InvalidOptionError
from tensorwright.json_text import read_json

FORMAT = "tensorwright-engine"
FORMAT_VERSION = 1
MAX_RANKS = 64
"""The most ranks of a parallel engine. runtime/core/ranks/shared_segment.h has the same number."""
BUILT_IN_TEXT = "built-in text"
"""The name of a text that Tensorwright brings along."""


@dataclass(frozen=True)
class LeftOut:
    """A part of the checkpoint that the engine leaves out: a module, or a layer."""

    reason: str
    tensors: int
    bytes: int
    """Bytes of these tensors in the checkpoint."""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts of the model. A fact is absent if the model's own config.json does not give it."""

    model_type: str | None = field(default=None, metadata=OPTIONAL)
    vocab_size: int
    hidden_size: int | None = field(default=None, metadata=OPTIONAL)
    layers: int | None = field(default=None, metadata=OPTIONAL)
    heads: int | None = field(default=None, metadata=OPTIONAL)
    kv_heads: int | None = field(default=None, metadata=OPTIONAL)
    head_dim: int | None = field(default=None, metadata=OPTIONAL)
    max_position_embeddings: int | None = field(default=None, metadata=OPTIONAL)
    max_seq_len: int | None = field(default=None, metadata=OPTIONAL)
    longrope: dict[str, Any] | None = field(default=None, metadata=OPTIONAL)
    left_out: dict[str, LeftOut] | None = field(default=None, metadata=OPTIONAL)
    """By name, the parts of the checkpoint that are not in the engine."""
    expanded_kv_elements: int | None = field(default=None, metadata=OPTIONAL)
    """The elements of K and V of one position over all layers of latent rows, if every head had its own."""
    bos_token_id: int | None = None
    eos_token_ids: list[int] | None = None
    """Token ids that end a text, where generation_config.json names none."""


@dataclass(frozen=True)
class Limits:
    """The sizes that the engine was built for."""

    max_seq_len: int
    """Tokens of a prompt and its answer together."""
    block_size: int
    """Positions in one block of the KV cache."""
    kv_block_bytes: int
    """Bytes of one block of the KV cache over all layers; 0 for a model without attention."""
    state_bytes: int | None = field(default=None, metadata=OPTIONAL)
    """Bytes of one sequence's states over all recurrent layers; absent for a model without such layers."""


@dataclass(frozen=True, kw_only=True)
class AccuracyRecord:
    """The distance of the engine's logits from those of the reference. A number is None if it is not finite."""

    kind: str | None = field(default=None, metadata=OPTIONAL)
    """One of "quick" and "full"."""
    reference_dtype: str | None = field(default=None, metadata=OPTIONAL)
    text: str | None = field(default=None, metadata=OPTIONAL)
    """What was measured: the built-in text, random token ids, or the name of the user's file."""
    text_xxh3_128: str | None = field(default=None, metadata=OPTIONAL)
    """The hash of the whole text in UTF-8, in hex."""
    measured_on: str | None = field(default=None, metadata=OPTIONAL)
    """The program that computed the logits, if the engine's own executor did not."""
    windows: int | None = field(default=None, metadata=OPTIONAL)
    """The sequences that the text was cut into."""
    tokens: int | None = field(default=None, metadata=OPTIONAL)
    """The positions whose logits were compared."""
    largest_logit_error: float | None = None
    largest_reference_logit: float | None = None
    kl_divergence: float | None = None
    """KL(reference || engine) in nats, the mean over positions."""
    top1_agreement: float | None = None
    perplexity_reference: float | None = None
    perplexity_engine: float | None = None
    largest_hidden_state_error: float | None = field(default=None, metadata=OPTIONAL)
    """Of an engine for embeddings, which has no numbers of logits."""
    largest_reference_hidden_state: float | None = field(default=None, metadata=OPTIONAL)
    least_cosine: float | None = field(default=None, metadata=OPTIONAL)
    """The cosine between the hidden states of engine and reference at the position where it is least."""
    bytes: int | None = field(default=None, metadata=OPTIONAL)
    """Bytes in UTF-8 of the text of all tokens that were predicted."""
    characters: int | None = field(default=None, metadata=OPTIONAL)
    """Unicode code points of that text."""
    bits_per_byte_reference: float | None = field(default=None, metadata=OPTIONAL)
    bits_per_byte_engine: float | None = field(default=None, metadata=OPTIONAL)
    bits_per_character_reference: float | None = field(default=None, metadata=OPTIONAL)
    bits_per_character_engine: float | None = field(default=None, metadata=OPTIONAL)
    output_tokens: int | None = field(default=None, metadata=OPTIONAL)
    """The tokens that output_errors are measured over."""
    output_errors: dict[str, list[float | None]] | None = field(default=None, metadata=OPTIONAL)
    """The relative error of the output of each kind of quantized product, in each layer."""


@dataclass(frozen=True)
class CalibrationRecord:
    """What a text chose of quantized matrices: their codes, scales of their input channels, or channels to keep."""

    method: str
    """The build option `calibrate`."""
    text: str
    """The text that ran through the model: BUILT_IN_TEXT, or the hash of the user's text."""
    tokens: int
    """The tokens of the text that were run."""
    rounded_to_nearest: list[str]
    """Names of quantized matrices that the calibration left out."""
    scale_gains: dict[str, list[float | None]] | None = field(default=None, metadata=OPTIONAL)
    """How much smaller the error of a product became by scales of its input channels, for each kind of matrix a list
    over the layers: 1 where no scales are better. None without such scales."""
    outlier_columns: dict[str, list[int | None]] | None = field(default=None, metadata=OPTIONAL)
    """How many input columns each product keeps as they are, for each kind of matrix a list over the layers. None where
    the method chooses no columns."""


@dataclass(frozen=True, kw_only=True)
class ChoiceRecord:
    """How the build chose formats, where the options leave that to it."""

    method: str
    """"mixed" or "kept"."""
    text: str | None = field(default=None, metadata=OPTIONAL)
    """With "mixed": the text that was run, as in CalibrationRecord."""
    tokens: int | None = field(default=None, metadata=OPTIONAL)
    """The tokens of the text that were run."""
    divergences: dict[str, list[float | None]] | None = field(default=None, metadata=OPTIONAL)
    """With "mixed": what the format of each matrix costs by itself, KL divergence of the logits in nats."""
    decoded: list[str] | None = field(default=None, metadata=OPTIONAL)
    """With "kept": weights that the checkpoint has quantized, and that no format holds."""


@dataclass(frozen=True)
class QuantizationRecord:
    """The formats and sizes of quantized weights, and the error of every weight."""

    spec: QuantizeSpec = field(metadata=as_text(parse_spec))
    tied: bool
    """Whether the embedding and lm_head are one matrix of the checkpoint."""
    bits_per_weight: dict[str, float | None]
    """Bits stored for each weight of the checkpoint, by role; "all" counts every weight."""
    weight_errors: dict[str, list[float | None]]
    """The relative error of each kind of matrix in each layer; None where a layer lacks the matrix."""
    formats: dict[str, list[str | None]] | None = field(default=None, metadata=OPTIONAL)
    """The format of each kind of matrix in each layer, where rules give some of them one of their own; None in a list
    where a layer lacks the matrix, "none" where it is not quantized."""
    choice: ChoiceRecord | None = field(default=None, metadata=OPTIONAL)
    """None if the options name every format."""
    densities: dict[str, list[float | None]] | None = field(default=None, metadata=OPTIONAL)
    """The part of the weights that is kept, of each kind of 2:4 sparse matrix in each layer; absent without such."""
    calibration: CalibrationRecord | None = field(default=None, metadata=OPTIONAL)
    """None if no text chose anything."""

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], where: str = "quantization") -> QuantizationRecord:
        """Reads the record. Raises ValueError, or InvalidOptionError for formats that do not exist."""
        read: QuantizationRecord = read_value(cls, dict(record), where)
        return read


@dataclass(frozen=True)
class SourceFile:
    """A file of the checkpoint: its size, and its xxh3_128 in hex."""

    bytes: int
    xxh3_128: str


@dataclass(frozen=True)
class SourceRecord:
    """The files of the checkpoint that the engine is made from, by relative path, and one hash over all."""

    hash: str
    files: dict[str, SourceFile]
    quantization: str | None = field(default=None, metadata=OPTIONAL)
    """The quantization that the checkpoint was stored with, such as "gptq 4 bits g128"; absent without one."""


@dataclass(frozen=True)
class HeadsRecord:
    """The heads of an engine that propose tokens."""

    kind: str
    """What they are: "eagle3", "medusa", or "mtp", the model's own layer that predicts further tokens."""
    width: int
    """The columns of a feature."""
    vocab_size: int
    """The tokens that they may propose."""
    source: SourceRecord | None = field(default=None, metadata=OPTIONAL)
    """The files that they are made from; absent if these are the model's."""
    at_once: int | None = field(default=None, metadata=OPTIONAL)
    """The tokens that they say at once; absent if it is one."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The content of config.json."""

    tensorwright_version: str
    target: str
    """One of `targets.TARGETS`."""
    model: ModelFacts
    dtype: str
    """The type of the activations."""
    limits: Limits
    build_options: dict[str, Any]
    """The options of the build that its target has, by name: builder/options.py."""
    passes: dict[str, int]
    """The number of times that each pass fired, by name."""
    accuracy: AccuracyRecord | None
    """None if the build did not measure it."""
    quantization: QuantizationRecord | None
    """None if no weight is quantized."""
    source: SourceRecord
    sizes: dict[str, int]
    """Bytes of the files that were written before config.json, by name."""
    heads: HeadsRecord | None = field(default=None, metadata=OPTIONAL)
    """None for an engine without heads that propose tokens."""
    pooling: PoolingRecord | None = field(default=None, metadata=OPTIONAL)
    """None for an engine that generates."""

    @property
    def task(self) -> str:
        """What the engine answers with, one of TASKS."""
        return GENERATE if self.pooling is None else self.pooling.task

    @property
    def tensor_parallel(self) -> int:
        """How many ranks share every layer."""
        return int(self.build_options.get("tensor_parallel", 1))

    @property
    def pipeline_parallel(self) -> int:
        """How many stages share the layers."""
        return int(self.build_options.get("pipeline_parallel", 1))

    @property
    def ranks(self) -> int:
        """How many ranks the engine has; 1 if it is not parallel."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def sms(self) -> tuple[int, ...]:
        """The compute capabilities that a build for GPUs named; () on other targets, or if it left them open."""
        return tuple(self.build_options.get("sm", ()))

    def require_one_rank(self, path: Path, what: str) -> None:
        """Raises InvalidOptionError for a parallel engine. path: the engine. what: what cannot be done with it."""
        if self.ranks > 1:
            raise InvalidOptionError(
                f"{path}: {what} needs an engine of one rank, this one has {self.ranks}; build the model once more "
                "without --tensor-parallel and --pipeline-parallel"
            )

    def require_generation(self, path: Path, what: str) -> None:
        """Raises InvalidOptionError for an engine that draws no tokens. path: the engine. what: what cannot be done
        with it."""
        if self.pooling is not None:
            raise InvalidOptionError(
                f"{path}: {what} needs an engine that generates, and this one was built for task {self.task}; build "
                "the checkpoint with --task generate"
            )

    def run_files(self, rank: int | None = None) -> tuple[str, ...]:
        """Returns the names of the files that one rank runs, or all ranks, the largest first."""
        if self.ranks == 1:
            return TARGETS[self.target].files_for(self.sms)
        ranks = range(self.ranks) if rank is None else (rank,)
        return tuple(name.format(r) for r in ranks for name in TARGETS[self.target].rank_files)

    @property
    def stored_cache_dtype(self) -> str:
        """The element type of the KV cache."""
        return self.dtype if self.kv_cache_dtype == AS_ACTIVATIONS else self.kv_cache_dtype

    @property
    def kv_cache_dtype(self) -> str:
        """The build option: one of KV_CACHE_DTYPES. An engine that is older than the option has the first."""
        return self.build_options.get("kv_cache_dtype", AS_ACTIVATIONS)

    @property
    def quantize_specs(self) -> dict[str, QuantizeSpec]:
        """The formats of the weights by name: by the text of the build option, and by the spelled-out text. {} if no
        weight is quantized."""
        asked = self.build_options.get("quantize")
        specs = [] if self.quantization is None else [self.quantization.spec]
        return {**({} if asked is None else {asked: parse_spec(asked)}), **{str(spec): spec for spec in specs}}

    def to_dict(self) -> dict[str, Any]:
        """Returns config.json as plain values, with the keys in the order of the file."""
        return {"format": FORMAT, "format_version": FORMAT_VERSION, **write_value(self)}

    def to_json(self) -> str:
        """Returns the text of config.json."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_dict(cls, config: dict[str, Any], path: Path) -> EngineConfig:
        """Reads a config that passed `check_format`. Raises EngineError, which names `path` and the field."""
        _check_keys(path, config)
        try:
            sections = {
                "model": read_value(ModelFacts, _with_token_ids(path, config["model"]), "model"),
                "limits": read_value(Limits, config["limits"], "limits"),
                "build_options": _checked_options(config["build_options"]),
                "passes": read_value(dict[str, int], config["passes"], "passes"),
                "accuracy": read_value(AccuracyRecord | None, config["accuracy"], "accuracy"),
                "quantization": _read_quantization(path, config["quantization"]),
                "source": read_value(SourceRecord, config["source"], "source"),
                "sizes": read_value(dict[str, int], config["sizes"], "sizes"),
                "heads": read_value(HeadsRecord, config["heads"], "heads") if "heads" in config else None,
                "pooling": read_pooling(config["pooling"], config["model"]["vocab_size"])
                if "pooling" in config
                else None,
            }
        except (ValueError, InvalidOptionError) as error:
            raise EngineError(f"{path}: {error}; {REMEDY}") from error
        made = cls(**{name: config[name] for name in ("tensorwright_version", "target", "dtype")}, **sections)
        if made.ranks > 1 and not TARGETS[made.target].rank_files:
            raise EngineError(f"{path}: an engine of target {made.target!r} has one rank, not {made.ranks}; {REMEDY}")
        return made


def check_format(path: Path, config: dict[str, Any]) -> None:
    """Raises EngineError unless the content of config.json is of an engine, of this version, of a known target."""
    if config.get("format") != FORMAT:
        what = "a Hugging Face model" if "model_type" in config or "architectures" in config else "something else"
        raise EngineError(f"{path.parent}: not an engine but {what}; build one with: build-engine {path.parent} OUT")
    if config.get("format_version") != FORMAT_VERSION:
        raise EngineError(
            f"{path}: format version {config.get('format_version')!r}, this tensorwright reads {FORMAT_VERSION}; "
            f"build the engine again, or run it with tensorwright {config.get('tensorwright_version', 'of its time')}"
        )
    if config.get("target") not in list(TARGETS):  # a list, because the value may be anything
        raise EngineError(
            f"{path}: built for target {config.get('target')!r}, this runtime runs {', '.join(TARGETS)}; "
            "build the engine again with --target cpu"
        )


def names_engine(config: Any) -> bool:
    """Returns whether the content of a config.json says that it is of an engine."""
    return isinstance(config, dict) and config.get("format") == FORMAT


def is_engine(path: Path) -> bool:
    """Returns whether the directory claims to be an engine, whole or not. A Hugging Face model does not."""
    sums = os.path.exists(path / CHECKSUMS)  # os.path.exists is False where permission is denied, unlike Path.exists.
    try:
        config = read_json((path / CONFIG).read_bytes())
    except (OSError, ValueError):
        return sums
    return names_engine(config) or (sums and not (isinstance(config, dict) and "model_type" in config))


def checked_token_ids(path: Path, listed: Any) -> list[int]:
    """Returns end-of-sequence tokens. listed: one id or a list, from the file `path`. Raises EngineError."""
    ids = listed if isinstance(listed, list) else [listed]
    if not all(_is_count(token) for token in ids):
        raise EngineError(f"{path}: end-of-sequence tokens must be token ids, got {listed!r}; {REMEDY}")
    return ids


def _check_keys(path: Path, config: dict[str, Any]) -> None:
    kinds = {"format": str, "format_version": int, **get_type_hints(EngineConfig)}
    optional = {each.name for each in fields(EngineConfig) if each.metadata == OPTIONAL}
    for key, kind in kinds.items():
        if key in optional and key not in config:
            continue
        if key not in config or not fits(kind, config[key]):
            raise EngineError(f"{path}: {key!r} is missing or of the wrong type; {REMEDY}")
    unknown = sorted(config.keys() - kinds.keys())
    if unknown:
        raise EngineError(f"{path}: unknown keys {', '.join(unknown)} in format version {FORMAT_VERSION}; {REMEDY}")
    dtypes = TARGETS[config["target"]].dtypes
    if config["dtype"] not in dtypes:
        raise EngineError(
            f"{path}: dtype {config['dtype']!r} is none of {', '.join(dtypes)}, which target {config['target']!r} has; "
            f"{REMEDY}"
        )
    states = config["limits"].get("state_bytes")
    if states is not None and (not _is_count(states) or states == 0):
        raise EngineError(f"{path}: limits.state_bytes must be absent or positive, got {states!r}; {REMEDY}")
    sizes = ["max_seq_len", "block_size", *(["kv_block_bytes"] if states is None else [])]
    counts = [("model", "vocab_size"), *(("limits", key) for key in sizes)]
    for section, key in counts:
        value = config[section].get(key)
        if not _is_count(value) or value == 0:
            raise EngineError(f"{path}: {section}.{key} must be a positive integer, got {value!r}; {REMEDY}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _with_token_ids(path: Path, model: dict[str, Any]) -> dict[str, Any]:
    return {**model, "eos_token_ids": checked_token_ids(path, model.get("eos_token_ids") or [])}


def _checked_options(options: dict[str, Any]) -> dict[str, Any]:
    read_value(str, options.get("kv_cache_dtype", AS_ACTIVATIONS), "build_options.kv_cache_dtype")
    for name in ("attention_window", "sink_tokens", "kv_budget", "recent_tokens", "sparse_prefill"):
        read_value(int | None, options.get(name), f"build_options.{name}")
    for name in ("tensor_parallel", "pipeline_parallel"):
        count = read_value(int, options.get(name, 1), f"build_options.{name}")
        if not 1 <= count <= MAX_RANKS:
            raise ValueError(f"build_options.{name} must be 1 to {MAX_RANKS}, not {count}")
    read_value(list[int], list(options.get("sm", ())), "build_options.sm")
    asked = read_value(str | None, options.get("quantize"), "build_options.quantize")
    if asked is not None:
        parse_spec(asked)
    return options


def _read_quantization(path: Path, record: dict[str, Any] | None) -> QuantizationRecord | None:
    try:
        return None if record is None else QuantizationRecord.from_dict(record)
    except (ValueError, InvalidOptionError) as error:
        raise EngineError(
            f"{path}: its record of quantization is not as this version writes it ({error!s:.200}); {REMEDY}"
        ) from error

"""Declares the options of a build, and checks them as a whole."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tensorwright.engine_format.calibrations import CALIBRATIONS, SCALED_FORMATS, Calibration
from tensorwright.engine_format.dtypes import full_name
from tensorwright.engine_format.engine_config import MAX_RANKS
from tensorwright.engine_format.kv_cache import CPU_BLOCK, DECISION_INTERVAL
from tensorwright.engine_format.pooling import EMBED, GENERATE
from tensorwright.engine_format.targets import DTYPE_CHOICES, TARGETS, TargetFormat
from tensorwright.engine_format.weight_formats import KEPT, QuantizeSpec
from tensorwright.errors import CheckpointError, InvalidOptionError
from tensorwright.options.build import BuildFields
from tensorwright.options.build_choices import asked_formats
from tensorwright.options.declare import options_in
from tensorwright.options.long_contexts import MAX_POSITIONS, RECENT_SHARE, SINK_TOKENS

POSITION_COUNTS = ("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length")
"""The words for the number of positions in config.json, the usual one first."""


def named_place(place: str | os.PathLike[str] | None) -> str | None:
    """Returns the value of an option that names a file. BuildOptions checks it."""
    return os.fspath(place) if isinstance(place, os.PathLike) else place


@dataclass(frozen=True)
class BuildOptions(BuildFields):
    """The fields of BuildFields: all that decides the engine, except the checkpoint.

    Raises InvalidOptionError for a value that does not exist, or that the target does not have.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", full_name(self.dtype))
        for name in ("attention_window", "kv_budget", "sparse_prefill"):
            if getattr(self, name) == 0:
                object.__setattr__(self, name, None)
        if self.sm == () and self.target in TARGETS:
            object.__setattr__(self, "sm", self.target_format.default_sms)
        for option in options_in(BuildFields):
            if option.name == "dtype":
                self._check_dtype()
            else:
                option.check(getattr(self, option.name), came="not")
        _ = self.quantize_spec  # raises for a text that names no formats of the target
        for option in options_in(BuildFields):
            option.check_target(getattr(self, option.name), self.target)
        if self.calibrate != "none" and self.asked_formats is None:
            raise InvalidOptionError(
                f"calibrate={self.calibrate!r} is for quantized weights, and these stay as they are; leave it out, or "
                "say quantize"
            )
        spec = self.quantize_spec
        if spec is not None:
            self._check_calibration(spec)
        self._check_ranks()
        self._check_task()
        measured = spec is not None and any(choice.bits is not None for choice in spec.choices)
        if self.calibration_text is not None and self.calibrate == "none" and not measured:
            raise InvalidOptionError(
                "calibration_text is for a calibrated build, or one of mixed formats; leave it out, or say calibrate"
            )
        if self.activations != "auto" and self.asked_formats is None:
            raise InvalidOptionError(
                f"activations={self.activations!r} is for quantized weights, and these stay as they are; "
                "leave it out, or say quantize"
            )

        self._check_long_contexts()
        self._check_sparse_prefill()
        if self.heads is not None and self.keep_weights:
            raise InvalidOptionError(
                "keep_weights is for tensorwright rebuild, which makes no engine with heads without the checkpoint; "
                "leave out keep_weights or heads"
            )
        if self.accuracy == "none":
            for name in ("accuracy_tokens", "accuracy_text"):
                if getattr(self, name) is not None:
                    raise InvalidOptionError(
                        f"{name} is for a measurement, and accuracy is none; leave out one of them"
                    )
        elif self.seen_positions is not None and (self.accuracy_tokens or MAX_POSITIONS) <= self.seen_positions:
            raise InvalidOptionError(
                f"accuracy_tokens must be above the {self.seen_positions} positions up to which {self.bounds} hides "
                f"nothing, or nothing of what it costs is measured, not {self.accuracy_tokens}"
            )

    def _check_long_contexts(self) -> None:
        """Refuses options about what attention sees and the cache keeps that do not go together."""
        window, budget = self.attention_window, self.kv_budget
        if window is not None and budget is not None:
            raise InvalidOptionError(
                "attention_window keeps the last positions of a text and kv_budget those that attention looked at "
                "most; leave out one of them"
            )
        if self.sink_tokens is not None and window is None and budget is None:
            raise InvalidOptionError(
                "sink_tokens are seen besides a window, and attention_window asks for none; say it, or kv_budget, or "
                "leave out sink_tokens"
            )
        if self.recent_tokens is not None and budget is None:
            raise InvalidOptionError(
                "recent_tokens are a part of kv_budget, which is not given; say it, or leave out recent_tokens"
            )
        for name in ("attention_window", "kv_budget"):
            if getattr(self, name) is not None and self.heads is not None:
                raise InvalidOptionError(
                    f"heads propose tokens from all positions of their own cache, which {name} does not bound; leave "
                    f"out heads or {name}"
                )
        if budget is not None and self.ranks > 1:
            raise InvalidOptionError(
                "kv_budget scores blocks by all heads and layers of a model, which are on several ranks with "
                "tensor_parallel and pipeline_parallel; leave out kv_budget or these"
            )

    def _check_sparse_prefill(self) -> None:
        """Refuses what does not go together with sparse prefill."""
        if self.sparse_prefill is None:
            return
        for name in ("attention_window", "kv_budget"):
            if getattr(self, name) is not None:
                raise InvalidOptionError(
                    f"sparse_prefill is for layers that attend to all positions, and {name} leaves none; leave out one "
                    "of them"
                )
        if self.heads is not None:
            raise InvalidOptionError(
                "heads propose tokens from the features of all positions, and sparse_prefill changes those; leave out "
                "heads or sparse_prefill"
            )

    def _check_calibration(self, spec: QuantizeSpec) -> None:
        """Refuses a calibration of which a part would find no matrix of its formats."""
        chosen = self.calibration
        if self.calibrate != "none" and KEPT in spec.choices:
            raise InvalidOptionError(
                f"calibrate={self.calibrate!r} chooses codes, and quantize={spec.summary!r} keeps those of the "
                "checkpoint; leave out one of them"
            )
        if chosen.scales and spec.choices:
            raise InvalidOptionError(
                f"calibrate={self.calibrate!r} scales channels for formats that are named, and the build chooses those "
                f"of quantize={spec.summary!r}; calibrate with gptq, or name the formats of such an engine "
                "(tensorwright inspect --quantize-config)"
            )
        if chosen.prunes and not any(fmt.sparse for fmt in spec.formats):
            raise InvalidOptionError(
                f"calibrate={self.calibrate!r} chooses which weights of 2:4 sparse matrices are kept, and no matrix of "
                f"quantize={spec.summary!r} is sparse; add sparsity 2:4, or choose another calibration"
            )
        if spec.choices:
            return
        if chosen.codes and not any(chosen.codes_format(fmt) for fmt in spec.formats):
            raise InvalidOptionError(
                f"calibrate={self.calibrate!r} chooses whole numbers, and no matrix of quantize={spec.summary!r} has "
                "them; quantize to int4, int8 or w8a8, or say calibrate none"
            )
        if chosen.outliers and not any(chosen.keeps_format(fmt) for fmt in spec.formats):
            raise InvalidOptionError(
                f"calibrate={self.calibrate!r} keeps columns of inputs that are rounded, and no matrix of "
                f"quantize={spec.summary!r} has a format that rounds them; quantize to w8a8, int8 or int4, or choose "
                "another calibration"
            )
        if chosen.scales and not any(chosen.scales_format(fmt) for fmt in spec.formats):
            raise InvalidOptionError(
                f"calibrate={self.calibrate!r} scales channels for {SCALED_FORMATS[chosen.scales]}, and no matrix of "
                f"quantize={spec.summary!r} has such a format; choose another format, or another calibration"
            )

    @property
    def calibration(self) -> Calibration:
        """Returns what `calibrate` names."""
        return CALIBRATIONS[self.calibrate]

    def _check_dtype(self) -> None:
        """Refuses names of no element type; the target refuses types that it lacks, and says why."""
        if self.dtype not in DTYPE_CHOICES:
            known = " or ".join(self.target_format.dtypes)
            raise InvalidOptionError(f"dtype must be auto, {known} on target {self.target}, not {self.dtype!r}")

    @property
    def shown_sink_tokens(self) -> int:
        """Returns how many first positions layers with an attention_window or kv_budget keep; 0 without one."""
        if self.attention_window is None and self.kv_budget is None:
            return 0
        return SINK_TOKENS if self.sink_tokens is None else self.sink_tokens

    @property
    def seen_positions(self) -> int | None:
        """Returns the length of the longest text of which every row sees all before it, though the build bounds what
        layers see; None if it bounds nothing."""
        if self.kv_budget is not None:
            return self.kv_budget + DECISION_INTERVAL
        if self.attention_window is not None:
            return self.attention_window + self.shown_sink_tokens
        # A block of a prompt that is not whole sees everything.
        return None if self.sparse_prefill is None else self.sparse_prefill + CPU_BLOCK - 1

    @property
    def bounds(self) -> str:
        """Returns the option that bounds what layers see."""
        return next(
            name for name in ("attention_window", "kv_budget", "sparse_prefill") if getattr(self, name) is not None
        )

    @property
    def kept_recent_tokens(self) -> int:
        """Returns how many last positions stay at each decision of a kv_budget; 0 without one."""
        if self.kv_budget is None:
            return 0
        return self.kv_budget // RECENT_SHARE if self.recent_tokens is None else self.recent_tokens

    @property
    def target_format(self) -> TargetFormat:
        return TARGETS[self.target]

    @cached_property
    def quantize_spec(self) -> QuantizeSpec | None:
        """Returns the formats that `quantize` and `quantize_config` name, or None. Raises InvalidOptionError if the
        target lacks one."""
        return None if self.asked_formats is None else self.target_format.parse_quantize(self.asked_formats)

    @cached_property
    def asked_formats(self) -> str | None:
        """The text of `quantize` with what the file `quantize_config`, which is read once, and `sparsity` say."""
        return asked_formats(self)

    @property
    def ranks(self) -> int:
        """How many ranks the engine has; 1 if it is not parallel."""
        return self.tensor_parallel * self.pipeline_parallel

    def _check_ranks(self) -> None:
        """Raises InvalidOptionError for what a parallel engine does not have."""
        if self.expert_parallel and self.tensor_parallel == 1:
            raise InvalidOptionError(
                "expert_parallel shares the experts of a layer among the ranks of tensor_parallel, and that is 1; say "
                "how many ranks there are, or leave out expert_parallel"
            )
        if self.ranks == 1:
            return
        if self.ranks > MAX_RANKS:
            raise InvalidOptionError(
                f"tensor_parallel times pipeline_parallel must be at most {MAX_RANKS}, not {self.ranks}"
            )
        alone = {"calibrate": "none", "heads": None, "sparse_prefill": None}
        for name, value in alone.items():
            if getattr(self, name) != value:
                raise InvalidOptionError(
                    f"{name} is for engines of one rank, and tensor_parallel or pipeline_parallel asks for "
                    f"{self.ranks}; leave one of them out"
                )

    def _check_task(self) -> None:
        """Raises InvalidOptionError for what an engine that draws no tokens does not have."""
        if self.pooling != "auto" and self.task not in ("auto", EMBED):
            raise InvalidOptionError(
                f"pooling={self.pooling!r} is for task embed, and the task is {self.task!r}; leave out one of them"
            )
        if self.task in ("auto", GENERATE):
            return
        unlike = {"heads": None, "calibrate": "none", "tensor_parallel": 1, "pipeline_parallel": 1}
        for name, value in unlike.items():
            if getattr(self, name) != value:
                raise InvalidOptionError(
                    f"{name} is for engines that generate, and this one is built for task {self.task!r}; leave it out"
                )
        if self.task == EMBED and self.accuracy == "full":
            raise InvalidOptionError(
                "accuracy full compares logits, which an engine for task embed does not compute; say quick or none"
            )
        spec = self.quantize_spec
        if self.task == EMBED and spec is not None and any(choice.bits is not None for choice in spec.choices):
            raise InvalidOptionError(
                f"quantize={spec.summary!r} chooses formats by what they do to logits, which an engine for task embed "
                "does not compute; name the formats"
            )

    def record(self) -> dict[str, Any]:
        """Returns the options as config.json keeps them: without those of other targets, and without places
        and texts. The rules of a file stand in `quantize`."""
        options = {**asdict(self), "quantize": self.asked_formats}
        del options["quantize_config"], options["sparsity"]
        del options["calibration_text"]  # The quantization record has its hash.
        for name in ("task", "pooling"):  # The record of pooling says which they are.
            options.pop(name)
        options.pop("heads")  # The record of heads says which they are.
        del options["accuracy_text"]  # The accuracy record has the text's name and hash.
        if self.accuracy_tokens is None:
            del options["accuracy_tokens"]
        if not self.keep_weights:
            del options["keep_weights"]
        for name in ("tensor_parallel", "pipeline_parallel"):
            if options[name] == 1:
                del options[name]
        for name in ("attention_window", "sink_tokens", "kv_budget", "recent_tokens", "sparse_prefill"):
            if options[name] is None:
                del options[name]
        if not self.expert_parallel:
            del options["expert_parallel"]
        for option in options_in(BuildFields):
            if option.targets and self.target not in option.targets:
                options.pop(option.name, None)
        return options

    def max_seq_len_for(self, config: Mapping[str, Any], file: Path) -> int:
        """Returns the engine's context: the model's own, unless a shorter one is asked for.

        config: the content of config.json, or the config of its text part. file: config.json, for messages.
        """
        key = next((name for name in POSITION_COUNTS if name in config), POSITION_COUNTS[0])
        own: Any = config.get(key)
        if own is None and self.max_seq_len is None:
            raise InvalidOptionError(f"{file} gives no {key}: say max_seq_len (--max-seq-len)")
        if own is not None and (not isinstance(own, int) or isinstance(own, bool) or own < 2):
            raise CheckpointError(f"{file}: {key} must be a whole number of at least 2, not {own!r}; correct it")
        length: int = self.max_seq_len if self.max_seq_len is not None else own  # type: ignore[assignment]
        if own is not None and length > own:
            raise InvalidOptionError(f"max_seq_len must be at most the model's {own} positions, not {length}")
        if length > MAX_POSITIONS:
            raise InvalidOptionError(f"max_seq_len must be at most {MAX_POSITIONS}, not {length}; say a shorter one")
        return length

"""Reads a LoRA adapter as PEFT saves it: adapter_config.json and adapter_model.safetensors.

The matrix W of a module becomes W + scale * B A (Hu et al. 2021, section 4.1), with A: [rank, inputs], B: [outputs,
rank] and scale = lora_alpha / rank, or lora_alpha / sqrt(rank) with use_rslora (Kalajdzievski 2023). Whatever else an
adapter can hold is refused by its name, because leaving it out would give other outputs than those that were trained.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorwright.engine_format.file_names import PEFT_CONFIG, PEFT_WEIGHTS
from tensorwright.errors import AdapterError, CheckpointError, reason
from tensorwright.json_text import read_json
from tensorwright.models.dtypes import FLOATS, Tensor, to_float32
from tensorwright.models.safetensors_file import SafetensorsFile

PICKLED = "adapter_model.bin"
MAX_RANK = 128
"""The greatest rank that an engine takes. src/tensorwright/options/engine.py has the same number."""
GREATEST_RANK = 1 << 16
"""The greatest rank that can be read, to be merged."""
MAX_CONFIG_BYTES = 1 << 20
MAX_MODULES = 1 << 16
MAX_ALPHA = 1e6
MAX_COMPARED = 1 << 22
"""The most patterns times modules: each pattern is compared with each module's name."""
PREFIX = "base_model.model."
"""What PEFT puts before the name of each module."""

_TENSOR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_MODULE_PATTERN = re.compile(r"\^?[\w.\-]+\$?", re.ASCII)
"""The patterns of rank_pattern and alpha_pattern that are read: names of modules, or their ends."""

_IGNORED = frozenset({
    "auto_mapping", "base_model_name_or_path", "peft_version", "revision", "task_type", "inference_mode",
    "lora_dropout", "layers_pattern", "layers_to_transform", "exclude_modules", "target_modules", "eva_config",
    "runtime_config", "ensure_weight_tying", "qalora_group_size", "megatron_core",
})  # fmt: skip
"""Fields that change nothing of what an adapter computes, since the names of its tensors say what it changes."""
_READ = frozenset({
    "peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias", "fan_in_fan_out",
    "init_lora_weights",
})  # fmt: skip
_STARTS = (True, False, "gaussian", "eva", "orthogonal")
"""The values of init_lora_weights that leave the model's own weights as they are."""


@dataclass(frozen=True)
class AdapterModule:
    """The two matrices of one module, and the factor of their product. names: of A and B in the file."""

    names: tuple[str, str]
    outputs: int
    inputs: int
    rank: int
    scale: float


@dataclass(frozen=True)
class PeftAdapter:
    """A checked adapter, whose weights are not read yet. modules: by the names of the model's modules, in alphabetical
    order. transposed: PEFT's fan_in_fan_out, which says that the model has the matrices of these modules as [inputs,
    outputs]."""

    path: Path
    modules: dict[str, AdapterModule]
    transposed: bool
    file: SafetensorsFile

    @property
    def is_bfloat16(self) -> bool:
        """Whether all matrices are stored in bfloat16."""
        return all(
            self.file.tensors[name].dtype == "bfloat16" for module in self.modules.values() for name in module.names
        )

    def read(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns A [rank, inputs] and B [outputs, rank] of a module, in float32. Raises AdapterError for numbers that
        are not finite, and for a file that has changed."""
        a, b = map(to_float32, self.read_stored(name))
        return a, b

    def read_stored(self, name: str) -> tuple[Tensor, Tensor]:
        """Returns what `read` returns, in the type of the file. Raises what `read` raises."""
        try:
            a, b = (self.file.load(tensor) for tensor in self.modules[name].names)
        except CheckpointError as error:
            raise AdapterError(str(error)) from error
        if not all(np.isfinite(to_float32(each)).all() for each in (a, b)):
            raise AdapterError(f"{self.file.path}: the matrices of {name[:200]} hold a number that is not finite")
        return a, b

    def check_base(
        self, shapes: Mapping[str, tuple[int, ...]], transposed: Mapping[str, bool], refused: Mapping[str, str]
    ) -> None:
        """Raises AdapterError unless every module is one of the model, of its shape and layout.

        shapes: outputs and inputs of the modules that adapters may change. transposed: whether the model has the matrix
        of a module as [inputs, outputs]. refused: for each other module the reason.
        """
        for name, module in self.modules.items():
            if name in refused:
                raise AdapterError(f"{self.path}: no adapter may change {name}: it {refused[name]}")
            if name not in shapes:
                known = ", ".join(list(shapes)[:3])
                raise AdapterError(
                    f"{self.path}: the model has no module {name[:200]!r} with a matrix; it has {known} and others. "
                    "The adapter belongs to another model"
                )
            outputs, inputs = shapes[name]
            if (module.outputs, module.inputs) != (outputs, inputs):
                raise AdapterError(
                    f"{self.path}: {name} has {outputs} outputs and {inputs} inputs in the model, and {module.outputs} "
                    f"and {module.inputs} in the adapter, which belongs to another model"
                )
            if transposed[name] != self.transposed:
                raise AdapterError(
                    f"{self.path}: fan_in_fan_out must be {transposed[name]} for {name}, is {self.transposed}"
                )


def read_adapter(path: str | Path, max_rank: int = MAX_RANK) -> PeftAdapter:
    """Reads and checks an adapter's folder, all but the numbers. Raises AdapterError, which names file and fault."""
    folder = Path(path)
    config = _read_config(folder / PEFT_CONFIG)
    if not (folder / PEFT_WEIGHTS).exists():
        pickled = (folder / PICKLED).exists()
        hint = f"; {PICKLED} is not read, for it may run code: save the adapter as safetensors" if pickled else ""
        raise AdapterError(f"{folder / PEFT_WEIGHTS}: does not exist{hint}")
    if not (folder / PEFT_WEIGHTS).is_file():  # Reading a pipe would wait for ever.
        raise AdapterError(f"{folder / PEFT_WEIGHTS}: must be a file")
    try:
        file = SafetensorsFile(folder / PEFT_WEIGHTS)
    except CheckpointError as error:
        raise AdapterError(str(error)) from error
    pairs = _pairs(file)
    patterns = len(config.ranks) + len(config.alphas)
    if patterns * len(pairs) > MAX_COMPARED:
        raise AdapterError(
            f"{config.path}: {patterns} patterns of rank_pattern and alpha_pattern for {len(pairs)} modules are too "
            f"many: they must be at most {MAX_COMPARED} multiplied"
        )
    modules = {name: _module(file, name, sides, config, max_rank) for name, sides in sorted(pairs.items())}
    return PeftAdapter(folder, modules, config.transposed, file)


@dataclass(frozen=True)
class _Config:
    path: Path
    rank: int
    alpha: float
    rank_stabilized: bool
    ranks: dict[str, int]
    alphas: dict[str, float]
    transposed: bool

    def rank_of(self, module: str) -> int:
        return _find(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> float:
        alpha, rank = _find(self.alphas, module, self.alpha), self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.rank_stabilized else rank)


def _find(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """Returns the value of the first pattern that is the module's name, or the end of it behind a dot."""
    for pattern, value in patterns.items():
        whole, name = pattern.startswith("^"), pattern.removeprefix("^").removesuffix("$")
        if module == name or (not whole and module.endswith("." + name)):
            return value
    return default


def _read_config(path: Path) -> _Config:
    try:
        if path.exists() and not path.is_file():
            raise AdapterError(f"{path}: must be a file")
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
        if len(data) > MAX_CONFIG_BYTES:
            raise AdapterError(f"{path}: must have at most {MAX_CONFIG_BYTES} bytes")
        values = read_json(data)
    except OSError as error:
        raise AdapterError(
            f"{path}: cannot be read ({reason(error)}); an adapter is a folder that PEFT has saved"
        ) from error
    except ValueError as error:
        raise AdapterError(f"{path}: is not JSON ({error})") from error
    if not isinstance(values, dict):
        raise AdapterError(f"{path}: must hold a JSON object")
    _refuse_others(path, values)
    rank = values.get("r", 8)
    if not _is_int(rank, 1, GREATEST_RANK):
        raise AdapterError(f"{path}: r must be a positive integer, is {_shown(rank)}")
    flags = {name: values.get(name, False) for name in ("use_rslora", "fan_in_fan_out")}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise AdapterError(f"{path}: {name} must be true or false, is {_shown(flag)}")
    return _Config(
        path,
        rank,
        _alpha(path, "lora_alpha", values.get("lora_alpha", 8)),
        flags["use_rslora"],
        _patterns(path, "rank_pattern", values, int),
        _patterns(path, "alpha_pattern", values, float),
        flags["fan_in_fan_out"],
    )


def _refuse_others(path: Path, values: dict[str, Any]) -> None:
    """Raises AdapterError for whatever is not plain LoRA. A field that is unknown, and not empty, counts so."""
    if values.get("peft_type") != "LORA":
        raise AdapterError(f"{path}: peft_type must be LORA, is {_shown(values.get('peft_type'))}")
    if values.get("bias", "none") != "none":
        raise AdapterError(f"{path}: bias must be none, is {_shown(values['bias'])}: biases are not adapted")
    start = values.get("init_lora_weights", True)
    if not any(start is known or (isinstance(start, str) and start == known) for known in _STARTS):
        raise AdapterError(
            f"{path}: init_lora_weights {_shown(start)} changes the model's own weights as well; save the adapter with "
            "PEFT's path_initial_model_for_weight_conversion"
        )
    for name, value in values.items():
        if name in _READ or name in _IGNORED or value is None or value is False or value in ([], {}, ""):
            continue
        raise AdapterError(f"{path}: {str(name)[:100]} = {_shown(value)} is not supported; plain LoRA is")


def _patterns(path: Path, name: str, values: Mapping[str, Any], kind: type) -> dict[str, Any]:
    found = values.get(name) or {}
    if not isinstance(found, dict) or len(found) > MAX_MODULES:
        raise AdapterError(f"{path}: {name} must be an object with a number for each module")
    for pattern, value in found.items():
        if _MODULE_PATTERN.fullmatch(pattern) is None:
            raise AdapterError(
                f"{path}: {name}: {_shown(pattern)} must be the name of modules; other patterns are not read"
            )
        if kind is int:
            if not _is_int(value, 1, GREATEST_RANK):
                raise AdapterError(
                    f"{path}: {name}: {_shown(pattern)} must have a positive integer, has {_shown(value)}"
                )
        else:
            _alpha(path, f"{name}: {_shown(pattern)}", value)
    return dict(found)


def _alpha(path: Path, name: str, value: Any) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MAX_ALPHA
    if not good:
        raise AdapterError(f"{path}: {name} must be a number above 0 and at most {MAX_ALPHA:g}, is {_shown(value)}")
    return float(value)


def _is_int(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _shown(value: Any) -> str:
    return repr(value)[:100]


def _pairs(file: SafetensorsFile) -> dict[str, dict[str, str]]:
    """Returns the names of both tensors of each module."""
    pairs: dict[str, dict[str, str]] = {}
    for name in file.tensors:
        found = _TENSOR.fullmatch(name)
        if found is None:
            raise AdapterError(
                f"{file.path}: tensor {name[:200]!r} is not supported: only lora_A.weight and lora_B.weight of linear "
                "layers are, neither DoRA's magnitudes, embeddings, biases nor modules_to_save"
            )
        module = found["module"].removeprefix(PREFIX)
        sides = pairs.setdefault(module, {})
        if (other := sides.setdefault(found["side"], name)) != name:
            raise AdapterError(
                f"{file.path}: {other[:200]!r} and {name[:200]!r} are one matrix of one module; keep one of them"
            )
    for module, sides in pairs.items():
        if len(sides) != 2:
            raise AdapterError(
                f"{file.path}: {module[:200]} must have lora_A.weight and lora_B.weight, has one of them"
            )
    if not 1 <= len(pairs) <= MAX_MODULES:
        raise AdapterError(f"{file.path}: must have matrices of 1 to {MAX_MODULES} modules, has {len(pairs)}")
    return pairs


def _module(
    file: SafetensorsFile, name: str, sides: Mapping[str, str], config: _Config, max_rank: int
) -> AdapterModule:
    a, b = file.tensors[sides["A"]].shape, file.tensors[sides["B"]].shape
    rank = config.rank_of(name)
    if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank or 0 in (*a, *b):
        raise AdapterError(
            f"{file.path}: {name[:200]} must have lora_A of [{rank}, inputs] and lora_B of [outputs, {rank}], as "
            f"{PEFT_CONFIG} says, has {list(a)} and {list(b)}"
        )
    if rank > max_rank:
        more = "raise max_lora_rank" if max_rank < MAX_RANK else "merge the adapter with tensorwright merge-lora"
        raise AdapterError(f"{file.path}: {name[:200]} has rank {rank}, at most {max_rank} is taken; {more}")
    for side in sides.values():
        if file.tensors[side].dtype not in FLOATS:
            raise AdapterError(
                f"{file.path}: {side[:200]} must be of one of {', '.join(FLOATS)}, is of {file.tensors[side].dtype}"
            )
    return AdapterModule((sides["A"], sides["B"]), b[0], a[1], rank, config.scale_of(name))

"""Lists the targets of an engine: the name, the files, the types and the weight formats of each."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwright.engine_format import file_names
from tensorwright.engine_format.dtypes import DTYPES
from tensorwright.engine_format.weight_formats import QuantizeSpec, parse_cpu_spec, parse_weight_only_spec


@dataclass(frozen=True)
class StepSizes:
    """The most sequences and tokens of a step."""

    seqs: int
    tokens: int


@dataclass(frozen=True)
class TargetFormat:
    """The parts of an engine of one target."""

    name: str
    files: tuple[str, ...]
    """Files that the runtime opens, relative to the engine's folder."""
    weights: str
    """The largest of these files. The runtime keeps it in memory."""
    dtypes: tuple[str, ...]
    """Types of the activations."""
    weight_formats: tuple[str, ...]
    """Kinds of quantized weights, of `weight_formats.FORMATS`."""
    shares_prefixes: bool = True
    """Whether the target's KV cache has blocks that sequences share."""
    verifies_proposals: bool = False
    """Whether the target's executor computes proposed tokens behind a sequence, and the heads that propose some."""
    rank_files: tuple[str, ...] = ()
    """In place of `files` for each rank of a parallel engine, the largest first; empty for a target without ranks."""
    sm_files: tuple[str, ...] = ()
    """Further files, one for each compute capability (SM) that the engine has code for."""
    default_sms: tuple[int, ...] = ()
    """The SMs of an engine with `sm_files` whose build names none."""
    default_step: StepSizes | None = None
    """What the largest step of an engine with such a limit has, unless the build says other numbers."""

    def files_for(self, sms: tuple[int, ...]) -> tuple[str, ...]:
        """Returns the files of an engine of one rank with code for these SMs."""
        return (*self.files, *(name.format(sm) for sm in sms for name in self.sm_files))

    def parse_quantize(self, text: str) -> QuantizeSpec:
        """Reads the text of `--quantize` for this target. Raises InvalidOptionError for what the target cannot do."""
        if self.name == "cpu":
            return parse_cpu_spec(text, self.weight_formats)
        alike = [target.name for target in TARGETS.values() if target.files == self.files]
        return parse_weight_only_spec(text, " or ".join(alike), self.weight_formats)


def _tensorrt(name: str) -> TargetFormat:
    files = (file_names.TENSORRT_ENGINE, file_names.TENSORRT_IO)
    ranks = (file_names.RANK_TENSORRT_ENGINE, file_names.RANK_TENSORRT_IO)
    return TargetFormat(
        name, files, file_names.TENSORRT_ENGINE, DTYPES, ("int4", "int8", "fp8"), rank_files=ranks,
        default_step=StepSizes(64, 2048),
    )  # fmt: skip


TARGETS: dict[str, TargetFormat] = {
    target.name: target
    for target in (
        TargetFormat(
            "cpu",
            (file_names.CPU_WEIGHTS, file_names.CPU_PLAN),
            file_names.CPU_WEIGHTS,
            ("float32", "bfloat16"),
            ("int4", "int8", "uint4", "uint8", "int3", "int2", "uint3", "uint2", "mxfp4", "w4a8", "w8a8", "fp8"),
            verifies_proposals=True,
            rank_files=(file_names.RANK_WEIGHTS, file_names.RANK_PLAN),
        ),
        TargetFormat(
            "onnx",
            (file_names.ONNX_MODEL, file_names.ONNX_DATA, file_names.ONNX_IO),
            file_names.ONNX_DATA,
            ("float32", "float16"),
            ("int4", "int8"),
            shares_prefixes=False,
        ),
        TargetFormat(
            "cuda",
            (file_names.CUDA_WEIGHTS,),
            file_names.CUDA_WEIGHTS,
            DTYPES,
            ("int4", "int8", "fp8", "w8a8"),
            verifies_proposals=True,
            sm_files=(file_names.CUDA_PLAN,),
            default_sms=(80, 90),
            default_step=StepSizes(256, 8192),
        ),
        _tensorrt("tensorrt"),
        _tensorrt("tensorrt-rtx"),
    )
}
"""Every target by its name in config.json."""

TARGET_NAMES = tuple(TARGETS)
TENSORRT_TARGETS = ("tensorrt", "tensorrt-rtx")
GPU_TARGETS = (*TENSORRT_TARGETS, "cuda")
"""The targets whose engines run on GPUs: they name the SMs that they are for, and the largest step."""
DTYPE_CHOICES = ("auto", *dict.fromkeys(dtype for target in TARGETS.values() for dtype in target.dtypes))
"""The values of the build option `dtype`: a type that some target has, or "auto", for which the target chooses."""

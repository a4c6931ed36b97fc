"""Lists the kinds of quantized checkpoints that are read, and refuses the others by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tensorwright.errors import UnsupportedModelError
from tensorwright.models.quantized.awq import read_awq
from tensorwright.models.quantized.bitsandbytes import read_bitsandbytes
from tensorwright.models.quantized.compressed_tensors import read_compressed_tensors
from tensorwright.models.quantized.fp8 import read_fp8
from tensorwright.models.quantized.gptq import read_gptq
from tensorwright.models.quantized.interface import Quantization, Refusals
from tensorwright.models.quantized.mxfp4 import read_mxfp4
from tensorwright.models.stored_tensors import StoredTensors

KINDS: dict[str, Callable[[Mapping[str, Any], StoredTensors, Refusals], Quantization]] = {
    "awq": read_awq,
    "bitsandbytes": read_bitsandbytes,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "gptq": read_gptq,
    "mxfp4": read_mxfp4,
}
"""The functions that read a checkpoint, by the quant_method of its quantization_config."""

CONFIG_KEYS = ("quantization_config", "compression_config")
"""The keys of config.json that name a quantization. Older files of compressed-tensors have the second."""


def read_quantization(config: Any, stored: StoredTensors, where: str) -> Quantization:
    """Returns the matrices of a checkpoint whose config.json names a quantization.

    config: what config.json says of it. where: the directory, for messages. Raises UnsupportedModelError for a kind
    that is not read, and CheckpointError for tensors that are not those of the kind.
    """
    method = config.get("quant_method", "unknown") if isinstance(config, dict) else config
    if not isinstance(config, dict) or not isinstance(method, str) or method not in KINDS:
        name = str(method).encode("ascii", "backslashreplace").decode()  # It may hold what no terminal can show.
        raise UnsupportedModelError(
            f"{where}: weights quantized with {name:.100} are not read; give the checkpoint before its "
            f"quantization, or one quantized with {', '.join(KINDS)}"
        )
    refusals = Refusals(where, method)
    found = KINDS[method](config, stored, refusals)
    twice = [name for name, matrix in found.matrices.items() if name in stored and name not in matrix.parts]
    if twice:
        raise refusals.broken(f"{twice[0]} is stored beside {found.matrices[twice[0]].parts[0]}")
    return found

"""Lists the quantized checkpoints that are kept beside the tests."""

from pathlib import Path

MADE = Path(__file__).parents[1] / "models" / "quantized_checkpoints"
"""The checkpoints that write_quantized.py made."""

KINDS = {
    "awq-4": "awq 4 bits g32",
    "bnb-fp4": "bitsandbytes fp4",
    "bnb-int8": "bitsandbytes int8",
    "bnb-nf4": "bitsandbytes nf4",
    "bnb-nf4-double": "bitsandbytes nf4 double",
    "ct-fp8": "compressed-tensors float8 per channel",
    "ct-fp8-blocks": "compressed-tensors float8 blocks 16x32",
    "ct-fp8-tensor": "compressed-tensors float8 per tensor",
    "ct-int3-rows": "compressed-tensors int3 per channel",
    "ct-int4": "compressed-tensors int4 g32",
    "ct-int4-zeros": "compressed-tensors int4 g32",
    "ct-w8a8": "compressed-tensors int8 per channel",
    "gptq-2-v2": "gptq 2 bits g32",
    "gptq-3": "gptq 3 bits g32",
    "gptq-4": "gptq 4 bits g32",
    "gptq-4-order": "gptq 4 bits g32 act-order",
    "gptq-8": "gptq 8 bits g32",
}
"""The kind of each, as a record names it."""

"""weight_only_matmul(x, w, bias?, residual?){format, epilogue, n}:  matmul with w quantized as `format` says

x keeps the activation type. Shapes and epilogues are those of plugins/matmul/op.py.
"""

from __future__ import annotations

from dataclasses import replace

from tensorwright.plugins.quantized_matmul import op as quantized_matmul

reference = quantized_matmul.reference

INSTRUCTION = replace(quantized_matmul.INSTRUCTION, name="weight_only_matmul", number=32)

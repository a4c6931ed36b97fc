"""Every plugin by the name of its op: NAME, ATTRS, infer(inputs, attrs), reference(inputs, attrs, act_dtype)."""

from __future__ import annotations

from types import ModuleType

from tensorwright.plugins.add import op as add
from tensorwright.plugins.elementwise import op as elementwise
from tensorwright.plugins.embedding import op as embedding
from tensorwright.plugins.embedding import quantized as quantized_embedding
from tensorwright.plugins.gather_rows import op as gather_rows
from tensorwright.plugins.layer_norm import add_layer_norm, layer_norm_columns
from tensorwright.plugins.layer_norm import op as layer_norm
from tensorwright.plugins.matmul import op as matmul
from tensorwright.plugins.paged_attention import attention
from tensorwright.plugins.paged_attention import op as paged_attention
from tensorwright.plugins.quantized_matmul import linear as quantized_linear
from tensorwright.plugins.quantized_matmul import op as quantized_matmul
from tensorwright.plugins.quantized_matmul import weight_only as weight_only_linear
from tensorwright.plugins.rms_norm import add_rms_norm, rms_norm_columns
from tensorwright.plugins.rms_norm import op as rms_norm
from tensorwright.plugins.rotary import op as rotary
from tensorwright.plugins.rotary import rotary_kv_write, rotary_table
from tensorwright.plugins.swiglu import op as swiglu

PLUGINS: dict[str, ModuleType] = {
    plugin.NAME: plugin
    for plugin in (
        add,
        add_layer_norm,
        add_rms_norm,
        attention,
        elementwise,
        embedding,
        gather_rows,
        layer_norm,
        layer_norm_columns,
        matmul,
        paged_attention,
        quantized_embedding,
        quantized_linear,
        quantized_matmul,
        rms_norm,
        rms_norm_columns,
        rotary,
        rotary_kv_write,
        rotary_table,
        swiglu,
        weight_only_linear,
    )
}

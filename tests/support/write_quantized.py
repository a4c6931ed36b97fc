"""Writes the quantized checkpoints of tests/models/quantized_checkpoints, each with the library whose form it has.

    python tests/support/write_quantized.py tests/models/quantized_checkpoints [NAME ...]

needs compressed-tensors 0.20, gptqmodel 7.7, autoawq 0.2.9 and bitsandbytes 0.50 beside torch and transformers. The
tests need none of them: beside each checkpoint lies decoded.json, with the digest of every matrix as the library itself
decodes it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {"hidden_size": 64, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
GROUP = 32


def tiny_model(dtype: torch.dtype) -> LlamaForCausalLM:
    """A decoder of one layer with tied embeddings. Some of its weights are large, so that groups differ."""
    torch.manual_seed(0)
    config = LlamaConfig(
        **SIZES, head_dim=16, num_hidden_layers=1, vocab_size=32, max_position_embeddings=64, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=1, initializer_range=0.1,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= torch.exp(0.5 * torch.randn(parameter.shape))
    return model.to(dtype).eval()


def write(path: Path, model: LlamaForCausalLM, tensors: dict[str, torch.Tensor], quantization: dict[str, Any]) -> None:
    """Writes a checkpoint. tensors: all that stand in the model's file."""
    path.mkdir(parents=True, exist_ok=True)
    model.config.dtype = next(model.parameters()).dtype
    config = {**model.config.to_diff_dict(), "architectures": ["LlamaForCausalLM"], "quantization_config": quantization}
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")


def write_digests(path: Path, decoded: dict[str, torch.Tensor]) -> None:
    """Writes decoded.json: of every decoded matrix its type, its shape, and the SHA-256 of its bytes."""
    table = {}
    for name, tensor in sorted(decoded.items()):
        data = tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()
        kind = str(tensor.dtype).removeprefix("torch.")
        table[name] = {"dtype": kind, "shape": list(tensor.shape), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "decoded.json").write_text(json.dumps(table, indent=1) + "\n")


def linears(model: LlamaForCausalLM) -> dict[str, nn.Linear]:
    return {name: part for name, part in model.model.named_modules() if isinstance(part, nn.Linear)}


def others(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """The tensors that no quantization touches: the embedding and the norms."""
    return {name: value for name, value in model.state_dict().items() if "_proj" not in name and "lm_head" not in name}


# -- compressed-tensors ---------------------------------------------------------------------------------------------


def compressed(weights: dict[str, Any], kind: str, dtype: torch.dtype, **scheme: Any) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        from compressed_tensors.compressors import BaseCompressor, ModelCompressor
        from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
        from compressed_tensors.quantization.utils import calculate_qparams

        model = tiny_model(dtype)
        config = QuantizationConfig(
            config_groups={"group_0": {"targets": ["Linear"], "weights": weights, "format": kind, **scheme}},
            ignore=["lm_head"],
            format=kind,
            quantization_status="frozen",
        )
        apply_quantization_config(model, config)
        for part in linears(model).values():
            arguments, weight = part.quantization_scheme.weights, part.weight.detach()
            n, k = weight.shape
            block = arguments.block_structure
            if arguments.strategy == "group":
                tiles = weight.reshape(n, -1, arguments.group_size)
                low, high = tiles.amin(-1), tiles.amax(-1)
            elif arguments.strategy == "block":
                tiles = weight.reshape(n // block[0], block[0], k // block[1], block[1])
                low, high = tiles.amin((1, 3)), tiles.amax((1, 3))
            elif arguments.strategy == "tensor":
                low, high = weight.amin().reshape(1), weight.amax().reshape(1)
            else:
                low, high = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
            scale, zero = calculate_qparams(low, high, arguments)
            part.weight_scale.data.copy_(scale)
            if hasattr(part, "weight_zero_point"):
                part.weight_zero_point.data.copy_(zero)
        ModelCompressor(quantization_config=config).compress_model(model)
        tensors = {name: value for name, value in model.state_dict().items() if "lm_head" not in name}
        section = json.loads(config.model_dump_json(exclude_none=True))
        write(path, model, tensors, {**section, "quantization_status": "compressed"})
        compressor = BaseCompressor.get_value_from_registry(kind)
        decoded = {}
        for name, part in linears(model).items():
            own = {key: value for key, value in tensors.items() if key.startswith(f"model.{name}.")}
            local = {key.rpartition(".")[2]: value for key, value in own.items()}
            decoded[f"model.{name}.weight"] = compressor.decompress(local, part.quantization_scheme)["weight"]
        write_digests(path, decoded)

    return make


def integers(bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": "int", "strategy": strategy, "symmetric": True, "dynamic": False, **more}


FLOATS = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}
FLOAT_TOKENS = {**TOKENS, "type": "float"}


# -- GPTQ -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def group_ranges(weight: torch.Tensor, order: torch.Tensor, bits: int, symmetric: bool) -> tuple[Any, Any]:
    """Scales and zero points [N, groups] for the groups of columns that `order` names."""
    columns = [weight[:, order == group] for group in range(int(order.max()) + 1)]
    low = torch.stack([part.amin(1) for part in columns], 1).clamp(max=0)
    high = torch.stack([part.amax(1) for part in columns], 1).clamp(min=0)
    largest = 2**bits - 1
    if symmetric:
        top = torch.maximum(-low, high)
        return (2 * top / largest).half(), torch.full_like(top, 2 ** (bits - 1))
    scale = ((high - low) / largest).half()
    return scale, torch.round(-low / scale.float()).clamp(0, largest)


def gptq(bits: int, *, symmetric: bool, act_order: bool = False, kind: str = "gptq") -> Callable[[Path], None]:
    def make(path: Path) -> None:
        from gptqmodel.nn_modules.qlinear.torch import TorchLinear
        from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module, convert_gptq_v2_to_v1_format_module

        model = tiny_model(torch.float16)
        tensors, decoded = others(model), {}
        for name, part in linears(model).items():
            n, k = part.weight.shape
            order = torch.arange(k, dtype=torch.int32) // GROUP
            if act_order:
                order = order[torch.randperm(k)]
            scale, zero = group_ranges(part.weight.float(), order, bits, symmetric)
            module = TorchLinear(
                bits=bits, group_size=GROUP, sym=symmetric, desc_act=act_order, in_features=k, out_features=n
            )
            plain = nn.Linear(k, n, bias=False)
            plain.weight.data = part.weight.detach().float()
            module.pack_original(plain, scale.float(), zero.float(), order)
            if kind == "gptq":
                convert_gptq_v2_to_v1_format_module(module, SimpleNamespace(bits=bits, pack_dtype=torch.int32))
            for key in ("qweight", "qzeros", "scales", "g_idx"):
                tensors[f"model.{name}.{key}"] = getattr(module, key).clone()
            if kind == "gptq":
                convert_gptq_v1_to_v2_format_module(module, bits, torch.int32)
            module.post_init()
            decoded[f"model.{name}.weight"] = module.dequantize_weight().T
        section = {
            "quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": act_order, "sym": symmetric,
            "checkpoint_format": kind, "lm_head": False,
        }  # fmt: skip
        write(path, model, tensors, section)
        write_digests(path, decoded)

    return make


# -- AWQ ------------------------------------------------------------------------------------------------------------


def awq(path: Path) -> None:
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    model = tiny_model(torch.float16)
    tensors, decoded = others(model), {}
    for name, part in linears(model).items():
        order = torch.arange(part.in_features) // GROUP
        scale, zero = group_ranges(part.weight.float(), order, 4, symmetric=False)
        plain = nn.Linear(part.in_features, part.out_features, bias=False)
        steps = torch.round(part.weight.float() / scale.float()[:, order]) + zero[:, order]
        plain.weight.data = (steps.clamp(0, 15) - zero[:, order]) * scale.float()[:, order]
        packed = WQLinear_GEMM.from_linear(plain, 4, GROUP, scales=scale.float().T, zeros=zero.T)
        for key in ("qweight", "qzeros", "scales"):
            tensors[f"model.{name}.{key}"] = getattr(packed, key)
        decoded[f"model.{name}.weight"] = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales, 4, GROUP).T
    section = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
    write(path, model, tensors, section)
    write_digests(path, decoded)


BLOCK = {"strategy": "block", "block_structure": [16, 32]}
# -- bitsandbytes ---------------------------------------------------------------------------------------------------


def bitsandbytes(dtype: torch.dtype, section: dict[str, Any], **options: Any) -> Callable[[Path], None]:
    """options: those of Linear4bit; none for a layer of 8 bits."""

    def make(path: Path) -> None:
        import bitsandbytes as bnb

        model = tiny_model(dtype)
        tensors, decoded = others(model), {}
        for name, part in linears(model).items():
            if name == "lm_head":
                continue
            n, k = part.weight.shape
            if options:
                layer = bnb.nn.Linear4bit(k, n, bias=False, compute_dtype=dtype, **options)
                layer.weight = bnb.nn.Params4bit(part.weight.detach(), requires_grad=False, module=layer, **options)
            else:
                layer = bnb.nn.Linear8bitLt(k, n, bias=False, has_fp16_weights=False)
                layer.weight = bnb.nn.Int8Params(part.weight.detach(), requires_grad=False, has_fp16_weights=False)
            layer = layer.to("cpu")
            tensors |= {f"model.{name}.{key}": value for key, value in layer.state_dict().items()}
            if options:
                state = layer.weight.quant_state
                state.dtype = torch.float32  # Its default kernel rounds the table too, and those of CUDA do not.
                decoded[f"model.{name}.weight"] = bnb.functional.dequantize_4bit(layer.weight.data, state).to(dtype)
            else:
                codes, largest = layer.weight.data, layer.state_dict()["SCB"]
                decoded[f"model.{name}.weight"] = bnb.functional.int8_vectorwise_dequant(codes, largest)
        write(path, model, tensors, {"quant_method": "bitsandbytes", **section})
        write_digests(path, decoded)

    return make


FOUR = {"load_in_4bit": True, "load_in_8bit": False}
EIGHT = {"load_in_4bit": False, "load_in_8bit": True}

MADE: dict[str, Callable[[Path], None]] = {
    "bnb-nf4": bitsandbytes(torch.bfloat16, FOUR, quant_type="nf4", compress_statistics=False),
    "bnb-nf4-double": bitsandbytes(torch.bfloat16, FOUR, quant_type="nf4", compress_statistics=True),
    "bnb-fp4": bitsandbytes(torch.float16, FOUR, quant_type="fp4", compress_statistics=False),
    "bnb-int8": bitsandbytes(torch.float16, EIGHT),
    "ct-int4": compressed(integers(4, "group", group_size=GROUP), "pack-quantized", torch.bfloat16),
    "ct-int4-zeros": compressed(
        integers(4, "group", group_size=GROUP, symmetric=False), "pack-quantized", torch.float16
    ),
    "ct-int3-rows": compressed(integers(3, "channel", symmetric=False), "pack-quantized", torch.bfloat16),
    "ct-w8a8": compressed(integers(8, "channel"), "int-quantized", torch.bfloat16, input_activations=TOKENS),
    "ct-fp8": compressed(
        {**FLOATS, "strategy": "channel"}, "float-quantized", torch.bfloat16, input_activations=FLOAT_TOKENS
    ),
    "ct-fp8-tensor": compressed({**FLOATS, "strategy": "tensor"}, "naive-quantized", torch.float16),
    "ct-fp8-blocks": compressed({**FLOATS, **BLOCK}, "float-quantized", torch.bfloat16, input_activations=FLOAT_TOKENS),
    "gptq-4": gptq(4, symmetric=True),
    "gptq-4-order": gptq(4, symmetric=False, act_order=True),
    "gptq-3": gptq(3, symmetric=False),
    "gptq-2-v2": gptq(2, symmetric=False, kind="gptq_v2"),
    "gptq-8": gptq(8, symmetric=True),
    "awq-4": awq,
}
"""What writes each checkpoint, by the name of its folder."""

if __name__ == "__main__":
    torch.set_grad_enabled(False)
    for folder, make in ((name, MADE[name]) for name in sys.argv[2:] or MADE):
        made = Path(sys.argv[1]) / folder
        make(made)
        print(folder, sum(tensor.nbytes for tensor in load_file(made / "model.safetensors").values()))

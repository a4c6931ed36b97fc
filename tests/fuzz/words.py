"""Words that the fuzzer would take long to find by itself: names of fields, and what stands for much in few bytes."""

from __future__ import annotations

import dataclasses

from fuzz.request_targets import BODIES, TEMPLATES

import tensorwright.plugins.registry  # noqa: F401  (the table of ops)
from tensorwright import GuidedDecodingParams, SamplingParams
from tensorwright.ir.ops import op_names
from tensorwright.runtime.serving.triton.interfaces import INTERFACES

_FIELDS = {field.name for kind in (SamplingParams, GuidedDecodingParams) for field in dataclasses.fields(kind)}
_FIELDS |= {name for model in BODIES for name in model.model_fields}
_FIELDS |= {tensor.name for interface in INTERFACES.values() for tensor in interface.inputs}
_KEYS = {
    "role", "content", "name", "type", "text", "user", "system", "assistant", "developer", "tool", "tool_calls",
    "tools", "documents", "given", "variables", "template", "start", "interface", "batched", "parameters", "tensors",
    "json_schema", "schema", "json_object", "properties", "items", "$ref", "$defs", "#/$defs/a", "anyOf", "allOf",
    "oneOf", "enum", "const", "required", "pattern", "minimum", "maximum", "multipleOf", "minItems", "maxItems",
    "minLength", "maxLength", "format", "additionalProperties", "prefixItems", "dtype", "shape", "data_offsets",
    "__metadata__", "F32", "BF16", "I64", "U8", "BOOL", "weight_map", "model_type", "eos_token_id", "bos_token",
    "chat_template", "added_tokens_decoder", "special", "additional_special_tokens", "model", "limits", "vocab_size",
    "max_seq_len", "block_size", "kv_block_bytes", "quantization", "accuracy", "build_options", "format_version",
    "target", "onnx", "tensorrt", "normalizer", "pre_tokenizer", "decoder", "post_processor", "added_tokens", "vocab",
    "merges", "byte_fallback", "fuse_unk", "unk_token", "Sequence", "Replace", "ByteLevel", "ByteFallback",
    "peft_type", "LORA", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "products",
    "instruction", "parts", "module", "column", "transposed", "outputs", "inputs", "refused", "version",
    "Metaspace", "WordPiece", "Unigram", "WordLevel", "BPE", "Strip", "Fuse", "Split", "Regex", "String",
}  # fmt: skip
_TEXTS = {
    "\\ud800", "\\u0000", "NaN", "-Infinity", "Infinity", "1e400", "1e-400", "null", "true", "false", "-1", "0.5",
    "2147483648", "18446744073709551616", "9" * 40, "[[[[", "}}}}", "::=", "root ::= ", "start: ", "%ignore ",
    "%llguidance {}", "\\x00", "\\U0010FFFF", "{1,3}", "(?i)", "[^a]", "\\p{L}", "/../", "../", "HTTP/1.1\r\n",
    "host: localhost\r\n", "content-length: 5\r\n", "transfer-encoding: chunked\r\n", "expect: 100-continue\r\n",
    "connection: close\r\n", "\r\n\r\n", "0\r\n\r\n", "1;\r\n", "\n--\n", "\n----\n", "GET / ", "POST / ", "%00",
    "dense<", "@transpose(", "@concat(0, ", "slice(", "reshape([", "stack(", "stage cached", "fact ", "return %",
    " in model", "tokens", "rows", "seqs + 1", " // ", "float32[", "int32[", "kv[]", "kv_cache.0", "data: ",
    "[DONE]", "[/a]",
}  # fmt: skip
NAMES = sorted(_FIELDS | _KEYS | {*TEMPLATES})
WORDS = sorted({f'"{name}"' for name in NAMES} | _TEXTS | {*op_names("cached")})

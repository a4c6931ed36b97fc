"""Declares the inputs of TensorRT-LLM's models that this engine cannot serve, and refuses them by name.

They are declared so that clients find the names that they know. An input with a neutral value, which clients send by
default, is not refused.
"""

from __future__ import annotations

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.serving.triton.tensors import Row, Tensor, tensors

REFUSED_COMMON: tuple[Tensor, ...] = (
    *tensors("BOOL", "return_context_logits return_generation_logits"),
    *tensors("FP16", "lora_weights", (-1, -1)),
    *tensors("INT32", "lora_config", (-1, 3)),
    *tensors("INT32", "prompt_vocab_size"),
    *tensors("FP16", "prompt_embedding_table", (-1, -1)),
)
REFUSED_TEXT: tuple[Tensor, ...] = (
    *tensors("STRING", "decoder_text_input image_url_input"),
    *tensors("UINT64", "prompt_table_extra_id"),
    *tensors("INT32", "num_draft_tokens"),
    *tensors("BOOL", "use_draft_logits"),
    *tensors("FP16", "image_input", (-1, 3, -1, -1)),
    *tensors("UINT8", "image_bytes_input video_bytes_input", (-1, -1, -1, -1)),
)
REFUSED_TOKENS: tuple[Tensor, ...] = (
    *tensors("INT32", "draft_input_ids decoder_input_ids", (-1,)),
    *tensors("INT32", "decoder_input_lengths encoder_output_lengths"),
    *tensors("FP32", "draft_logits encoder_input_features", (-1, -1)),
    *tensors("FP32", "draft_acceptance_threshold runtime_top_p_min runtime_top_p_decay"),
    *tensors("FP32", "beam_search_diversity_rate"),
    *tensors("INT32", "runtime_top_p_reset_ids"),
    *tensors("BOOL", "skip_cross_attn_blocks"),
    *tensors("UINT64", "prompt_table_extra_ids", (-1,)),
    *tensors("BOOL", "cross_attention_mask", (-1, -1)),
    *tensors("FP32", "mrope_rotary_cos_sin", (-1,)),
    *tensors("INT64", "mrope_position_deltas"),
    *tensors("UINT8", "context_phase_params", (-1,)),
    *tensors(
        "INT32",
        "retention_token_range_starts retention_token_range_ends retention_token_range_priorities "
        "retention_token_range_durations_ms",
        (-1,),
    ),
    *tensors("INT32", "retention_decode_priority retention_decode_duration_ms"),
    *tensors("INT32", "lookahead_window_size lookahead_ngram_size lookahead_verification_set_size"),
)
REFUSED_LLMAPI: tuple[Tensor, ...] = (
    *tensors("STRING", "image_url", (-1,)),
    *tensors("UINT64", "lora_id"),
    *tensors("STRING", "lora_name lora_path lora_ckpt_source"),
)

_LORA = (
    "LoRA adapters are not brought by requests: parameter 'lora_adapters' of the model's config.pbtxt lists them, and "
    "lora_task_id of the text and the token interface names one"
)
_DRAFT = "draft tokens are not supported"
_TABLE = "prompt embedding tables are not supported"
_IMAGE = "images and video are not supported: engines take text"
_DECODER = "encoder-decoder models are not supported"
_LOGITS = "logits are not returned: ask for return_log_probs"
_TOP_P = "a top_p that changes during a request is not supported"
_REASONS = {
    "lora": _LORA, "image": _IMAGE, "video": _IMAGE, "draft": _DRAFT, "num_draft": _DRAFT, "use_draft": _DRAFT,
    "prompt": _TABLE, "decoder": _DECODER, "encoder": _DECODER, "cross": _DECODER, "skip_cross": _DECODER,
    "return_context_logits": _LOGITS, "return_generation_logits": _LOGITS,
    "beam_search_diversity_rate": "beams cannot be made more diverse", "runtime_top_p_decay": _TOP_P,
    "mrope": _IMAGE, "context_phase": "disaggregated serving is not supported",
    "retention": "how long single blocks are kept cannot be set", "lookahead": "lookahead decoding is not supported",
}  # fmt: skip
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "beam_search_diversity_rate": (0.0,),
    "runtime_top_p_decay": (1.0,),
    "num_draft_tokens": (0,),
    "use_draft_logits": (False,),
    "return_context_logits": (False,),
    "return_generation_logits": (False,),
    "decoder_text_input": ("", b""),
    "image_url_input": ("", b""),
    "image_url": ("", b""),
    "skip_cross_attn_blocks": (False,),
}
# These inputs only matter together with a refused one: a decay of top_p.
WITHOUT_EFFECT = {"runtime_top_p_min", "runtime_top_p_reset_ids"}
_REFUSED = {
    tensor.name
    for tensor in (*REFUSED_COMMON, *REFUSED_TEXT, *REFUSED_TOKENS, *REFUSED_LLMAPI)
    if tensor.name not in WITHOUT_EFFECT
}


def check_refused(row: Row) -> None:
    """Raises InvalidRequestError for the first input that asks for something that the engine cannot serve."""
    for name, values in row.sent().items():
        if name not in _REFUSED:
            continue
        neutral = _NEUTRAL.get(name)
        if neutral is None or any(value not in neutral for value in values.flat):
            raise InvalidRequestError(f"input {name!r} cannot be served: {_reason(name)}")


def _reason(name: str) -> str:
    return next(reason for begin, reason in _REASONS.items() if name.startswith(begin))

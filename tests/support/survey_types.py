"""Which types the survey tries: all decoders of transformers' causal mapping, and the text parts of its others."""

from __future__ import annotations

import dataclasses
import functools

from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.models.auto import modeling_auto

HELD_OUT = frozenset({"afmoe", "mimo_v2_flash", "youtu", "exaone_moe", "bailing_hybrid"})
"""Chosen before any work on mixtures, latent attention and recurrences, to be tried once, when that work is done."""

ENCODER = "an encoder: its class has a head for masked words too"
ENCODER_DECODER = "an encoder beside its decoder (is_encoder_decoder)"
OTHERS = {
    "bert-generation": "an encoder, unless its config says is_decoder",
    "blip": "a decoder of captions: every layer attends to an image",
    "blt": "groups bytes into patches, whose ends a second model chooses while it runs",
    "evolla": "reads a protein beside the text",
    "diffusion_gemma": "fills a block of tokens in any order, by diffusion",
    "gemma4_assistant": "drafts for another model, whose hidden states it reads",
    "gemma4_unified_assistant": "drafts for another model, whose hidden states it reads",
    "idefics": "computes nothing without an image",
    "kyutai_speech_to_text": "reads frames of sound, one beside each token",
    "pi0": "predicts a robot's actions, and no tokens",
    "trocr": "the decoder of an encoder-decoder: every layer attends to an image",
    "voxtral_realtime": "reads sound beside every token",
    "xlnet": "attends both ways",
}
"""What is no decoder of text, where the config does not tell it: the type -> what it is."""


@dataclasses.dataclass(frozen=True)
class Field:
    """Every type of both mappings, in one of these.

    tried: a tiny model is made of each. same: a type -> the tried one that has its text class. left_out: what is no
    decoder -> what it is instead.
    """

    tried: tuple[str, ...]
    same: dict[str, str]
    left_out: dict[str, str]


@functools.cache
def field() -> Field:
    causal = dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    beside = {
        **modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }
    left_out: dict[str, str] = {}
    texts: dict[str, type[PreTrainedConfig]] = {}
    for name in sorted({*causal, *beside} - HELD_OUT):
        reason = what_else(name)
        if reason:
            left_out[name] = reason
        else:
            texts[name] = type(default_config(name).get_text_config())
    first: dict[type[PreTrainedConfig], str] = {}
    for name in sorted(texts, key=lambda name: (depth(default_config(name)), len(name), name)):
        first.setdefault(texts[name], name)  # a decoder's own type before those that have it inside, short names first
    of_held_out = {CONFIG_MAPPING[name] for name in HELD_OUT}
    same = {name: first[text] for name, text in texts.items() if first[text] != name and text not in of_held_out}
    tried = tuple(name for name, text in texts.items() if first[text] == name and text not in of_held_out)
    return Field(tried, same, left_out)


def what_else(name: str) -> str | None:
    """Returns what the type is, if it is no decoder of text."""
    if name in OTHERS:
        return OTHERS[name]
    if default_config(name).is_encoder_decoder:
        return ENCODER_DECODER
    if name in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return ENCODER
    return None


def depth(config: PreTrainedConfig) -> int:
    """Returns how many configs the text part is inside of."""
    text = config.get_text_config()
    if text is config:
        return 0
    return 1 if any(part is text for part in vars(config).values()) else 2


@functools.cache
def default_config(name: str) -> PreTrainedConfig:
    return CONFIG_MAPPING[name]()

"""The survey: a tiny random model of every decoder of transformers, and what becomes of it; see docs/families.md.

A type works if its float32 engine gives transformers' logits on a prompt longer than the sliding window; else it must
be refused by a typed error. Anything else, a wrong number or an error of another kind, is a fault of ours.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMultimodalLM, AutoModelForSeq2SeqLM

from support.harness import EngineSteps, default_type, worst
from support.survey_configs import FIRST_SPECIAL, VOCABULARY, tiny_config
from support.survey_types import field
from support.tiny_models import randomise, write_tokenizer
from tensorwright import build
from tensorwright.errors import TensorwrightError

WORKS, REFUSED, WRONG, UNTYPED, UNMADE = "works", "refused", "wrong", "untyped", "unmade"
PROMPT, PROMPTS = 40, 8
"""The length of a prompt, and how many there are in a comparison of bfloat16 engines."""
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "axk1 with dense layers": ("axk1", {"first_k_dense_replace": 2}),
    "cohere with use_qk_norm": ("cohere", {"use_qk_norm": True}),
    "deepseek_v2 with dense layers": ("deepseek_v2", {"first_k_dense_replace": 2}),
    "deepseek_v3 with dense layers": ("deepseek_v3", {"first_k_dense_replace": 2}),
    "deepseek_v32 with dense layers": ("deepseek_v32", {"mlp_layer_types": ["dense"] * 2}),
    "falcon with alibi": ("falcon", {"alibi": True}),
    "gemma4_text with experts": (
        "gemma4_text",
        {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 24},
    ),
    "glm4_moe_lite with dense layers": ("glm4_moe_lite", {"mlp_layer_types": ["dense"] * 2}),
    "llama with dynamic rope": ("llama", {"rope_parameters": DYNAMIC}),
    "t5": ("t5", {}),
    "bart": ("bart", {}),
    "bert": ("bert", {}),
}
"""A name -> a type and options: further models, of no decoders too, that are tried and not counted as types."""


@functools.cache
def surveyed() -> tuple[str, ...]:
    """Every model that is tried: the types, and VARIANTS."""
    return (*field().tried, *VARIANTS)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """status: works, refused, unmade (the tiny config does not fit), or a fault. error: the class and message of what
    was raised. counts: of the passes.

    bfloat16: for what works, the status of an engine in that type.
    """

    status: str
    error: str = ""
    message: str = ""
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    bfloat16: str = ""


def try_family(model_type: str, root: Path, *, bfloat16: bool = False) -> Outcome:
    """Writes a checkpoint of `model_type` below `root`, builds it and compares the engine with transformers."""
    model_dir, engine = root / "model", root / "engine"
    try:
        model = make_model(model_type, model_dir)
        theirs = None if model.config.is_encoder_decoder else logits(model, prompt())
    except Exception as error:  # the tiny config does not fit the class
        return Outcome(UNMADE, type(error).__name__, str(error))
    try:
        built = build(model_dir, engine, dtype="float32", max_seq_len=128, accuracy="none")
        ours = EngineSteps(engine).logits(prompt())
    except TensorwrightError as error:
        return Outcome(REFUSED, type(error).__name__, str(error).replace(str(model_dir), "<model>"))
    except Exception as error:  # what the survey is there to find
        return Outcome(UNTYPED, type(error).__name__, str(error))
    counts = {name: count for name, count in built.config["passes"].items() if count}
    ids = prompt()
    exact = logits(model.to(torch.float64), ids)
    allowed = 4 * worst(theirs, exact) + float(np.abs(exact).max()) * float(np.finfo(np.float32).eps)
    off = worst(ours, exact)
    if not off <= allowed:
        return Outcome(WRONG, "", f"logits are off by {off:.2g}, allowed {allowed:.2g}", counts)
    return Outcome(WORKS, counts=counts, bfloat16=try_bfloat16(model, root) if bfloat16 else "")


def try_bfloat16(
    model: torch.nn.Module, root: Path, end: int = FIRST_SPECIAL, *, checkpoint: Path | None = None
) -> str:
    """Builds a bfloat16 engine and compares it with transformers' own bfloat16, both by their distance from the exact
    logits of the same weights, which bfloat16 has exactly.

    The medians over the rows of several prompts are compared. Rounding now and then makes a router choose another
    expert than the exact one, where two have nearly the same score, and a recurrence may enlarge one rounding a
    hundredfold. In either case few rows, ours or theirs by chance, would decide about a sum.

    checkpoint: where the model is stored already, with weights that bfloat16 has; None means that it is rounded and
    stored here.
    """
    folder, engine = checkpoint or root / "rounded", root / "bfloat16"
    exact = model.float()
    with torch.no_grad():
        for parameter in exact.parameters():  # and no buffer: frequencies and scales stay whole
            parameter.copy_(parameter.bfloat16())
    if checkpoint is None:
        exact.save_pretrained(folder, safe_serialization=True)
        write_tokenizer(folder, VOCABULARY)
    try:
        build(folder, engine, max_seq_len=128, dtype="bfloat16", accuracy="none")
    except TensorwrightError as error:
        return f"{REFUSED}: {type(error).__name__}"
    theirs = type(model).from_pretrained(folder, dtype=torch.bfloat16, **EAGER).eval()
    steps, exact = EngineSteps(engine), exact.double()
    distances = [
        [np.linalg.norm(some - logits(exact, ids), axis=-1) for some in (steps.logits(ids), logits(theirs, ids))]
        for ids in (prompt(seed, end) for seed in range(1, 1 + PROMPTS))
    ]
    ours, others = np.median(np.concatenate(distances, axis=1), axis=1)
    return WORKS if ours <= others else WRONG


def survey_config(name: str) -> Any:
    """The config of a model of `surveyed`."""
    model_type, options = VARIANTS.get(name, (name, {}))
    return tiny_config(model_type, options)


def make_model(name: str, path: Path) -> torch.nn.Module:
    """A random model, and its checkpoint at `path`."""
    config = survey_config(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = from_config(config)
        randomise(model)
    model.save_pretrained(path, safe_serialization=True)
    write_tokenizer(path, VOCABULARY)
    return model.eval()


def from_config(config: Any) -> torch.nn.Module:
    """The causal language model, or that of several parts; for what has none, an encoder-decoder or bare model."""
    decoders: tuple[Any, ...] = (AutoModelForCausalLM, AutoModelForMultimodalLM, AutoModel)
    if config.get_text_config() is not config:  # the class of the text alone would write a config of no known type
        decoders = (AutoModelForMultimodalLM, *decoders)
    for auto in (AutoModelForSeq2SeqLM,) if config.is_encoder_decoder else decoders:
        if type(config) in auto._model_mapping:
            return auto.from_config(config, dtype=torch.float32, **EAGER)
    raise AssertionError(f"{config.model_type} has no model")


def prompt(seed: int = 1, end: int = FIRST_SPECIAL) -> list[int]:
    """PROMPT ids from 3 to `end` - 1."""
    ids: list[int] = np.random.default_rng(seed).integers(3, end, PROMPT).tolist()
    return ids


def logits(model: torch.nn.Module, ids: list[int]) -> np.ndarray:
    with torch.inference_mode(), default_type(model.dtype):
        return model(torch.tensor([ids]), use_cache=False).logits[0].double().numpy()

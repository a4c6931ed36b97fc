"""Engines with heads (EAGLE-3, MTP, Medusa): the model and the heads equal torch, and the logits are those without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from support.made_heads import TorchHeads, make_heads
from support.made_medusa import TorchMedusa, make_medusa
from support.made_mtp import TorchMtp, make_mtp
from support.ragged import Ragged
from support.tiny_models import make_tiny
from tensorwright import LLM, SamplingParams, build
from tensorwright.builder.rebuild import rebuild
from tensorwright.engine_format.engine_config import EngineConfig
from tensorwright.errors import CheckpointError, InvalidOptionError, UnsupportedModelError
from tensorwright.runtime import _runtime

READ = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
"""The layers whose inputs EAGLE-3 reads. Of a target with two layers the last one is the output of them all."""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "a layer behind them, norms": (
        "llama", {"num_hidden_layers": 3, "draft_vocab": 40, "norm_before_fc": True, "norm_output": True}
    ),
    "speculators": ("qwen2", {"speculators": True, "norm_before_residual": True, "draft_vocab": 64}),
    "norms around": ("gemma2", {}),
    "experts": ("qwen3_moe", {"attention_bias": False}),
    "latent": ("deepseek_v3", {"draft_vocab": 50}),
    "windows": ("mistral", {}),
}  # fmt: skip
TOKENS = {"a": [5, 9, 3, 77, 21, 4, 8, 8, 30, 61, 2, 17, 90, 33, 12, 6, 71], "b": [44, 7, 19, 19, 80, 3, 25, 13, 66]}
TOLERANCE = 2e-4
VERIFIED = ("llama", "experts over latent rows", "norms around")
"""Cases of which the build compares the numbers over each pass too. The engines of all are compared with torch."""


def made(folder: Path, family: str, num_hidden_layers: int = 2, **config: Any) -> tuple[Path, Path]:
    """A target with random heads."""
    target = make_tiny(folder / "model", family, num_hidden_layers=num_hidden_layers)
    return target, make_heads(folder / "heads", target, **{**READ, **config})


def opened(engine: Path) -> Any:
    return _runtime.CpuExecutor(str(engine / "cpu/plan.bin"), str(engine / "cpu/weights.bin"), 2, "map")


def close(ours: np.ndarray, theirs: torch.Tensor) -> bool:
    largest = float(theirs.abs().max())
    return float(np.abs(ours - theirs.numpy()).max()) <= TOLERANCE * max(largest, 1.0)


@pytest.mark.parametrize("case", CASES)
def test_features_and_heads_equal_torch(case: str, tmp_path: Path) -> None:
    family, config = CASES[case]
    target, heads = made(tmp_path, family, **config)
    plain = build(target, tmp_path / "plain", dtype="float32", accuracy="none").path
    options = {"dtype": "float32", "accuracy": "none", "verify": case in VERIFIED}
    engine = build(target, tmp_path / "engine", heads=heads, **options).path
    compare(engine, plain, TorchHeads(heads, target))


def compare(engine: Path, plain: Path, theirs: TorchHeads | TorchMtp | TorchMedusa) -> None:
    """Compares an engine with heads with one without, bit by bit, and its features and heads with torch."""
    names = list(TOKENS)
    feeds = [(name, TOKENS[name]) for name in names]
    run, without = Ragged(opened(engine), 20), Ragged(opened(plain), 20)

    arguments = run.arguments(feeds)
    logits, features = run.executor.step_with_features(**arguments)
    assert np.array_equal(logits, without.step(feeds)), "the heads changed a bit of the logits"
    assert np.array_equal(logits, run.executor.step(**arguments)), "the features changed a bit of the logits"
    ends = np.cumsum([len(TOKENS[name]) for name in names])
    of = dict(zip(names, np.split(features, ends[:-1]), strict=True))
    for name in names:
        assert close(of[name], theirs.feature(TOKENS[name]))

    given = np.concatenate([of[name][:-1] for name in names])
    known = [(name, TOKENS[name][1:]) for name in names]
    said, own = run.executor.draft_step(**without_states(run.arguments(known)), features=given)
    ends = np.cumsum([len(tokens) for _, tokens in known])
    for (name, tokens), ours, mine in zip(known, np.split(said, ends[:-1]), np.split(own, ends[:-1]), strict=True):
        expected, features_then = theirs.say(tokens, torch.from_numpy(of[name][:-1]))
        assert close(ours, expected)
        assert close(mine, features_then)
        # The next token is proposed, and its feature is the heads' own.
        run.lengths[name] = len(tokens)
        longer = [*tokens, 11]
        further = torch.cat([torch.from_numpy(of[name][:-1]), features_then[-1:]])
        again, _ = run.executor.draft_step(**without_states(run.arguments([(name, [11])])), features=mine[-1:].copy())
        assert close(again[0], theirs.say(longer, further)[0][-1])


MTP: dict[str, tuple[str, dict[str, Any]]] = {
    "dense latent": ("deepseek_v3_dense", {}),
    "experts": ("deepseek_v3_experts", {}),
    "experts that attend as others, copies of the shared matrices": ("glm4_moe", {"copies": True}),
    "experts over latent rows": (
        "glm4_moe_lite_experts", {"mlp_layer_types": ["dense", "sparse", "sparse"]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MTP)
def test_the_layer_that_predicts_further_tokens_equals_torch(case: str, tmp_path: Path) -> None:
    variant, config = MTP[case]
    target = make_mtp(tmp_path / "model", variant, **config)
    plain = build(target, tmp_path / "plain", dtype="float32", accuracy="none")
    options = {"dtype": "float32", "accuracy": "none", "verify": case in VERIFIED}
    result = build(target, tmp_path / "engine", heads="mtp", **options)
    assert result.config["heads"] == {"kind": "mtp", "width": 32, "vocab_size": 101}
    assert plain.config["model"]["left_out"]["model.layers.2"]["reason"] == "predicts further tokens"
    assert "left_out" not in result.config["model"]
    compare(result.path, plain.path, TorchMtp(target))


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_a_checkpoint_without_such_a_layer_is_refused(family: str, tmp_path: Path) -> None:
    target = make_tiny(tmp_path / "model", family)
    with pytest.raises(UnsupportedModelError, match=r"has no layer model.layers.2 with enorm.weight.*leave out heads"):
        build(target, tmp_path / "out", accuracy="none", heads="mtp")


MEDUSA: dict[str, tuple[str, dict[str, Any]]] = {
    "authors": ("llama", {}),
    "two blocks": ("qwen2", {"blocks": 2, "heads": 2, "prefix": "medusa_head."}),
    "the model's output matrix": ("mistral", {"shared": True, "heads": 5}),
    "vllm": ("llama", {"form": "vllm", "bias": False, "heads": 6, "prefix": "medusa_heads."}),
    "experts": ("qwen3_moe", {"form": "vllm"}),
    "norms around": ("gemma2", {}),
    "layer norms": ("gpt_neox", {}),
}


@pytest.mark.parametrize("case", MEDUSA)
def test_medusa_heads_equal_torch(case: str, tmp_path: Path) -> None:
    family, config = MEDUSA[case]
    target = make_tiny(tmp_path / "model", family)
    heads = make_medusa(tmp_path / "heads", target, **config)
    plain = build(target, tmp_path / "plain", dtype="float32", accuracy="none").path
    options = {"dtype": "float32", "accuracy": "none", "verify": case in VERIFIED}
    result = build(target, tmp_path / "engine", heads=heads, **options)
    assert (result.config["heads"]["kind"], result.config["heads"]["vocab_size"]) == ("medusa", 101)
    compare(result.path, plain, TorchMedusa(heads, target))


def without_states(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name != "state_slots"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return made(tmp_path_factory.mktemp("pair"), "llama", draft_vocab=40)


@pytest.fixture(scope="module")
def with_mtp(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    sizes = {"mlp_layer_types": ["dense", "sparse", "sparse"]}
    return make_mtp(tmp_path_factory.mktemp("mtp") / "model", "glm4_moe_lite_experts", **sizes), "mtp"


@pytest.fixture(scope="module")
def with_medusa(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("medusa")
    target = make_tiny(folder / "model", "llama")
    return target, make_medusa(folder / "heads", target)


@pytest.mark.parametrize(
    ("heads", "options"),
    [
        ("with_medusa", {"dtype": "bfloat16"}),
        ("with_medusa", {"quantize": "w8a8", "kv_cache_dtype": "int8"}),
        ("pair", {"dtype": "bfloat16"}),
        ("pair", {"quantize": "int4", "accuracy": "quick"}),
        ("pair", {"quantize": "w8a8", "kv_cache_dtype": "int8"}),
        ("with_mtp", {"dtype": "bfloat16"}),
        ("with_mtp", {"quantize": "int8"}),
    ],
    ids=["medusa", "medusa in w8a8", "bfloat16", "int4", "w8a8 and int8 cache", "mtp", "mtp in int8"],
)
def test_every_format_answers_as_without_heads(
    heads: str, options: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    target, place = request.getfixturevalue(heads)
    """Of one format the accuracy is measured too."""
    plain = build(target, tmp_path / "plain", **{**options, "accuracy": "none"}).path
    result = build(target, tmp_path / "engine", heads=place, **{"accuracy": "none", **options})
    params = SamplingParams(max_tokens=24, temperature=0.7, seed=1, ignore_eos=True, logprobs=2)
    prompts = [{"prompt_token_ids": tokens} for tokens in TOKENS.values()]
    answers = []
    for path, speculative in ((plain, None), (result.path, None), (result.path, "heads,tokens=4")):
        with LLM(path, speculative=speculative, kv_cache_memory="1MiB") as llm:
            answers.append([[(c.token_ids, c.logprobs) for c in o.outputs] for o in llm.generate(prompts, params)])
            if speculative:
                stats = llm.get_stats()
                assert stats["draft_tokens"] > 0
                assert stats["draft_failures"] == 0
    assert answers[0] == answers[1] == answers[2]


def test_the_record_says_what_the_heads_are(pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, heads = pair
    config = build(target, tmp_path / "engine", accuracy="none", heads=heads).config
    record = config["heads"]
    assert (record["kind"], record["width"], record["vocab_size"]) == ("eagle3", 32, 40)
    assert set(record["source"]["files"]) == {"config.json", "model.safetensors"}
    assert str(tmp_path) not in json.dumps(config)
    assert config["sizes"]["cpu/draft_tokens.bin"] == 4 * 40
    assert "heads" not in build(target, tmp_path / "plain", accuracy="none").config
    with pytest.raises(InvalidOptionError, match="which an engine does not keep apart; give them again"):
        rebuild(tmp_path / "engine", EngineConfig.from_dict(config, tmp_path), tmp_path / "again", model=target)


WRONG_MEDUSA: dict[str, tuple[type[Exception], str, Any]] = {
    "another model's width": (CheckpointError, "their hidden_size is 48, not 32", {"hidden_size": 48}),
    "another vocabulary": (CheckpointError, "their vocab_size is 77, not 101", {"vocab_size": 77}),
    "a part of the vocabulary": (UnsupportedModelError, "truncated vocabulary", {"truncated_vocab_size": 64}),
    "one head": (CheckpointError, "must be 2 to 16, config.json says 1", {"num_heads": 1}),
    "a head more": (CheckpointError, r"heads.3.blocks.0.weight: missing", {"num_heads": 4}),
    "a head less": (CheckpointError, r"\d tensors are no part of 2 Medusa heads with 1 blocks", {"num_heads": 2}),
    "blocks that are not there": (CheckpointError, r"heads.0.blocks.1.weight: missing", {"num_hidden_layers": 2}),
    "more blocks than there may be": (CheckpointError, "must have 1 to 16 blocks", {"num_hidden_layers": 10**9}),
    "one output matrix for all": (UnsupportedModelError, "original_lm_head are not", {"original_lm_head": True}),
    "no number": (CheckpointError, "as medusa_num_layers or num_hidden_layers: None", {"num_hidden_layers": None}),
}


@pytest.mark.parametrize("case", WRONG_MEDUSA)
def test_wrong_medusa_heads_are_refused_by_name(case: str, with_medusa: tuple[Path, Path], tmp_path: Path) -> None:
    error, message, config = WRONG_MEDUSA[case]
    target, _ = with_medusa
    heads = make_medusa(tmp_path / "heads", target, form="vllm")
    whole = json.loads((heads / "config.json").read_text(encoding="utf-8")) | config
    (heads / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    with pytest.raises(error, match=message):
        build(target, tmp_path / "out", accuracy="none", heads=heads)
    assert not (tmp_path / "out").exists()


def test_medusa_heads_as_pickles_are_refused(with_medusa: tuple[Path, Path], tmp_path: Path) -> None:
    target, _ = with_medusa
    heads = make_medusa(tmp_path / "heads", target)
    (heads / "medusa_lm_head.safetensors").rename(heads / "medusa_lm_head.pt")
    with pytest.raises(CheckpointError, match=r"safetensors and GGUF are read, not medusa_lm_head.pt"):
        build(target, tmp_path / "out", accuracy="none", heads=heads)


def test_an_engine_says_no_more_than_its_medusa_heads(with_medusa: tuple[Path, Path], tmp_path: Path) -> None:
    target, heads = with_medusa
    result = build(target, tmp_path / "engine", accuracy="none", heads=heads)
    assert result.config["heads"]["at_once"] == 3
    params = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    with LLM(result.path, speculative="heads,tokens=8", kv_cache_memory="1MiB") as llm:
        llm.generate([{"prompt_token_ids": TOKENS["a"]}], params)
        stats = llm.get_stats()
    assert 0 < stats["draft_tokens"] <= 3 * stats["drafts"]


def rewrite(heads: Path, folder: Path, tensors: Any = None, config: Any = None) -> Path:
    """A copy of heads with other tensors and another config."""
    folder.mkdir()
    state = load_file(heads / "model.safetensors")
    save_file(state if tensors is None else tensors(state), folder / "model.safetensors")
    whole = json.loads((heads / "config.json").read_text(encoding="utf-8")) | (config or {})
    (folder / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    return folder


def lacking(name: str) -> Any:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


WRONG: dict[str, tuple[type[Exception], str, Any, dict[str, Any]]] = {
    "another model's width": (CheckpointError, "their target_hidden_size is 48", None, {"target_hidden_size": 48}),
    "another vocabulary": (CheckpointError, "their vocab_size is 77, not 101", None, {"vocab_size": 77}),
    "layers that the target lacks": (
        CheckpointError, "must name 3 layers of the target's 2", None, {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}
    ),
    "two layers": (UnsupportedModelError, "must be one Llama layer, not 2", None, {"num_hidden_layers": 2}),
    "no heads": (UnsupportedModelError, "heads must be of EAGLE-3", None, {"architectures": ["LlamaForCausalLM"]}),
    "a weight less": (CheckpointError, "fc.weight: missing", lacking("fc.weight"), {}),
    "a weight of another shape": (
        CheckpointError, r"norm.weight: stored as \[16\]", lambda t: t | {"norm.weight": torch.ones(16)}, {}
    ),
    "no map of tokens": (CheckpointError, "no d2t says which", lacking("d2t"), {}),
    "tokens that the model lacks": (CheckpointError, "tokens below 101", lambda t: t | {"d2t": t["d2t"] + 90}, {}),
    "a size that is no number": (
        CheckpointError, "draft_vocab_size must be a positive", None, {"draft_vocab_size": "x"}
    ),
    "an unknown activation": (CheckpointError, "no heads can be made", None, {"hidden_act": "never-seen"}),
    "a rope that follows the length": (
        UnsupportedModelError, "rope of type default, linear, llama3, yarn, not 'dynamic'", None,
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "a norm of each hidden state": (UnsupportedModelError, "fc_norm is not supported", None, {"fc_norm": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_heads_are_refused_by_name(case: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    kind, says, tensors, config = WRONG[case]
    target, heads = pair
    with pytest.raises(kind, match=says):
        build(target, tmp_path / "out", accuracy="none", heads=rewrite(heads, tmp_path / "wrong", tensors, config))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"target": "onnx"}, "heads"),
        ({"keep_weights": True}, "leave out keep_weights or heads"),
        ({"heads": "absent"}, "no such directory"),
    ],
)
def test_options_that_do_not_go_together(options: Any, says: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, heads = pair
    with pytest.raises((InvalidOptionError, CheckpointError), match=says):
        build(target, tmp_path / "out", **{"accuracy": "none", "heads": heads, **options})


def test_an_engine_without_heads_refuses_to_speculate_with_them(pair: tuple[Path, Path], tmp_path: Path) -> None:
    engine = build(pair[0], tmp_path / "engine", accuracy="none").path
    with pytest.raises(InvalidOptionError, match="was built without heads; build it with --heads"):
        LLM(engine, speculative="heads")

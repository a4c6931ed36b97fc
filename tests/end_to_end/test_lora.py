"""LoRA adapters of a running engine: the numbers of PEFT and of the graph, the bits in any company, and their lives."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tolerances import chain_tolerance

from support.harness import load_reference, logits_of
from support.made_adapters import make_adapter, places_of, with_adapter
from support.tiny_models import make_variant
from tensorwright import LLM, SamplingParams, build
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.engine_format.checksums import checksum_text, read_checksums
from tensorwright.errors import AdapterError, InvalidOptionError, InvalidRequestError, UnknownModelError
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.ragged import interpret_ragged
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.models.merge_lora import merge_lora
from tensorwright.models.peft_adapter import read_adapter
from tensorwright.plugins.rounding import to_bfloat16_bits
from tensorwright.runtime import _runtime
from tensorwright.runtime.commands.chat.settings import Settings
from tensorwright.runtime.commands.cli import cli
from tensorwright.runtime.engine.adapters import content_key, make_products

IDS = [np.random.default_rng(i).integers(1, 97, 9).tolist() for i in range(4)]
TWO = {"a": {"rank": 4, "seed": 1}, "b": {"rank": 16, "seed": 2, "config": {"use_rslora": True}}}
"""Two adapters of different ranks and factors."""


class Model:
    """A tiny model, its engine, and two adapters of all modules that an adapter may change."""

    def __init__(self, folder: Path, variant: str, **options: Any):
        self.folder = folder
        self.checkpoint = make_variant(folder / "model", variant, seed=5)
        self.engine = build(self.checkpoint, folder / "engine", accuracy="none", **options).path
        places = places_of(self.engine)
        transposed = any(part.transposed for product in places.products for part in product.parts)
        self.adapters = {
            name: make_adapter(
                folder / name,
                places.modules,
                **{**made, "config": {**made.get("config", {}), "fan_in_fan_out": transposed}},
            )
            for name, made in TWO.items()
        }


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Model]:
    made: dict[str, Model] = {}

    def get(variant: str, **options: Any) -> Model:
        key = f"{variant} {options}"
        if key not in made:
            made[key] = Model(tmp_path_factory.mktemp("lora"), variant, **options)
        return made[key]

    return get


def scored(
    llm: LLM, prompts: Sequence[list[int]], adapters: Sequence[str | None], tokens: int = 4
) -> list[tuple[list[float], list[int]]]:
    """For each prompt the logprobs of its tokens and of those of its answer, and the answer."""
    params = [
        SamplingParams(
            adapter=name,
            max_tokens=tokens,
            temperature=0,
            ignore_eos=True,
            logprobs=0,
            prompt_logprobs=0,
            detokenize=False,
        )
        for name in adapters
    ]
    found = []
    for output in llm.generate([{"prompt_token_ids": ids} for ids in prompts], params):
        (completion,) = output.outputs
        rows = [*(output.prompt_logprobs or [])[1:], *(completion.logprobs or [])]
        ids = [*output.prompt_token_ids[1:], *completion.token_ids]
        found.append(([row[token].logprob for row, token in zip(rows, ids, strict=True)], completion.token_ids))
    return found


def expected(logits: np.ndarray, ids: list[int]) -> np.ndarray:
    """The logprob of each token behind the first."""
    rows = torch.log_softmax(torch.from_numpy(logits[:-1]), -1).numpy()
    return rows[np.arange(len(ids) - 1), ids[1:]]


def peft_logits(model: Model, adapter: Path, ids: list[int]) -> np.ndarray:
    from peft import PeftModel

    return logits_of(
        PeftModel.from_pretrained(load_reference(model.checkpoint, torch.float32), adapter), ids, torch.float32
    )


def bound(model: Model, logits: np.ndarray) -> float:
    """Sums in float32, in another order: those of the model, and two more for each product. A logprob is a logit less
    the logarithm of a sum, which is off by no more than the logits are."""
    nodes = 3 * len((model.engine / "graph.txt").read_text().splitlines())
    return 2 * chain_tolerance("float32", 256, nodes, float(np.abs(logits).max()))


@pytest.mark.parametrize("variant", ["llama", "qwen2", "phi3", "gpt2", "gpt_neox", "gptj", "mixtral"])
def test_numbers_are_those_of_peft_and_bits_those_without_company(model_of: Callable[..., Model], variant: str) -> None:
    model = model_of(variant, dtype="float32")
    names = ["a", "b", None, "a"]
    with LLM(model.engine, adapters=model.adapters, threads=2, kv_cache_memory="4MiB") as llm:
        together = scored(llm, IDS, names)
        alone = [scored(llm, [ids], [name])[0] for ids, name in zip(IDS, names, strict=True)]
    assert together == alone
    with LLM(model.engine, threads=1, kv_cache_memory="4MiB") as llm:
        assert scored(llm, [IDS[2]], [None])[0] == alone[2]
    for ids, name, (logprobs, tokens) in zip(IDS[:2], names, alone, strict=False):
        assert name is not None
        text = [*ids, *tokens]
        exact = peft_logits(model, model.adapters[name], text)
        assert np.abs(expected(exact, text) - logprobs).max() <= bound(model, exact)
    base = logits_of(load_reference(model.checkpoint, torch.float32), IDS[0], torch.float32)
    changed = np.abs(expected(base, IDS[0]) - alone[0][0][: len(IDS[0]) - 1]).max()
    assert changed > 10 * bound(model, base), "the adapter changes too little for this test"


@pytest.mark.parametrize(
    ("variant", "options"),
    [("llama", {"dtype": "float32"}), ("phi3", {"dtype": "bfloat16"}), ("llama", {"quantize": "int8"})],
)
def test_an_adapter_of_bfloat16_stays_as_it_is(
    model_of: Callable[..., Model], variant: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """It takes half the memory. Factors that are powers of two round nothing, so there the bits are those of the same
    numbers in float32, over any base and in any company; with any other factor the numbers are PEFT's."""
    model = model_of(variant, **options)
    shapes, adapters = places_of(model.engine).modules, {}
    for name, rank, alpha in (("halves", 4, 2), ("odd", 5, 7)):
        adapters[name] = make_adapter(
            tmp_path / name, shapes, rank=rank, seed=rank, dtype="bfloat16", config={"lora_alpha": alpha}
        )
    wide = adapters["wide"] = shutil.copytree(adapters["halves"], tmp_path / "wide")
    tensors = load_file(wide / "adapter_model.safetensors")
    save_file({name: tensor.float() for name, tensor in tensors.items()}, wide / "adapter_model.safetensors")
    names = ["halves", "odd", "wide", None]
    with LLM(model.engine, adapters=adapters, threads=2, kv_cache_memory="4MiB") as llm:
        together = scored(llm, [IDS[0]] * 4, names)
        assert together == [scored(llm, [IDS[0]], [name])[0] for name in names]
        assert together[0] == together[2]
        assert len({str(each) for each in together}) == 3
    bits, floats = (make_products(read_adapter(adapters[name]), places_of(model.engine)) for name in ("odd", "wide"))
    assert {product[1].dtype for product in bits} == {np.dtype(np.uint16)}
    assert {part[2].dtype for product in bits for part in product[2]} == {np.dtype(np.uint16)}
    assert {product[1].dtype for product in floats} == {np.dtype(np.float32)}
    if options == {"dtype": "float32"}:
        logprobs, tokens = together[1]
        exact = peft_logits(model, adapters["odd"], [*IDS[0], *tokens])
        assert np.abs(expected(exact, [*IDS[0], *tokens]) - logprobs).max() <= bound(model, exact)


def test_merged_weights_are_the_adapter(model_of: Callable[..., Model]) -> None:
    model = model_of("llama", dtype="float32")
    merged = model.folder / "merged"
    assert merge_lora(open_checkpoint(model.checkpoint), model.adapters["b"], merged).rank == 16
    engine = build(merged, model.folder / "merged-engine", accuracy="none", dtype="float32").path
    with LLM(model.engine, adapters=model.adapters, kv_cache_memory="4MiB") as llm:
        ours = scored(llm, IDS, ["b"] * 4)
    with LLM(engine, kv_cache_memory="4MiB") as llm:
        theirs = scored(llm, IDS, [None] * 4)
    for ids, (mine, tokens), (other, same) in zip(IDS, ours, theirs, strict=True):
        exact = logits_of(load_reference(merged, torch.float32), [*ids, *tokens], torch.float32)
        # The merged matrix is rounded once more.
        assert np.abs(np.subtract(mine, other)).max() <= 2 * bound(model, exact)
        assert tokens == same


@pytest.mark.parametrize("spec", ["int4", "int8", "w8a8", "mxfp4"])
def test_beside_quantized_weights(model_of: Callable[..., Model], spec: str) -> None:
    """The oracle interprets the engine's graph with a second product beside each linear."""
    model = model_of("llama", dtype="float32", quantize=spec)
    checkpoint = open_checkpoint(model.checkpoint)
    graph = parse_graph((model.engine / "graph.txt").read_text())
    exact = [
        interpret_ragged(with_adapter(graph, checkpoint, model.adapters[name]), [ids], checkpoint_weights(checkpoint))[
            0
        ]
        for ids, name in zip(IDS[:2], "ab", strict=True)
    ]
    with LLM(model.engine, adapters=model.adapters, kv_cache_memory="4MiB") as llm:
        together = scored(llm, IDS, ["a", "b", None, "b"])
        assert scored(llm, IDS[1:2], ["b"]) == together[1:2]
    errors, largest = [], 0.0
    for ids, logits, (logprobs, _) in zip(IDS[:2], exact, together, strict=False):
        numbers = logits.double().numpy()
        largest = max(largest, float(np.abs(numbers).max()))
        errors.append(float(np.abs(expected(numbers, ids) - logprobs[: len(ids) - 1]).max()))
    # An activation halfway between two of its steps may go to either: support/quantized_engines.py derives the bound.
    products = len(list(graph.find("quantized_linear")))
    assert max(errors) <= 2 * largest / 127 * math.sqrt(products)
    with LLM(model.engine, kv_cache_memory="4MiB") as llm:
        plain = scored(llm, IDS[:1], [None])[0][0][: len(IDS[0]) - 1]
    assert np.abs(np.subtract(plain, together[0][0][: len(plain)])).max() > max(errors)


PROMPTS = [np.random.default_rng(20 + i).integers(1, 8000, 93 + i).tolist() for i in range(4)]
NAMES = ["a", "b", None, "a"]
ANSWER = 40


@pytest.fixture(scope="module")
def pico_adapters(pico_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """c has the numbers of a, and d is of the attention alone."""
    folder, shapes = tmp_path_factory.mktemp("pico-adapters"), places_of(pico_engine).modules
    attention = {name: shape for name, shape in shapes.items() if "self_attn" in name}
    return {
        "a": make_adapter(folder / "a", shapes, rank=8, seed=1, spread=0.05),
        "b": make_adapter(folder / "b", shapes, rank=16, seed=2, spread=0.05, dtype=np.float16),
        "c": make_adapter(folder / "c", shapes, rank=8, seed=1, spread=0.05),
        "d": make_adapter(folder / "d", attention, rank=3, seed=4, spread=0.05),
    }


@pytest.fixture(scope="module")
def alone(pico_engine: Path, pico_adapters: dict[str, Path]) -> list[tuple[list[float], list[int]]]:
    with LLM(
        pico_engine, adapters=pico_adapters, threads=1, enable_prefix_caching=False, kv_cache_memory="16MiB"
    ) as llm:
        return [scored(llm, [ids], [name], ANSWER)[0] for ids, name in zip(PROMPTS, NAMES, strict=True)]


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_tokens": 16, "max_batch_size": 4},
        {"threads": 2, "max_prefill_chunk": 7},
        {"kv_cache_memory": "896KiB"},
        {"speculative": "ngram"},
    ],
    ids=["chunks", "threads", "preempted", "speculation"],
)
def test_bits_do_not_depend_on_how_the_engine_runs(
    pico_engine: Path, pico_adapters: dict[str, Path], alone: list[Any], options: dict[str, Any]
) -> None:
    with LLM(pico_engine, adapters=pico_adapters, **{"kv_cache_memory": "16MiB", "threads": 1, **options}) as llm:
        assert scored(llm, PROMPTS, NAMES, ANSWER) == alone
        # On a busy machine requests may come one after the other.
        while "kv_cache_memory" in options and not llm.get_stats()["preemptions"]:
            assert scored(llm, PROMPTS, NAMES, ANSWER) == alone
        assert ("kv_cache_memory" in options) == (llm.get_stats()["preemptions"] > 0)


HEADS = {"method": "heads", "tokens": 3}


def test_heads_propose_and_the_adapter_decides(
    pico_heads_engine: Path, pico_adapters: dict[str, Path], alone: list[Any]
) -> None:
    with LLM(pico_heads_engine, adapters=pico_adapters, speculative=HEADS, kv_cache_memory="16MiB", threads=1) as llm:
        assert scored(llm, PROMPTS, NAMES, ANSWER) == alone
        assert llm.get_stats()["draft_tokens"] > 0
    assert "belongs to the heads that propose tokens" in places_of(pico_heads_engine).refused.values()


@pytest.fixture
def llm(pico_engine: Path, pico_adapters: dict[str, Path]) -> Iterator[LLM]:
    given = {name: pico_adapters[name] for name in "ab"}
    with LLM(pico_engine, adapters=given, max_loras=3, kv_cache_memory="32MiB", threads=1) as llm:
        yield llm


def cached(llm: LLM, adapter: str | None, salt: str | None = None) -> tuple[int, list[int]]:
    """The cached tokens of a request, and the tokens of its answer."""
    params = SamplingParams(adapter=adapter, cache_salt=salt, max_tokens=3, temperature=0, detokenize=False)
    output = llm.generate({"prompt_token_ids": PROMPTS[0]}, params)
    return output.metrics.cached_tokens, output.outputs[0].token_ids


def test_prefixes_belong_to_the_content_of_an_adapter(llm: LLM, pico_adapters: dict[str, Path]) -> None:
    answers = {}
    for name in (None, "a", "b"):
        first, answers[name] = cached(llm, name)
        assert first == 0
        assert cached(llm, name) == (64, answers[name])
    llm.load_adapter("c", pico_adapters["c"])
    assert cached(llm, "c") == (64, answers["a"])  # Other name, same numbers.
    assert llm.adapters["c"].key == llm.adapters["a"].key != llm.adapters["b"].key
    llm.load_adapter("a", pico_adapters["d"])
    assert cached(llm, "a")[0] == 0  # Same name, other numbers.
    assert cached(llm, "b") == (64, answers["b"])
    assert cached(llm, None) == (64, answers[None])
    assert cached(llm, "b", "salt")[0] == 0
    with pytest.raises(InvalidRequestError, match="character 0"):
        cached(llm, None, f"\0{llm.adapters['b'].key}\0")


def test_completions_of_one_prompt_share_the_adapter(llm: LLM) -> None:
    prompt = {"prompt_token_ids": PROMPTS[1]}
    several = SamplingParams(n=3, seed=5, max_tokens=6, adapter="a", detokenize=False)
    outputs = llm.generate(prompt, several).outputs
    for index, completion in enumerate(outputs):
        alone = SamplingParams(seed=several.completion_seed(index), max_tokens=6, adapter="a", detokenize=False)
        assert llm.generate(prompt, alone).outputs[0].token_ids == completion.token_ids
    beams = SamplingParams(n=2, beam_width=2, max_tokens=6, adapter="a", detokenize=False)
    searches = llm.generate([prompt] * 3, [beams, SamplingParams(beam_width=2, max_tokens=6, detokenize=False), beams])
    answers = [[completion.token_ids for completion in search.outputs] for search in searches]
    assert answers[0] == answers[2] != answers[1]


def test_loading_and_unloading(llm: LLM, pico_adapters: dict[str, Path], pico_engine: Path) -> None:
    assert list(llm.adapters) == ["a", "b"]
    assert (llm.adapters["b"].rank, llm.adapters["b"].modules) == (16, 56)
    llm.unload_adapter("a")
    with pytest.raises(UnknownModelError, match="no adapter 'a'; there are b"):
        llm.generate_async({"prompt_token_ids": [1]}, SamplingParams(adapter="a"))
    with pytest.raises(UnknownModelError, match="no adapter 'a'"):
        llm.unload_adapter("a")
    for name in ("a", "c"):
        llm.load_adapter(name, pico_adapters[name])
    with pytest.raises(AdapterError, match="at most 3 adapters may be loaded, which are b, a, c"):
        llm.load_adapter("d", pico_adapters["d"])
    with pytest.raises(AdapterError, match="cannot be read"):
        llm.load_adapter("a", pico_engine)
    assert list(llm.adapters) == ["b", "a", "c"]


def test_an_adapter_lives_as_long_as_its_requests(pico_engine: Path, pico_adapters: dict[str, Path]) -> None:
    """The engine is stepped by hand, so that requests are under way as long as the test wants."""
    options = _runtime.EngineOptions()
    options.kv_cache_bytes, options.threads, options.debug_stepped = 16 << 20, 1, True
    options.max_adapters, options.max_adapter_rank = 2, 3 * 16
    engine = _runtime.Engine(str(pico_engine / "cpu/plan.bin"), str(pico_engine / "cpu/weights.bin"), options)

    def load(name: str) -> _runtime.Adapter:
        products = make_products(read_adapter(pico_adapters[name]), places_of(pico_engine))
        return engine.make_adapter(content_key(products), products)

    def submit(number: int, adapter: _runtime.Adapter | None) -> None:
        sampling = _runtime.Sampling()
        sampling.max_tokens, sampling.temperature, sampling.adapter = 20, 0.0, adapter
        engine.submit(number, PROMPTS[0], sampling)

    def tokens(number: int) -> list[int]:
        return [token for event in engine.wait_events(0) if event.request_id == number for token in event.tokens]

    adapter = load("a")
    submit(1, adapter)
    while engine.turn():
        pass
    undisturbed = tokens(1)
    submit(2, adapter)
    engine.turn()
    del adapter  # unloaded, while a request has it
    assert engine.live_adapters() == 1
    other = load("b")
    submit(3, other)
    with pytest.raises(AdapterError, match="at most 2 adapters"):
        load("d")
    assert engine.live_adapters() == 2
    while engine.turn():
        pass
    assert tokens(2) == undisturbed
    assert engine.live_adapters() == 1
    stranger = _runtime.Engine(str(pico_engine / "cpu/plan.bin"), str(pico_engine / "cpu/weights.bin"), options)
    sampling = _runtime.Sampling()
    sampling.adapter = other
    with pytest.raises(InvalidRequestError, match="an adapter must be one that this engine has made"):
        stranger.submit(1, [1, 2], sampling)
    stranger.shutdown(False)
    engine.shutdown(False)


def bits_of(parts: list[tuple[int, int, np.ndarray]]) -> list[tuple[int, int, np.ndarray]]:
    """The parts of a product in bfloat16."""
    return [(first, column, to_bfloat16_bits(b)) for first, column, b in parts]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda n, a, parts: (n, a[:, :-1].copy(), parts, None), "columns"),
        (lambda n, a, parts: (0, a, parts, None), "is no product"),
        (lambda n, a, parts: (n, a, [(99, 0, parts[0][2])], None), "a part has rows"),
        (lambda n, a, parts: (n, a, [(0, 639, parts[0][2])], None), "a part has columns"),
        (lambda n, a, parts: (n, a * np.float32(np.nan), parts, None), "not finite"),
        (lambda n, a, parts: (n, np.full(a.shape, 0x7F80, np.uint16), bits_of(parts), None), "not finite"),
        (lambda n, a, parts: (n, a.astype(np.float16), parts, None), "must all be float32, or all uint16"),
        (lambda n, a, parts: (n, a, bits_of(parts), None), "must all be float32, or all uint16"),
        (lambda n, a, parts: (n, a, parts, np.ones(1, np.float32)), "a factor for each row"),
        (lambda n, a, parts: (n, a, parts, np.full(len(a), np.inf, np.float32)), "a factor holds a number"),
    ],
)
def test_the_engine_refuses_weights_that_do_not_fit(
    llm: LLM, pico_engine: Path, pico_adapters: dict[str, Path], change: Callable[..., Any], words: str
) -> None:
    products = make_products(read_adapter(pico_adapters["a"]), places_of(pico_engine))
    native = llm._client._engine
    before = native.live_adapters()
    with pytest.raises(InvalidOptionError, match=words):
        native.make_adapter("key", [change(*products[0][:3])])
    assert native.live_adapters() == before


def test_commands(pico_engine: Path, llm: LLM, tmp_path: Path) -> None:
    strong = make_adapter(tmp_path / "strong", places_of(pico_engine).modules, spread=0.2)
    llm.load_adapter("strong", strong)
    given = ["--kv-cache-memory", "16MiB", "--adapter", f"strong={strong}"]
    command = ["run", str(pico_engine), "--prompt", "import os", "--max-tokens", "8", "--json", *given]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    expected = [
        llm.generate("import os", SamplingParams(max_tokens=8, temperature=0, adapter=name)).outputs[0].text
        for name in ("strong", None)
    ]
    assert expected[0] == json.loads(done.stdout)["text"] != expected[1]
    for name in ("run", "chat"):
        more = ["--prompt", "x"] if name == "run" else []
        twice = CliRunner().invoke(cli, [name, str(pico_engine), *more, *given, "--adapter", "c=x"])
        assert isinstance(twice.exception, InvalidOptionError)
        assert "--adapter must be given once" in str(twice.exception)


def test_chat_has_the_adapter_of_the_command() -> None:
    settings = Settings({"max_tokens": 5}, {"adapter": "b"})
    settings.change("temperature", "0.5")
    assert settings.params == SamplingParams(max_tokens=5, temperature=0.5, adapter="b")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"adapters": ["a"]}, "must be a dict"),
        ({"adapters": {"": "x"}}, "1 to 256 printable"),
        ({"adapters": {"a": 5}}, "the path of a folder"),
        ({"adapters": {"a": "x", "b": "y"}, "max_loras": 1}, "max_loras must be at least 2"),
        ({"max_loras": -1}, "max_loras must be a whole number"),
        ({"max_lora_rank": 129}, "from 1 to 128"),
    ],
)
def test_wrong_options(pico_engine: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOptionError, match=words):
        LLM(pico_engine, **options)


def test_an_engine_without_room_for_adapters(pico_engine: Path, pico_adapters: dict[str, Path]) -> None:
    with LLM(pico_engine, kv_cache_memory="8MiB") as llm:
        with pytest.raises(InvalidOptionError, match="max_loras must be positive"):
            llm.load_adapter("a", pico_adapters["a"])
        with pytest.raises(UnknownModelError, match="none is loaded"):
            llm.generate("x", SamplingParams(adapter="a"))
    with pytest.raises(AdapterError, match="rank 16, at most 4 is taken; raise max_lora_rank"):
        LLM(pico_engine, adapters={"b": pico_adapters["b"]}, max_lora_rank=4, kv_cache_memory="8MiB")


def test_an_engine_of_an_earlier_version(pico_engine: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(pico_engine, old)
    (old / "cpu/adapters.json").unlink()
    sums = {name: tuple(file) for name, file in read_checksums(pico_engine).items() if name != "cpu/adapters.json"}
    (old / "checksums.txt").write_text(checksum_text(sums))
    with pytest.raises(InvalidOptionError, match="built by an earlier version"):
        LLM(old, max_loras=1, kv_cache_memory="8MiB")
    with LLM(old, kv_cache_memory="8MiB") as llm:
        assert llm.adapters == {}


def test_modules_that_no_adapter_may_change(model_of: Callable[..., Model], tmp_path: Path) -> None:
    model = model_of("mixtral", dtype="float32")
    refused = places_of(model.engine).refused
    assert refused["model.embed_tokens"] == "is a table of embeddings"
    assert refused["lm_head"] == "computes the logits"
    experts = [name for name, why in refused.items() if why == "is the matrix of experts"]
    assert experts
    adapter = make_adapter(tmp_path / "x", {"lm_head": (97, 48)})
    with (
        LLM(model.engine, max_loras=1, kv_cache_memory="4MiB") as llm,
        pytest.raises(AdapterError, match="no adapter may change lm_head: it computes the logits"),
    ):
        llm.load_adapter("x", adapter)
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["r"] == 4

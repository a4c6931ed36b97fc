"""Engines of quantized weights: the numbers that the cached graph says, the same bits in any company, on any machine.

And what a user sees: counts, records, refusals, builds that are the same bytes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from support.isa_levels import VECTOR_LEVELS, run_at_level
from support.quantized_engines import SEQUENCES, TinyModel
from support.ragged import Ragged
from support.tiny_models import make_variant
from tensorwright import LLM, SamplingParams, build
from tensorwright.errors import CheckpointError, EngineError
from tensorwright.plugins.quantized_matmul.quantize import Quantized
from tensorwright.runtime import _runtime

FORMATS = ("int4:g32", "int4:g64", "int4:g128", "int8:g32", "int8:g64", "int8:g128", "w8a8")
MIXED = ("w8a8,embedding=none,lm_head=int8", "int4:g64,lm_head=int8:g128", "none,lm_head=int4", "int8,lm_head=none")
WIDE = {"hidden_size": 144, "intermediate_size": 208}
"""No group divides these: 144 = 4 * 32 + 16, 208 = 6 * 32 + 16."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TinyModel]:
    made: dict[tuple[str, str], TinyModel] = {}

    def get(variant: str, dtype: str = "float32") -> TinyModel:
        if (variant, dtype) not in made:
            overrides = WIDE if variant == "llama" else {}
            made[variant, dtype] = TinyModel(tmp_path_factory.mktemp(variant), variant, dtype=dtype, **overrides)
        return made[variant, dtype]

    return get


@pytest.mark.computes(least="avx2")
class TestNumbers:
    @pytest.mark.parametrize(
        ("variant", "spec"),
        [(v, s) for v in ("llama", "mixtral") for s in (*FORMATS, *MIXED)]
        + [(v, s) for place, v in enumerate(("qwen2", "gemma2", "gpt2")) for s in (*FORMATS, *MIXED)[place::3]]
        + [("gpt2", "w8a8")]
        + [("llama", spec) for spec in ("mxfp4", "uint4", "uint4:g128:fp16,embedding=uint8,lm_head=int4:fp16")]
        + [("llama", "int3,lm_head=uint3:g64"), ("mixtral", "uint2:g64:fp16,embedding=uint3:g128,lm_head=int2")]
        + [("mixtral", "mxfp4"), ("mixtral", "uint4:g64")]
        + [("deepseek_v3_dense", spec) for spec in ("int4", "int8:g64", "w8a8")]
        + [
            (v, s)
            for v in ("lfm2", "falcon_mamba", "mamba2", "qwen3_5_text", "granitemoehybrid_experts")
            for s in ("int4", "w8a8")
        ],
    )
    def test_the_engine_is_what_its_graph_says(self, tiny, variant: str, spec: str) -> None:
        assert tiny(variant).quantized(spec).agrees()

    @pytest.mark.parametrize("spec", ["int4", "int8", "w8a8"])
    def test_the_comparison_sees_another_format(self, tiny, spec: str) -> None:
        """An engine in the next finer format is nearer to the model, and still not what this graph says."""
        made, other = tiny("llama").quantized(spec), {"int4": "int8", "int8": "none", "w8a8": "int8"}[spec]
        assert not made.agrees(tiny("llama").quantized(other).path)


def drop_scales(made: Quantized) -> None:
    """One group's scales become one."""
    made.scales[:, 1] = 1.0


def shift_scales(made: Quantized) -> None:
    """Each row takes the next row's scale in one group."""
    made.scales[:, 1] = np.roll(made.scales[:, 1], 1)


def swap_nibbles(made: Quantized) -> None:
    """k and k + 4 change places."""
    rows, groups, size = made.values.shape
    made.values[:] = made.values.reshape(rows, groups, size // 8, 2, 4)[:, :, :, ::-1].reshape(rows, groups, size)


def negate_scales(made: Quantized) -> None:
    """The sign that lets the largest be -8 is lost in one group."""
    made.scales[:, 0] = np.abs(made.scales[:, 0])


@pytest.mark.parametrize("change", [drop_scales, shift_scales, swap_nibbles, negate_scales])
def test_mutations_turn_red(tiny, change: Callable[[Quantized], None]) -> None:
    made = tiny("llama").quantized("int4:g64")
    assert not made.agrees(made.changed("layers.1.mlp.down_proj", change))


ON_EVERY_LEVEL = (
    *(("llama", spec) for spec in ("int4", "int4:g128", "int8:g64", "w8a8,lm_head=int8")),
    ("mixtral", "int4"), ("deepseek_v3_dense", "int8"), ("deepseek_v3_dense", "none,lm_head=int8"),
    ("qwen3_5_text", "int8"), ("granitemoehybrid_experts", "int4"),
)  # fmt: skip


@pytest.mark.computes(least="avx2")
class TestSameBits:
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize(
        ("variant", "spec"),
        [("llama", spec) for spec in ("int4", "int4:g128", "int8:g64", "w4a8", "w8a8")]
        + [("mixtral", spec) for spec in ("int4", "int8:g64", "none,lm_head=int8")]
        + [("llama", spec) for spec in ("mxfp4", "uint4", "uint4:g128:fp16,embedding=uint8,lm_head=int4:fp16")]
        + [("llama", "int3,lm_head=uint3:g64"), ("mixtral", "uint2:g64:fp16,embedding=uint3:g128,lm_head=int2")]
        + [("mixtral", "mxfp4"), ("mixtral", "uint4:g64")]
        + [("deepseek_v3_dense", spec) for spec in ("int4", "none,lm_head=int8")]
        + [("qwen3_5_text", "int4"), ("granitemoehybrid_experts", "w8a8")],
    )
    def test_in_any_company(self, tiny, variant: str, spec: str, dtype: str) -> None:
        """Alone in one piece on one thread: what chunks, crowds and threads must give too."""
        cpu = tiny(variant, dtype).quantized(spec).path / "cpu"

        def ragged(threads: int) -> Ragged:
            return Ragged(_runtime.CpuExecutor(str(cpu / "plan.bin"), str(cpu / "weights.bin"), threads, "map"), 40)

        single = ragged(1)
        alone = [single.alone(f"s{i}", ids) for i, ids in enumerate(SEQUENCES)]
        for threads in (1, 2):
            batch = ragged(threads)
            for chunk in (1, 3, 7):
                np.testing.assert_array_equal(batch.alone(f"c{chunk}", SEQUENCES[0], chunk), alone[0])
            # All together, in steps that cut each sequence elsewhere: prompts beside single tokens.
            done: list[list[np.ndarray]] = [[] for _ in SEQUENCES]
            while True:
                at = [sum(len(part) for part in parts) for parts in done]
                feeds = [
                    (f"b{i}", ids[at[i] : at[i] + 1 + (i + at[i]) % 4])
                    for i, ids in enumerate(SEQUENCES)
                    if at[i] < len(ids)
                ]
                if not feeds:
                    break
                logits = np.split(batch.step(feeds), np.cumsum([len(part) for _, part in feeds])[:-1])
                for (name, _), rows in zip(feeds, logits, strict=True):
                    done[int(name[1:])].append(rows)
            for parts, expected in zip(done, alone, strict=True):
                np.testing.assert_array_equal(np.concatenate(parts).view(np.uint32), expected.view(np.uint32))

    @pytest.fixture(scope="class")
    @staticmethod
    def scalar(tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[np.ndarray]]:
        """The engines of ON_EVERY_LEVEL, and what the scalar kernels compute."""
        engines = [tiny(variant).quantized(spec).path for variant, spec in ON_EVERY_LEVEL]
        return engines, run_at_level(engines, "scalar", tmp_path_factory.mktemp("scalar"))[0]

    @pytest.mark.parametrize("level", VECTOR_LEVELS)
    def test_on_every_instruction_set(self, scalar, level: str, tmp_path: Path) -> None:
        engines, expected = scalar
        computed, _ = run_at_level(engines, level, tmp_path)
        for case, logits, wanted in zip(ON_EVERY_LEVEL, computed, expected, strict=True):
            np.testing.assert_array_equal(logits.view(np.uint32), wanted.view(np.uint32), err_msg=str(case))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_variant(tmp_path_factory.mktemp("users") / "model", "qwen2")


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(model, tmp_path_factory.mktemp("engine") / "engine", quantize="int4", accuracy="none").path


@pytest.mark.parametrize(
    ("spec", "growth", "divergence"),
    [("int8", 1.005, 1e-3), ("w8a8", 1.03, 3e-3), ("int4,embedding=int8,lm_head=int8", 1.15, 2e-2)],
)
def test_what_quantization_costs_pico(
    pico_model: Path, tmp_path: Path, spec: str, growth: float, divergence: float
) -> None:
    """The limits that these formats are held to; docs/quantization.md has what was measured, on longer text."""
    config = build(pico_model, tmp_path / "engine", quantize=spec).config
    record = config["accuracy"]
    assert record["perplexity_engine"] <= growth * record["perplexity_reference"]
    assert record["kl_divergence"] <= divergence
    assert config["quantization"]["bits_per_weight"]["all"] < (8.6 if spec != "w8a8" else 8.1)


@pytest.mark.computes(least="avx2")
class TestEngines:
    def test_counts(self, engine: Path, model: Path, tmp_path: Path) -> None:
        config = json.loads((engine / "config.json").read_text())
        assert config["passes"]["quantize_weights"] == 10  # qkv, o, gate and up, down of two layers; embedding, lm_head
        assert config["build_options"]["quantize"] == "int4"
        spec = "w8a8,embedding=none,lm_head=int8"
        other = build(model, tmp_path / "engine", quantize=spec, accuracy="none").config
        assert other["passes"]["quantize_weights"] == 9
        assert other["quantization"]["spec"] == "w8a8,embedding=none,lm_head=int8:g32"
        assert list(other["quantization"]["weight_errors"]).count("embedding") == 0
        assert build(model, tmp_path / "plain", accuracy="none").config["passes"]["quantize_weights"] == 0

    def test_two_builds_are_the_same_bytes(self, engine: Path, model: Path, tmp_path: Path) -> None:
        again = build(model, tmp_path / "engine", quantize="int4", accuracy="none").path
        for path in sorted(p for p in engine.rglob("*") if p.is_file() and p.name != "build-report.json"):
            assert path.read_bytes() == (again / path.relative_to(engine)).read_bytes(), path.name

    def test_it_answers_as_its_logits_say(self, engine: Path) -> None:
        prompt = SEQUENCES[0]
        params = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.0)
        with LLM(str(engine), threads=1, kv_cache_memory="8MiB") as llm:
            answer = llm.generate({"prompt_token_ids": prompt}, params).outputs[0].token_ids
        cpu = engine / "cpu"
        steps = Ragged(_runtime.CpuExecutor(str(cpu / "plan.bin"), str(cpu / "weights.bin"), 1, "map"), 8)
        logits = steps.alone("s", [*prompt, *answer[:-1]])[len(prompt) - 1 :]
        assert logits.argmax(-1).tolist() == answer

    def test_a_damaged_engine_is_refused(self, engine: Path, tmp_path: Path) -> None:
        copy = tmp_path / "engine"
        shutil.copytree(engine, copy)
        data = bytearray((copy / "cpu/weights.bin").read_bytes())
        data[len(data) // 2] ^= 1  # one bit of one weight
        (copy / "cpu/weights.bin").write_bytes(data)
        with pytest.raises(EngineError, match=r"weights\.bin"):
            LLM(str(copy), kv_cache_memory="8MiB")

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    @pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight", "model.embed_tokens.weight"])
    def test_weights_that_are_no_numbers_are_refused(
        self, model: Path, tmp_path: Path, name: str, value: float
    ) -> None:
        copy = tmp_path / "model"
        shutil.copytree(model, copy)
        tensors = load_file(copy / "model.safetensors")
        tensors[name][3, 5] = torch.tensor(value)
        save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(CheckpointError, match=f"{name}.* holds an infinity or a NaN, which no scale can carry"):
            build(copy, tmp_path / "engine", quantize="int8", accuracy="none")
        assert [path.name for path in tmp_path.iterdir()] == ["model"]

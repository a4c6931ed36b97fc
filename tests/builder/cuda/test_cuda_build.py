"""build() for target cuda: the engine's files, what config.json says of them, and the plan that they hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.cuda_model import MAX_STEP, plan_without_code, uncompiled
from support.cuda_plan import chosen, read_plan
from support.fake_libcuda import FakeDevice, compile_libcuda
from support.made_heads import make_heads
from support.plugin_form import lower
from support.tiny_models import make_tiny, make_variant
from tensorwright import build
from tensorwright.builder.emit.cuda import emit, plan_calls
from tensorwright.builder.emit.cuda.plan_file import to_bytes
from tensorwright.engine_format.engine_folder import EngineFolder
from tensorwright.runtime import _runtime

SMS = (80, 90)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    make_variant(folder / "model", "llama", seed=3, head_dim=16, num_hidden_layers=1)
    build(
        folder / "model", folder / "engine", target="cuda", accuracy="none", max_batch_size=4, max_num_tokens=64,
        max_seq_len=100,
    )  # fmt: skip
    return folder / "engine"


def test_files_and_config(engine: Path) -> None:
    config = EngineFolder.open(engine).config
    assert config.target == "cuda"
    assert config.sms == SMS
    assert config.run_files() == ("cuda/weights.bin", "cuda/sm_80.plan", "cuda/sm_90.plan")
    assert all((engine / name).is_file() for name in config.run_files())
    assert config.build_options["max_batch_size"] == 4
    plan = read_plan(engine / "cuda/sm_90.plan")
    assert config.limits.kv_block_bytes == sum(sum(tensors) for _, tensors in plan.layers)


def test_plans_of_all_sms_share_the_weights(engine: Path) -> None:
    first, second = (read_plan(engine / f"cuda/sm_{sm}.plan") for sm in SMS)
    assert (first.facts["sm"], second.facts["sm"]) == SMS
    assert first.weights == second.weights
    assert first.facts["weights_bytes"] == (engine / "cuda/weights.bin").stat().st_size
    assert first.facts["max_step"] == (64, 64, 4)
    assert first.facts["max_seq_len"] == 100
    for plan in (first, second):
        assert all(kernel.cubin.startswith(b"\x7fELF") for kernel in plan.kernels)
        assert {len(kernel.parameters) for kernel in plan.kernels} != {0}


def test_a_step_of_one_token_starts_few_kernels(engine: Path) -> None:
    """One kernel or product for each op, and four that draw tokens: decode attention has one split in so short a
    context."""
    plan = read_plan(engine / "cuda/sm_90.plan")
    model, draws = plan.instructions[: plan.first_draw], plan.instructions[plan.first_draw :]
    assert {len(chosen(plan, one, [1, 1, 1, 4, 8])) for one in model} == {1}
    assert [one.text for one in draws] == ["draw_tokens"]
    assert len(chosen(plan, draws[0], [1, 1, 1, 4, 8])) == 4


def test_an_engine_with_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its accuracy is that of the model, which is measured without the heads."""
    monkeypatch.setattr(plan_calls, "compile_kernel", uncompiled)
    target = make_tiny(tmp_path / "model", "llama", num_hidden_layers=2, head_dim=16)
    layers = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "head_dim": 16, "draft_vocab": 40}
    heads = make_heads(tmp_path / "heads", target, **layers)
    sizes = {"max_batch_size": 4, "max_num_tokens": 64, "max_seq_len": 100, "sm": [90], "accuracy_tokens": 16}
    plain = build(target, tmp_path / "plain", target="cuda", **sizes)
    result = build(target, tmp_path / "engine", target="cuda", heads=heads, **sizes)
    record = result.config["heads"]
    assert (record["kind"], record["width"], record["vocab_size"]) == ("eagle3", 32, 40)
    assert result.config["accuracy"] == plain.config["accuracy"]
    opened = EngineFolder.open(result.path)
    plan = read_plan(result.path / "cuda/sm_90.plan")
    assert opened.config.limits.kv_block_bytes == sum(sum(tensors) for _, tensors in plan.layers)
    assert plan.heads is not None
    assert plan.slots[plan.heads.logits_slot] == (1, 4 * 40)
    assert len(plan.layers) == 4, "two layers, one of the heads, and the features"
    tokens = np.frombuffer((result.path / "cuda/draft_tokens.bin").read_bytes(), "<i4")
    assert len(set(tokens.tolist())) == 40


def test_a_vocabulary_that_the_draws_do_not_take(case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such an engine is built without them, and the host draws."""
    monkeypatch.setattr(emit, "MAX_VOCABULARY", 10)
    made = case("llama", head_dim=16, num_hidden_layers=1)
    planned = emit.plan_graph(lower(made.graph, "float16", block=32), made.checkpoint, "float16", MAX_STEP)
    plan = read_plan(plan_without_code(planned, 90)[0])
    assert planned.draws is None
    assert plan.first_draw == len(plan.instructions)


def test_the_runtime_reads_plans_whose_caches_are_of_bytes(case, tmp_path: Path, monkeypatch) -> None:
    """Over a stand-in of the driver: a block of fp8 takes what one of int8 takes, and other kernels read it."""
    library = compile_libcuda(tmp_path)
    monkeypatch.setenv("TENSORWRIGHT_LIBCUDA", str(library))
    made, started, layers = case("qwen3", head_dim=16, num_hidden_layers=1), [], []
    for kv in ("int8", "fp8"):
        graph = lower(made.graph, "bfloat16", None, kv, block=32, target="cuda")
        planned = emit.plan_graph(graph, made.checkpoint, "bfloat16", MAX_STEP)
        planner, instructions = planned.traced(90)
        kernels = [
            replace(one, cubin=f"kernel {number} {len(one.parameters)}\0".encode())
            for number, one in enumerate(uncompiled(spec, 90) for spec in planner.specs)
        ]
        (tmp_path / "sm.plan").write_bytes(to_bytes(planned.plan(90, instructions, tuple(kernels))))
        with (tmp_path / "weights.bin").open("wb") as file:
            planned.emitter.file.write(file, lambda done, total: None)
        device, names = FakeDevice(library), []
        device.run = lambda one, names=names, kernels=kernels: names.append(
            kernels[one.kernel].variant if one.kernel >= 0 else ""
        )
        executor = _runtime.CudaExecutor(
            str(tmp_path / "sm.plan"), str(tmp_path / "weights.bin"), 0, (str(library),), False
        )
        (layer,) = graph.facts.kv_layers
        assert executor.facts()["block_bytes"] == [planned.block_bytes] == [2 * layer.kv_heads * 32 * (16 + 4)]
        executor.allocate([8], 64, 64, 8)
        executor.step([5], [0], [0, 1], [1], [0], [(np.zeros((1, 1), np.int32), [0])])
        executor.close()
        assert (device.faults, device.live) == ([], 0)
        started.append(names)
        layers.append(read_plan((tmp_path / "sm.plan").read_bytes()).layers)
    assert layers[0] == layers[1]
    assert len(started[0]) == len(started[1])
    assert sum(one != other for one, other in zip(*started, strict=True)) == 2, "what writes pages and what reads them"

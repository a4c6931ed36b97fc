"""build() for target cuda: the engine's files, what config.json says of them, and the plan that they hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cuda_model import MAX_STEP, plan_without_code
from support.cuda_plan import chosen, read_plan
from support.plugin_form import lower
from support.tiny_models import make_variant
from tensorwright import build
from tensorwright.builder.emit.cuda import emit
from tensorwright.engine_format.engine_folder import EngineFolder

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


def test_a_vocabulary_that_the_draws_do_not_take(case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such an engine is built without them, and the host draws."""
    monkeypatch.setattr(emit, "MAX_VOCABULARY", 10)
    made = case("llama", head_dim=16, num_hidden_layers=1)
    planned = emit.plan_graph(lower(made.graph, "float16", block=32), made.checkpoint, "float16", MAX_STEP)
    plan = read_plan(plan_without_code(planned, 90)[0])
    assert planned.draws is None
    assert plan.first_draw == len(plan.instructions)

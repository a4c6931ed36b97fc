"""What `inspect` and profiles say of experts: what a token reads, and how often the reference takes each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.made_experts import EXPERTS_UP, MadeExperts
from support.plan_writer import EMBEDDING, INSTRUCTION
from support.tiny_models import make_variant
from tensorwright import LLM, SamplingParams, build
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.builder.trace.export import trace
from tensorwright.ir.interpret import run
from tensorwright.ir.ragged import RaggedAdapter
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.passes.pipeline import run_pipeline
from tensorwright.runtime import _runtime
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import open_engine

EXPERTS, SLOTS, HIDDEN, INNER, LAYERS, VOCAB = 6, 3, 32, 48, 2, 101
PROMPT = [5, 9, 1, 33, 33, 7, 80]


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(make_variant(tmp_path_factory.mktemp("experts") / "model", "mixtral"))


@pytest.fixture(scope="module")
def engine(mixtral: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("experts") / "engine"
    build(mixtral.path, path, dtype="float32", accuracy="none")
    return path


def test_what_a_token_reads(engine: Path) -> None:
    reads = native.weight_reads(open_engine(engine))
    one = 4 * (2 * INNER * HIDDEN + HIDDEN * INNER)
    names = [mixture.pop("module") for mixture in reads["mixtures"]]
    assert names == [f"model.layers.{i}.mlp.experts" for i in range(LAYERS)]
    assert reads["mixtures"] == [{"experts": EXPERTS, "taken": SLOTS, "bytes_of_one": one}] * LAYERS
    # Panels have 16 rows: the router has one of 6, and lm_head 7 of 101. q, k and v have 64 rows together.
    layer = 4 * HIDDEN * (64 + 32 + 16 + 2) + SLOTS * one
    frequencies = 4 * 4
    assert reads["bytes"] == LAYERS * layer + 4 * HIDDEN * (1 + 1 + 112) + frequencies


def test_both_products_of_experts_with_biases_are_one_mixture(tmp_path: Path) -> None:
    """They are two instructions. A token reads both matrices of each expert that it takes."""
    model = make_variant(tmp_path / "model", "gpt_oss")
    reads = native.weight_reads(open_engine(build(model, tmp_path / "engine", dtype="float32", accuracy="none").path))
    one = 4 * (2 * INNER * HIDDEN + HIDDEN * INNER)
    shared = {"experts": EXPERTS, "taken": SLOTS, "bytes_of_one": one}
    assert reads["mixtures"] == [{"module": f"model.layers.{i}.mlp.experts", **shared} for i in range(LAYERS)]


@pytest.mark.parametrize("first_half", [False, True])
def test_halves_that_do_not_belong_together_are_two_mixtures(tmp_path: Path, first_half: bool) -> None:
    """A plan may name the halves apart, and may have the second half alone."""
    made = MadeExperts(gate={"up_offset": 1.0})
    plan = made.plan()
    halves = {"up": 4 * made.hidden * 2 * 32, "down": 4 * made.inner * 48}  # rows in panels of 16
    if not first_half:
        del halves["up"]
        inner = np.zeros((made.hidden, made.k * made.inner), np.float32)
        at = next(i for i, record in enumerate(plan.instructions) if record[:4] == EXPERTS_UP.to_bytes(4, "little"))
        (written,) = INSTRUCTION.unpack(plan.instructions[at])[6:7]
        plan.op(EMBEDDING, "inner", outs=[written], weights=[plan.panels("inner", inner)], floats=[1.0])
        plan.instructions[at] = plan.instructions.pop()
    reads = _runtime.CpuExecutor(*plan.write(tmp_path), 1, "map").weight_reads()
    shared = {"experts": made.count, "taken": made.k}
    assert reads["mixtures"] == [{"module": name, **shared, "bytes_of_one": size} for name, size in halves.items()]


def routed(checkpoint: Checkpoint, ids: list[int]) -> list[np.ndarray]:
    """Returns the experts that the reference takes for each token, [tokens, slots] for each layer."""
    graph = trace(checkpoint, dtype="float32", max_seq_len=64)
    graph.facts.update(block_size=32)
    cached = run_pipeline(graph).cached_graph
    values = run(cached, RaggedAdapter(cached, [ids]).inputs([len(ids)]), checkpoint_weights(checkpoint))
    chosen = [data.numpy() for value, data in values if value.dtype == "int32" and value.producer.op == "route"]
    assert len(chosen) == LAYERS
    return chosen


def test_how_often_each_expert_was_taken(engine: Path, mixtral: Checkpoint) -> None:
    """Prompts count apart from answers, and nothing is counted before the profile is on."""
    with LLM(engine, kv_cache_memory="4MiB", threads=1) as llm:
        params = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
        llm.generate([{"prompt_token_ids": PROMPT}], params)
        assert "expert_rows" not in llm.get_profile()["decode"]["instructions"][-1]
        llm.profile(True)
        answer = llm.generate([{"prompt_token_ids": PROMPT}], params)[0].outputs[0].token_ids
        measured = llm.get_profile()
    chosen = routed(mixtral, [*PROMPT, *answer[:-1]])
    for phase, tokens in (("prefill", slice(0, len(PROMPT))), ("decode", slice(len(PROMPT), None))):
        rows = [row for row in measured[phase]["instructions"] if "expert_rows" in row]
        assert [row["op"] for row in rows] == ["experts"] * LAYERS
        for row, index in zip(rows, chosen, strict=True):
            expected = np.bincount(index[tokens].reshape(-1), minlength=EXPERTS)
            assert row["expert_rows"] == expected.tolist()
            assert row["expert_rows"] != np.roll(expected, 1).tolist()

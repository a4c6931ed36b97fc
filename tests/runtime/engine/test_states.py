"""An engine with states of recurrent layers, from its files to LLM: memory, options, kept states, scores.

No instruction of the toy uses the states, so its tokens say nothing of them: tests/cpp does that.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.toy_engine import make_toy, write_toy_engine
from tensorwright import LLM, SamplingParams
from tensorwright.errors import InvalidOptionError, OutOfMemoryError, TensorwrightWarning
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine
from tensorwright.runtime.tools.evaluate import Scorer

STATES = (64, 4032)
STATE_BYTES = 4096
PROMPT = {"prompt_token_ids": [int(token) for token in np.random.default_rng(1).integers(0, 250, 70)]}
PARAMS = SamplingParams(max_tokens=4, ignore_eos=True, temperature=0.0)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> EngineDir:
    return open_engine(write_toy_engine(tmp_path_factory.mktemp("states") / "engine", states=STATES))


def test_a_prompt_is_shared_up_to_a_kept_state(engine: EngineDir) -> None:
    assert engine.state_bytes == STATE_BYTES
    with LLM(engine.path, threads=1, kv_cache_memory="1MiB", max_batch_size=4) as llm:
        assert (llm.options.max_batch_size, llm.options.state_snapshots) == (4, 16)
        assert llm.options.kv_cache_bytes == (1 << 20) - 20 * STATE_BYTES
        first, second = (llm.generate(PROMPT, PARAMS) for _ in range(2))
        assert (first.metrics.cached_tokens, second.metrics.cached_tokens) == (0, 64)
        assert first.outputs[0].token_ids == second.outputs[0].token_ids
        stats = llm.get_stats()
        assert (stats["state_slots"], stats["used_state_slots"], stats["state_snapshots"]) == (20, 1, 1)
        assert (stats["state_snapshots_taken"], stats["state_snapshot_hits"]) == (1, 1)


@pytest.mark.parametrize("options", [{"state_snapshots": 0}, {"enable_prefix_caching": False}])
def test_without_kept_states_no_prompt_is_shared(engine: EngineDir, options: dict[str, int]) -> None:
    with LLM(engine.path, threads=1, kv_cache_memory="1MiB", max_batch_size=4, **options) as llm:
        assert llm.options.state_snapshots == 0
        assert [llm.generate(PROMPT, PARAMS).metrics.cached_tokens for _ in range(2)] == [0, 0]
        assert llm.get_stats()["state_slots"] == 4


def test_short_memory_lets_fewer_run_and_says_so(engine: EngineDir) -> None:
    size = 2 * (STATE_BYTES + 4 * engine.kv_block_bytes)
    with pytest.warns(TensorwrightWarning, match=r"holds the states of 2 completions .* max_batch_size is 8"):
        llm = LLM(engine.path, threads=1, kv_cache_memory=size, max_batch_size=8, state_snapshots=0)
    with llm:
        assert llm.options.max_batch_size == 2
        assert len(llm.generate([PROMPT] * 5, PARAMS)) == 5
    with pytest.raises(OutOfMemoryError, match="and the states of one completion, 4096 bytes"):
        LLM(engine.path, threads=1, kv_cache_memory=engine.kv_block_bytes)
    with pytest.raises(InvalidOptionError, match="state_snapshots must be a whole number"):
        LLM(engine.path, threads=1, state_snapshots=-1)


def test_scores_need_no_more_than_slots(engine: EngineDir, tmp_path: Path) -> None:
    plain = open_engine(write_toy_engine(tmp_path / "plain", make_toy()))
    sequences = [PROMPT["prompt_token_ids"], PROMPT["prompt_token_ids"][:20]] * 3
    scores = [list(Scorer(each, 70, 1).score(sequences)) for each in (engine, plain)]
    assert all(np.array_equal(a, b) for a, b in zip(*scores, strict=True))

"""Prefixes that come into an engine's cache from another engine, or from the tiers that keep what a cache forgets: the
answers have the bits of one engine alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.tiny_models import make_variant
from tensorwright import LLM, SamplingParams, build
from tensorwright.errors import InvalidOptionError, TransferError
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.requests.outputs import RequestOutput
from tensorwright.runtime.transfer.receiver import Fetched, Peer, fetch_prefix
from tensorwright.runtime.transfer.server import TransferServer
from tensorwright.runtime.transfer.store import PrefixStore
from tensorwright.runtime.transfer.tickets import Promise

TOKEN = "shared-token"
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("llama", {}),
    "sliding": ("mistral", {}),
    "some_sliding": ("gemma2", {}),
    "chunked": ("llama4_text_some", {}),
    "latent": ("deepseek_v3_dense", {}),
    "int8_cache": ("llama", {"kv_cache_dtype": "int8"}),
    "int4_cache": ("llama", {"kv_cache_dtype": "int4"}),
    "recurrent": ("mamba2", {}),
    "hybrid": ("qwen3_next", {}),
}
LENGTHS = (33, 64, 100)
"""With their answers they are no longer than the 128 positions of the variants, whose traces other tests have made."""


def bits(output: RequestOutput) -> Any:
    """The tokens and logprobs of an output, the logprobs as their exact bits."""
    return [
        (each.token_ids, [{t: lp.logprob.hex() for t, lp in table.items()} for table in each.logprobs or []])
        for each in output.outputs
    ]


def prompt(length: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": [(length * i * i + 5 * i) % 97 for i in range(length)]}


def asks() -> list[tuple[dict[str, list[int]], SamplingParams]]:
    greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=3, detokenize=False)
    seeded = SamplingParams(temperature=0.9, seed=7, max_tokens=24, ignore_eos=True, logprobs=3, detokenize=False)
    two = SamplingParams(temperature=0.9, seed=7, n=2, max_tokens=9, ignore_eos=True, logprobs=1, detokenize=False)
    return [(prompt(length), params) for length in LENGTHS for params in (greedy, seeded, two)]


def hand_over(prefill: PrefixStore, llm: LLM, server: TransferServer, decode: PrefixStore, ids: list[int]) -> Fetched:
    """Computes a prompt in one engine, and fetches its prefix into the other."""
    llm.generate({"prompt_token_ids": ids}, SamplingParams(max_tokens=1, temperature=0, detokenize=False))
    ticket = server.tickets.issue(Promise(prefill, np.asarray(ids, np.int32), ""))
    return fetch_prefix(decode, Peer("127.0.0.1", server.port, TOKEN, timeout=60, idle=30), ticket, "")


@pytest.fixture(scope="module", params=FAMILIES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    variant, options = FAMILIES[request.param]
    root = tmp_path_factory.mktemp(request.param)
    make_variant(root / "model", variant, seed=5)
    build(root / "model", root / "engine", dtype="float32", accuracy="none", **options)
    return root / "engine"


@pytest.fixture(scope="module")
def expected(engine: Path) -> list[Any]:
    with LLM(engine, kv_cache_memory="32MiB", threads=1, max_batch_size=2, enable_prefix_caching=False) as llm:
        return [bits(llm.generate(asked, params)) for asked, params in asks()]


@pytest.fixture
def server() -> Iterator[TransferServer]:
    server = TransferServer(TOKEN, timeout=60, idle=30)
    yield server
    server.close()


def open_pair(engine: Path, running: ExitStack, **decode: Any) -> tuple[LLM, LLM]:
    prefill = running.enter_context(LLM(engine, kv_cache_memory="32MiB", threads=1, max_prefill_chunk=37))
    return prefill, running.enter_context(LLM(engine, **{"kv_cache_memory": "32MiB", "threads": 1, **decode}))


def test_the_bits_are_those_of_one_engine(engine: Path, expected: list[Any], server: TransferServer) -> None:
    with ExitStack() as running:
        prefill, decode = open_pair(engine, running)
        stores = PrefixStore(prefill), PrefixStore(decode)
        for (asked, params), alone in zip(asks(), expected, strict=True):
            fetched = hand_over(stores[0], prefill, server, stores[1], asked["prompt_token_ids"])
            assert fetched.tokens == (len(asked["prompt_token_ids"]) - 1) // 32 * 32
            output = decode.generate(asked, params)
            assert output.metrics.cached_tokens >= fetched.tokens
            assert bits(output) == alone
        stats = decode.get_stats()
        assert stats["prefix_hit_tokens"] > 0
        assert stats["used_blocks"] == 0
        assert stores[1].imports() == 0
        assert stats["used_state_slots"] == stats["state_snapshots"]


def test_a_crowd_that_is_preempted_has_the_same_bits(engine: Path, expected: list[Any], server: TransferServer) -> None:
    """The decode engine runs short of blocks while prefixes come: some are preempted, and some prefixes are dropped."""
    opened_bytes = _blocks(engine, 15)
    with ExitStack() as running:
        prefill, decode = open_pair(
            engine, running, kv_cache_memory=opened_bytes, max_batch_size=6, max_num_tokens=32, max_prefill_chunk=19
        )
        stores = PrefixStore(prefill), PrefixStore(decode)
        handles, dropped = [], 0
        for asked, params in asks():
            try:
                hand_over(stores[0], prefill, server, stores[1], asked["prompt_token_ids"])
            except TransferError:
                dropped += 1
            handles.append(decode.generate_async(asked, params))
        for handle, alone in zip(handles, expected, strict=True):
            assert bits(handle.result()) == alone
        assert dropped < len(handles)
        assert stores[1].imports() == 0
        assert decode.get_stats()["used_blocks"] == 0


def test_what_comes_back_from_tiers_has_the_same_bits(engine: Path, expected: list[Any], tmp_path: Path) -> None:
    """One request after the other, in a crowd that is short of blocks, and after a restart. The first engine has the
    disk alone, the second one memory before it."""
    opened = open_engine(engine)
    if opened.state_bytes:
        with pytest.raises(InvalidOptionError, match="recurrent layers"):
            LLM(engine, threads=1, prefix_cache_disk=tmp_path)
        return
    options: dict[str, Any] = {
        "threads": 1, "prefix_cache_disk": tmp_path, "max_batch_size": 3, "max_num_tokens": 32, "max_prefill_chunk": 19,
        "kv_cache_memory": 7 * opened.kv_block_bytes,
    }  # fmt: skip
    hits = 0
    for memory in (None, "64MiB"):
        with LLM(engine, prefix_cache_memory=memory, **options) as llm:
            for (asked, params), alone in zip(asks(), expected, strict=True):
                assert bits(llm.generate(asked, params)) == alone
            handles = [llm.generate_async(asked, params) for asked, params in asks()]
            for handle, alone in zip(handles, expected, strict=True):
                assert bits(handle.result()) == alone
            stats = llm.get_stats()
            assert stats["used_blocks"] == stats["invariant_violations"] == stats["tier_disk_dropped"] == 0
            hits += stats["tier_memory_hits"] + stats["tier_disk_hits"]
    assert hits > 0, "which tier is asked depends on what is fast here"


def _blocks(engine: Path, count: int) -> int:
    """Returns the memory of a cache of about so many blocks."""
    opened = open_engine(engine)
    return count * opened.kv_block_bytes + 10 * opened.state_bytes + (1 << 16)

"""Two toy engines; what a test fetches is forgotten before the next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.toy_engine import make_toy, write_toy_engine
from support.toy_pair import PROMPT, TOKEN, Pair, answer_of
from tensorwright import LLM, SamplingParams
from tensorwright.runtime.transfer import chunks, shared_ring
from tensorwright.runtime.transfer.server import TransferServer
from tensorwright.runtime.transfer.store import PrefixStore


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_engine(tmp_path_factory.mktemp("toy") / "engine", make_toy(max_seq_len=2048))


@pytest.fixture(scope="module")
def pair(toy: Path) -> Iterator[Pair]:
    whole = {"kv_cache_memory": "4MiB", "threads": 1}
    with LLM(toy, **whole, enable_prefix_caching=False) as alone:
        answer = answer_of(alone)
    with (
        LLM(toy, **whole) as prefill,
        LLM(toy, kv_cache_memory="600KiB", threads=1, max_batch_size=2, max_num_tokens=64) as decode,
    ):
        prefill.generate({"prompt_token_ids": PROMPT}, SamplingParams(max_tokens=1, detokenize=False))
        server = TransferServer(TOKEN, timeout=30, idle=30)
        made = Pair(prefill, decode, PrefixStore(prefill), PrefixStore(decode), server, answer)
        yield made
        server.close()
        made.check_clean()


@pytest.fixture
def fresh(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """The pair, with nothing remembered in the decode engine; nothing must be left behind."""
    made: list[Path] = []
    make = shared_ring.SharedRing.make

    def noted(slots: int, slot_bytes: int) -> shared_ring.SharedRing:
        ring = make(slots, slot_bytes)
        made.append(shared_ring.FOLDER / str(ring.name))
        return ring

    monkeypatch.setattr(shared_ring.SharedRing, "make", noted)
    pair.forget()
    yield pair
    pair.check_clean()
    assert not [path for path in made if path.exists()]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block is a chunk of its own."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1)

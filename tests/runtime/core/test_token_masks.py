"""Guided requests through the binding: masks set from Python give the tokens that a numpy model under them gives."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from support.toy_llama import ToyLlama
from support.waiting import PATIENCE
from tensorwright.errors import InvalidRequestError
from tensorwright.runtime import _runtime, _testing

pytestmark = pytest.mark.computes

VOCAB = 101
WORDS = 4
EOS = 100


@pytest.fixture(scope="module")
def toy():
    return ToyLlama(vocab=VOCAB, max_seq_len=256, window=24)


@pytest.fixture(scope="module")
def paths(toy, tmp_path_factory):
    return toy.plan().write(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def make(paths):
    """Engines; they are shut down at the end."""
    engines = []

    def start(**changes: Any):
        options = _runtime.EngineOptions()
        options.kv_cache_bytes, options.max_batch_size, options.max_num_tokens, options.threads = 1 << 22, 8, 64, 1
        for name, value in changes.items():
            setattr(options, name, value)
        engines.append(_runtime.Engine(*paths, options))
        return engines[-1]

    yield start
    for engine in engines:
        engine.shutdown(False)


def sampling(max_tokens: int, guided: bool = True, **changes: Any):
    s = _runtime.Sampling()
    s.max_tokens, s.temperature, s.guided, s.eos_token_ids = max_tokens, 0.0, guided, [EOS]
    for name, value in changes.items():
        setattr(s, name, value)
    return s


def words_of(allowed: np.ndarray) -> np.ndarray:
    """uint32 [4] of bool [VOCAB]."""
    padded = np.zeros(WORDS * 32, bool)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view(np.uint32)


def allowed_after(tokens: list[int]) -> np.ndarray:
    """bool [VOCAB]: the 'grammar' of these tests, a few or many tokens by what came so far; the end after 20."""
    rng = np.random.default_rng([len(tokens), *tokens[-2:]])
    allowed = rng.random(VOCAB) < rng.choice([0.05, 0.5, 1.0])
    allowed[rng.integers(VOCAB)] = True
    allowed[EOS] = len(tokens) >= 20
    return allowed if len(tokens) < 25 else np.arange(VOCAB) == EOS


class Consumer:
    """Fetches the events and answers each token of a guided completion with the mask of the next."""

    def __init__(self, engine: Any, mask=allowed_after):
        self.engine, self.mask = engine, mask
        self.guided: set[int] = set()
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.last: dict[tuple[int, int], Any] = {}
        self.late: set[tuple[int, int]] = set()  # had ended when their mask came

    def submit(self, request_id: int, prompt: list[int], params: Any) -> None:
        if params.guided:
            self.guided.add(request_id)
        self.engine.submit(request_id, prompt, params, words_of(self.mask([])) if params.guided else None)

    def poll(self) -> None:
        for event in self.engine.wait_events(0.5):
            name = event.request_id, event.completion
            assert name not in self.last
            tokens = self.tokens.setdefault(name, [])
            tokens += event.tokens
            if event.finish:
                self.last[name] = event
            elif event.request_id in self.guided:
                allowed = self.mask(tokens)
                if allowed is not None and not self.engine.set_mask(*name, len(tokens), words_of(allowed)):
                    self.late.add(name)

    def until(self, done) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, f"only {sorted(self.last)} ended"
            self.poll()

    def run(self, count: int) -> dict[tuple[int, int], list[int]]:
        self.until(lambda: len(self.last) >= count)
        assert self.late <= self.last.keys()
        return self.tokens


def uniform(seed: int, position: int) -> float:
    """philox4x32-10 of seed and position, 53 bits."""
    counter, key = [position, 0, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [b >> 32 ^ counter[1] ^ key[0], b & 0xFFFFFFFF, a >> 32 ^ counter[3] ^ key[1], a & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return ((counter[0] << 32 | counter[1]) >> 11) * 2.0**-53


def expected(toy: ToyLlama, prompt: list[int], tokens: list[int], params: Any) -> list[int]:
    """What the numpy model takes at each place under the masks; the token itself where rounding decides."""
    logits, result = toy.forward(prompt + tokens)[len(prompt) - 1 :], []
    for i, token in enumerate(tokens):
        row = np.where(allowed_after(tokens[:i]), logits[i], -np.inf)
        if params.temperature == 0:
            top = np.sort(row)[-2:]
            result.append(int(row.argmax()) if top[1] - top[0] > 1e-4 else token)
            continue
        weights = np.exp((row - row.max()) / params.temperature)
        places = np.cumsum(weights / weights.sum())
        draw = uniform(params.seed, len(prompt) + i)
        result.append(int(np.searchsorted(places, draw, "right")) if np.abs(places - draw).min() > 1e-4 else token)
    return result


@pytest.mark.parametrize("changes", [{}, {"temperature": 0.8, "seed": 11}, {"temperature": 1.5, "seed": 2**40 + 3}])
def test_tokens_are_those_of_a_numpy_model_under_the_masks(make, toy, changes):
    consumer, params = Consumer(make()), sampling(40, **changes)
    prompts = [[1, 2, 3], [50] * 30, list(range(40, 90))]
    for i, prompt in enumerate(prompts):
        consumer.submit(i, prompt, params)
    told = consumer.run(3)
    for i, prompt in enumerate(prompts):
        tokens = told[i, 0]
        assert 20 < len(tokens) <= 26
        assert (tokens[-1], consumer.last[i, 0].finish) == (EOS, "stop")  # the grammar decides the end
        assert tokens == expected(toy, prompt, tokens, params)


def mixed_load() -> list[tuple[list[int], Any]]:
    """Guided and not, greedy and drawn, one and three completions; long prompts, so that some are preempted."""
    rng = np.random.default_rng(8)
    load = []
    for i in range(16):
        changes: dict[str, Any] = {"logprobs": int(rng.integers(-1, 3)), "n": 3 if i % 5 == 0 else 1}
        if i % 2:
            changes |= {"temperature": 0.9, "seed": i, "top_k": int(rng.integers(0, 9)), "top_p": 0.9}
        prompt = rng.integers(0, 100, rng.integers(1, 60)).tolist()
        load.append((prompt, sampling(int(rng.integers(5, 40)), guided=i % 3 != 2, **changes)))
    return load


@pytest.fixture(scope="module")
def alone(paths):
    """The mixed load's tokens, one request at a time, nothing cached."""
    options = _runtime.EngineOptions()
    options.kv_cache_bytes, options.max_batch_size, options.max_num_tokens = 1 << 22, 3, 256
    options.threads, options.prefix_cache = 1, False
    consumer = Consumer(_runtime.Engine(*paths, options))
    for i, (prompt, params) in enumerate(mixed_load()):
        consumer.submit(i, prompt, params)
        consumer.run(sum(other.n for _, other in mixed_load()[: i + 1]))
    consumer.engine.shutdown(False)
    return consumer.tokens


@pytest.mark.parametrize(
    "changes",
    [{}, {"threads": 2, "max_chunk": 7}, {"debug_preempt_every": 2}, {"debug_preempt_every": 1, "prefix_cache": False}],
)
def test_company_and_preemption_change_nothing(make, alone, changes):
    consumer, load = Consumer(make(**changes)), mixed_load()
    for i, (prompt, params) in enumerate(load):
        consumer.submit(i, prompt, params)
    assert consumer.run(len(alone)) == alone
    stats = consumer.engine.stats()
    assert stats["used_blocks"] == 0
    assert stats["requests_finished"] == len(load)
    assert (stats["preemptions"] > 0) == ("debug_preempt_every" in changes)


def test_a_mask_that_leaves_nothing_ends_only_its_request(make, toy):
    def mask(tokens: list[int]) -> np.ndarray:
        return np.zeros(VOCAB, bool) if len(tokens) == 3 and tokens[0] == 7 else np.arange(VOCAB) == len(tokens) + 7

    consumer = Consumer(make(), mask)
    consumer.submit(1, [5, 6], sampling(8, n=2))
    consumer.submit(2, [5, 6], sampling(8, guided=False))
    told = consumer.run(3)
    for completion in (0, 1):
        last = consumer.last[1, completion]
        assert (last.finish, last.error_type) == ("error", "InvalidRequestError")
        assert "guided decoding must leave a token" in last.error
        assert told[1, completion] == [7, 8, 9]
    assert consumer.last[2, 0].finish == "length"
    assert told[2, 0] == toy_greedy(toy, [5, 6], 8)
    assert consumer.engine.stats()["requests_failed"] == 1


def toy_greedy(toy: ToyLlama, prompt: list[int], count: int) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < count and EOS not in tokens:
        tokens.append(int(toy.forward(prompt + tokens)[-1].argmax()))
    return tokens


def silent_after_one(tokens: list[int]) -> np.ndarray | None:
    return np.ones(VOCAB, bool) if not tokens else None


@pytest.mark.parametrize("how", ["abort", "completion", "timeout"])
def test_a_request_whose_mask_never_comes_ends_alone(make, toy, how):
    for timeout_s in (0.5, 5.0, 60.0) if how == "timeout" else (-1.0,):
        consumer = Consumer(make(), silent_after_one)
        consumer.submit(1, [1, 2], sampling(30, timeout_s=timeout_s, ignore_eos=True))
        consumer.submit(2, [5, 6], sampling(8, guided=False))
        consumer.until(lambda: consumer.tokens.get((1, 0)) or (1, 0) in consumer.last)  # noqa: B023
        if consumer.tokens[1, 0]:  # else a busy machine has drawn no token in this time
            break
    if how != "timeout":
        assert consumer.engine.abort(1, 0 if how == "completion" else -1)
    told = consumer.run(2)
    assert consumer.last[1, 0].finish == ("timeout" if how == "timeout" else "abort")
    assert len(told[1, 0]) == 1
    assert told[2, 0] == toy_greedy(toy, [5, 6], 8)
    assert not consumer.engine.set_mask(1, 0, 1, words_of(np.ones(VOCAB, bool)))
    assert consumer.engine.stats()["used_blocks"] == 0


@pytest.mark.parametrize("drain", [False, True])
def test_shutdown_does_not_wait_for_a_consumer_that_never_answers(make, drain):
    consumer = Consumer(make(), silent_after_one)
    consumer.submit(1, [1, 2], sampling(30, ignore_eos=True))
    consumer.until(lambda: consumer.tokens.get((1, 0)))
    stopping = threading.Thread(target=consumer.engine.shutdown, args=(drain, 0.05))
    stopping.start()
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
    consumer.run(1)
    assert consumer.last[1, 0].finish == "abort"


def test_masks_are_refused_by_name(make):
    engine, full = make(), words_of(np.ones(VOCAB, bool))
    with pytest.raises(InvalidRequestError, match="must bring the mask of its first token"):
        engine.submit(1, [1], sampling(2))
    with pytest.raises(InvalidRequestError, match="only a guided request may bring a mask"):
        engine.submit(1, [1], sampling(2, guided=False), full)
    for wrong in (full.astype(np.int32), full.tolist(), full[None], np.zeros(8, np.uint32)[::2]):
        with pytest.raises(InvalidRequestError, match="first_mask must be a contiguous one-dimensional uint32 array"):
            engine.submit(1, [1], sampling(2), wrong)
    for wrong in (full[:3], np.zeros(5, np.uint32)):
        with pytest.raises(InvalidRequestError, match=f"32\\) = 4 words, got {len(wrong)}"):
            engine.submit(1, [1], sampling(2), wrong)
    full.flags.writeable = False
    engine.submit(1, [1], sampling(2), full)
    with pytest.raises(InvalidRequestError, match="must have ceil"):
        engine.set_mask(1, 0, 1, full[1:])
    with pytest.raises(InvalidRequestError, match="bits must be"):
        engine.set_mask(1, 0, 1, [1, 2])
    with pytest.raises(InvalidRequestError, match="of a token to come"):
        engine.set_mask(1, 0, -1, full)
    assert not engine.set_mask(1, 1, 1, full)
    assert not engine.set_mask(2, 0, 1, full)
    assert engine.set_mask(1, 0, 1, full)


def test_the_sampler_alone_takes_a_mask():
    row = np.arange(VOCAB, dtype=np.float32)
    params, allowed = sampling(5, temperature=1.0, top_k=2), np.isin(np.arange(VOCAB), [3, 40, 77])
    assert _testing.token_set(row, params, mask=words_of(allowed)) == [40, 77]
    assert _testing.sample(row, sampling(5), 0, 0, mask=words_of(allowed))[0] == 77
    with pytest.raises(InvalidRequestError, match="a bit for each"):
        _testing.sample(row, params, 0, 0, mask=np.zeros(3, np.uint32))

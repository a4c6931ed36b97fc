"""Made-up loads of requests, and the check that company changes no bit of an answer."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from support.waiting import wait_until
from tensorwright import LLM, SamplingParams
from tensorwright.runtime.engine.engine_dir import open_engine

SHAPED = {
    "min_p": 0.02, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2,
    "logit_bias": {5: 4.0, 6: -4.0}, "bad_words": [[5, 5]], "no_repeat_ngram_size": 5,
    "typical_p": 0.95, "xtc_probability": 0.5, "xtc_threshold": 0.05,
    "dry_multiplier": 0.8, "dry_sequence_breakers": (),
}  # fmt: skip


@dataclass(frozen=True)
class Ask:
    """One request of a made-up load. It is one of three tenants, by its seed."""

    prompt: tuple[int, ...]
    tokens: int
    temperature: float = 0.0
    seed: int = 0
    abort_after: int | None = None
    """Tokens after which the caller has had enough."""
    arrives_ms: int = 0
    priority: int = 0
    shaped: bool = False
    """With penalties, a bias, a bad word and all else that looks at the tokens so far, and logprobs of the prompt."""

    def params(self) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.tokens, temperature=self.temperature, seed=self.seed, logprobs=2, ignore_eos=True,
            top_k=40 if self.temperature else 0, top_p=0.9 if self.temperature else 1.0,
            priority=self.priority, tenant=self.seed % 3, tenant_weight=(1, 0.5, 4)[self.seed % 3],
            **(SHAPED | {"prompt_logprobs": 1} if self.shaped else {}),
        )  # fmt: skip


@dataclass
class Solo:
    """Answers of requests run alone, one thread, whole prompts, no prefix cache: what all others must equal."""

    llm: LLM
    answers: dict[Ask, list] = field(default_factory=dict)

    def answer(self, ask: Ask) -> list:
        if ask not in self.answers:
            self.answers[ask] = bits(self.llm.generate({"prompt_token_ids": list(ask.prompt)}, ask.params()))
        return self.answers[ask]


def bits(output) -> list:
    """Tokens and logprobs, those of the prompt too, as exact values."""
    completion = output.outputs[0]
    prompt = zip(output.prompt_token_ids[1:], (output.prompt_logprobs or [])[1:], strict=False)
    tokens = zip(completion.token_ids, completion.logprobs, strict=True)
    return [
        (token, {t: (lp.logprob.hex(), lp.rank) for t, lp in table.items()})
        for pairs in (prompt, tokens)
        for token, table in pairs
    ]


def room(engine, blocks: int, sequences: int = 0) -> int:
    """Bytes of a cache of so many blocks, and of the states of so many sequences, if the engine has states."""
    opened = open_engine(engine)
    return blocks * opened.kv_block_bytes + sequences * opened.state_bytes


def asks(
    count: int, seed: int, longest: int = 120, most_tokens: int = 24, spread_ms: int = 50, vocabulary: int = 8192
) -> list[Ask]:
    """Prompts over a shared stem, so that prefixes are found; half greedy, half sampled; a few aborted."""
    rng = random.Random(seed)
    stem = [rng.randrange(vocabulary) for _ in range(96)]
    table = []
    for i in range(count):
        shared = rng.choice([0, 0, 32, 64, 80])
        tail = [rng.randrange(vocabulary) for _ in range(rng.randrange(1, longest - shared + 1))]
        table.append(
            Ask(
                prompt=tuple(stem[:shared] + tail),
                tokens=rng.randrange(1, most_tokens),
                temperature=rng.choice([0.0, 0.8]),
                seed=i,
                abort_after=rng.randrange(1, 6) if rng.random() < 0.1 else None,
                arrives_ms=rng.randrange(spread_ms + 1),
                priority=rng.choice([0, 0, 1]),
                shaped=rng.random() < 0.3,
            )
        )
    return table


def run_together(llm: LLM, load: list[Ask]) -> list[list | None]:
    """Each asked when its time has come; None for a request that was aborted before its end."""

    async def one(ask: Ask) -> list | None:
        await asyncio.sleep(ask.arrives_ms / 1000)
        handle = llm.generate_async({"prompt_token_ids": list(ask.prompt)}, ask.params())
        output = None
        async for output in handle:
            if ask.abort_after is not None and len(output.outputs[0].token_ids) >= ask.abort_after:
                handle.abort()
        assert output is not None
        assert output.finished
        return bits(output) if output.outputs[0].finish_reason != "abort" else None

    async def all_of_them() -> list[list | None]:
        return await asyncio.gather(*(one(ask) for ask in load))

    return asyncio.run(all_of_them())


def check_until_preempted(llm: LLM, solo: Solo, load: list[Ask]) -> None:
    """Checks the load, and again while the engine has preempted nothing: on a busy machine requests may come one after
    the other."""

    def preempted() -> bool:
        check(llm, solo, load)
        return bool(llm.get_stats()["preemptions"])

    wait_until(preempted, "a preemption")


def check(llm: LLM, solo: Solo, load: list[Ask]) -> None:
    for ask, answer in zip(load, run_together(llm, load), strict=True):
        if answer is not None:
            assert answer == solo.answer(ask)
        else:
            assert ask.abort_after is not None
    stats = llm.get_stats()
    assert stats["used_blocks"] == 0
    assert stats["free_blocks"] + stats["cached_blocks"] == stats["total_blocks"]
    assert stats["max_waste_slots_per_sequence"] < stats["block_size"]

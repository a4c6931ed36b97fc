"""Two toy engines, of which one computes a prompt and the other fetches its prefix."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tensorwright import LLM, SamplingParams
from tensorwright.runtime.transfer.receiver import Fetched, Peer, fetch_prefix
from tensorwright.runtime.transfer.server import TransferServer
from tensorwright.runtime.transfer.store import PrefixStore
from tensorwright.runtime.transfer.tickets import Promise

TOKEN = "a-token-of-many-characters"
PROMPT = [(7 * i * i + 3 * i) % 250 for i in range(330)]
BLOCKS = 10
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, logprobs=2, detokenize=False)


def answer_of(llm: LLM) -> list[tuple[int, str]]:
    """Each token of the greedy answer to PROMPT, with the bits of its logprob."""
    [completion] = llm.generate({"prompt_token_ids": PROMPT}, GREEDY).outputs
    tables = completion.logprobs or []
    return [(token, table[token].logprob.hex()) for token, table in zip(completion.token_ids, tables, strict=True)]


def mapped_rings(process: int | str) -> list[str]:
    """The rings of shared memory that a process has mapped, also those whose name is gone."""
    maps = Path(f"/proc/{process}/maps").read_text(encoding="utf-8").splitlines()
    return [line for line in maps if "/dev/shm/tensorwright-" in line]


@dataclass
class Pair:
    """prefill: has computed PROMPT. answer: that of one engine alone."""

    prefill: LLM
    decode: LLM
    sends: PrefixStore
    takes: PrefixStore
    server: TransferServer
    answer: list[tuple[int, str]]

    def ticket(self) -> str:
        return self.server.tickets.issue(Promise(self.sends, np.asarray(PROMPT, np.int32), ""))

    def peer(self, port: int | None = None, timeout: float = 30, idle: float = 30, shared: bool = False) -> Peer:
        return Peer("127.0.0.1", self.server.port if port is None else port, TOKEN, timeout, idle, shared)

    def fetch(self, peer: Peer | None = None, ticket: str | None = None) -> Fetched:
        return fetch_prefix(self.takes, peer or self.peer(), ticket or self.ticket(), "")

    def forget(self) -> None:
        """Makes the decode engine forget all prefixes: a prompt that fills its cache takes their place."""
        stats = self.decode.get_stats()
        count = stats["total_blocks"] * stats["block_size"] - 1
        self.decode.generate({"prompt_token_ids": [251] * count}, SamplingParams(max_tokens=1, detokenize=False))
        assert self.known() == 0

    def known(self) -> int:
        """The blocks of PROMPT that the decode engine remembers."""
        return self.takes.extent(np.asarray(PROMPT, np.int32), "").blocks

    def check_clean(self) -> None:
        assert self.takes.imports() == 0
        assert self.decode.get_stats()["used_blocks"] == 0
        assert not mapped_rings("self")

    def check_answer(self) -> None:
        assert answer_of(self.decode) == self.answer

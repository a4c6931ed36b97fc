"""Makes up prompts of exact token counts, as text or as token ids. The same seed gives the same prompts.

Only the server knows its tokens, so /tokenize and /detokenize are asked, unless a range of ids is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tensorwright.errors import LoadTestError
from tensorwright.runtime.serving.load_test.settings import LoadSettings
from tensorwright.runtime.serving.load_test.workload import RequestLengths

if TYPE_CHECKING:
    from tensorwright.runtime.serving.load_test.client import Client

VOWELS, CONSONANTS = "aeiou", "bcdfghklmnprstvw"
POOL_WORDS = 2000
TRIES = 40
IDS_REMEDY = "with --prompts ids --token-range LOW HIGH the test needs no tokenizer"


async def make_prompts(
    client: Client, model: str, lengths: list[RequestLengths], settings: LoadSettings, rng: np.random.Generator
) -> list[str] | list[list[int]]:
    """Returns one prompt of each length. Prompts of different conversations begin differently behind their common
    beginning, so that no prefix cache helps there; a turn begins with the prompt of the turn before.

    What a turn adds stands for the answer to the last one too: the answer itself is not known before the test.
    """
    if settings.token_range is not None:
        low, high = settings.token_range
        return _continued_ids(lengths, lambda length: rng.integers(low, high, length).tolist())
    maker = PromptMaker(client, model, rng)
    await maker.open()
    if settings.prompts == "ids":
        return _continued_ids(lengths, maker.draw)
    beginning = await maker.text(lengths[0].common) if lengths and lengths[0].common else ""
    texts, histories = list[str](), dict[int, str]()
    for wanted in lengths:
        text = await maker.text(wanted.prompt, histories.get(wanted.conversation, beginning))
        histories[wanted.conversation] = text
        texts.append(text)
    return texts


def _continued_ids(lengths: list[RequestLengths], draw: Callable[[int], list[int]]) -> list[list[int]]:
    beginning = draw(lengths[0].common) if lengths and lengths[0].common else []
    prompts, histories = list[list[int]](), dict[int, list[int]]()
    for wanted in lengths:
        start = histories.get(wanted.conversation, beginning)
        prompt = histories[wanted.conversation] = start + draw(wanted.prompt - len(start))
        prompts.append(prompt)
    return prompts


class PromptMaker:
    """Draws prompts from the tokens of made-up words."""

    def __init__(self, client: Client, model: str, rng: np.random.Generator):
        self.client, self.model, self.rng = client, model, rng
        self.pool = np.zeros(0, dtype=np.int64)
        self.added = 0

    async def open(self) -> None:
        """Asks the server for the tokens of made-up words. Tokens that the tokenizer adds to every text, such as a
        first <s>, are not drawn. Raises LoadTestError if no tokens are left."""
        added = await self._tokenize("")
        tokens = set(await self._tokenize(" ".join(self._word() for _ in range(POOL_WORDS))))
        self.pool, self.added = np.array(sorted(tokens - set(added)), dtype=np.int64), len(added)
        if not len(self.pool):
            raise LoadTestError(f"/tokenize must know made-up words, it gives no tokens for them; {IDS_REMEDY}")

    def draw(self, length: int) -> list[int]:
        return self.rng.choice(self.pool, length).tolist()

    async def text(self, length: int, start: str = "") -> str:
        """Returns a text that begins with `start` and that the server counts as `length` tokens. Neighbouring tokens
        may merge when the text is tokenized again, so ids are added or removed until the count is right. Raises
        LoadTestError if it never is."""
        if length <= self.added:
            raise LoadTestError(
                f"a prompt must be longer than the {self.added} tokens that the tokenizer adds, got {length}; "
                "raise --input-len, or take --prompts ids"
            )
        known = len(await self._tokenize(start)) if start else self.added
        ids = self.draw(max(1, length - known))
        for _ in range(TRIES):
            text = start + await self._detokenize(ids)
            missing = length - len(await self._tokenize(text))
            if missing == 0:
                return text
            ids = ids + self.draw(missing) if missing > 0 else ids[:missing] or self.draw(1)
        raise LoadTestError(
            f"no text of exactly {length} tokens was found in {TRIES} tries; take --prompts ids, which are exact"
        )

    def _word(self) -> str:
        letters = [str(self.rng.choice(list(kind))) for kind in (CONSONANTS, VOWELS) * int(self.rng.integers(1, 4))]
        return "".join(letters)

    async def _tokenize(self, text: str) -> list[int]:
        answer = await self.client.post("/tokenize", {"model": self.model, "prompt": text}, IDS_REMEDY)
        if not isinstance(answer.get("tokens"), list):
            raise LoadTestError(f"/tokenize must answer with tokens, it sent {str(answer)[:200]}; {IDS_REMEDY}")
        return answer["tokens"]

    async def _detokenize(self, ids: list[int]) -> str:
        answer = await self.client.post("/detokenize", {"model": self.model, "tokens": ids}, IDS_REMEDY)
        if not isinstance(answer.get("prompt"), str):
            raise LoadTestError(f"/detokenize must answer with a prompt, it sent {str(answer)[:200]}; {IDS_REMEDY}")
        return answer["prompt"]

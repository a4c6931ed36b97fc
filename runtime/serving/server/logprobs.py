"""Writes logprobs of tokens in the form of completions and in the form of chat completions."""

from __future__ import annotations

from collections.abc import Sequence

from tensorwright.runtime.requests.outputs import Logprob
from tensorwright.runtime.serving.server.responses import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from tensorwright.runtime.serving.server.text_engine import TextEngine
from tensorwright.runtime.text.detokenizer import IncrementalDetokenizer

LEAST = -9999.0  # This number stands for minus infinity, which JSON does not have.

Table = dict[int, Logprob] | None


def _number(logprob: Logprob) -> float:
    return max(logprob.logprob, LEAST)


def _ranked(table: dict[int, Logprob]) -> list[tuple[int, Logprob]]:
    return sorted(table.items(), key=lambda entry: entry[1].rank)


class CompletionLogprobWriter:
    """Writes the logprobs of one choice. It must see all tokens of the choice in order, for it counts where the text of
    each token begins."""

    def __init__(self, engine: TextEngine, skip_special_tokens: bool):
        self._engine = engine
        self._text = IncrementalDetokenizer(engine.tokenizer, skip_special_tokens)
        self._offset = 0

    def write(self, tokens: Sequence[int], tables: Sequence[Table]) -> CompletionLogprobs:
        """Returns the logprobs of further tokens. tables: one table per token; None for a text's first token, which has
        no logprob."""
        result = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token, table in zip(tokens, tables, strict=True):
            decoded = None if table is None else table[token].decoded_token
            if decoded is None:
                decoded = self._engine.tokenizer.token_text(token)
            result.tokens.append(self._engine.token_text(token, decoded))
            result.token_logprobs.append(None if table is None else _number(table[token]))
            result.top_logprobs.append(None if table is None else self._by_text(table))
            result.text_offset.append(self._offset)
            self._offset += len(self._text.push([token]))
        return result

    def _by_text(self, table: dict[int, Logprob]) -> dict[str, float]:
        texts: dict[str, float] = {}
        for token, entry in _ranked(table):  # Two tokens may have the same text; the likelier one stays.
            texts.setdefault(self._engine.token_text(token, entry.decoded_token or ""), _number(entry))
        return texts


def chat_logprobs(engine: TextEngine, tokens: Sequence[int], tables: Sequence[Table], most: int) -> ChatLogprobs:
    """Returns the logprobs of tokens in the form of chats. most: the number of likeliest tokens shown at each place."""
    content = []
    for token, table in zip(tokens, tables, strict=True):
        assert table is not None  # a generated token always has one
        top = [_top(engine, other, entry) for other, entry in _ranked(table) if entry.rank <= most]
        content.append(TokenLogprob(**vars(_top(engine, token, table[token])), top_logprobs=top))
    return ChatLogprobs(content=content)


def _top(engine: TextEngine, token: int, entry: Logprob) -> TopLogprob:
    decoded = entry.decoded_token or ""
    return TopLogprob(
        token=engine.token_text(token, decoded), logprob=_number(entry), bytes=list(engine.token_bytes(token, decoded))
    )

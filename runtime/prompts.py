"""What a prompt may be, and the checks that run before any work starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from tensorwright.errors import InvalidRequestError, PromptTooLongError
from tensorwright.runtime.engine_dir import EngineDir
from tensorwright.runtime.keywords import closest
from tensorwright.runtime.parameter_checks import check_count, is_int, shown
from tensorwright.runtime.request_bounds import BAD_WORD_TOKENS
from tensorwright.runtime.sampling_params import AtMost, SamplingParams

if TYPE_CHECKING:
    from tensorwright.runtime.guided.grammar import Grammar


class PromptDict(TypedDict, total=False):
    """Either prompt or prompt_token_ids; both are refused, for they could say two different things."""

    prompt: str
    prompt_token_ids: Sequence[int]


@dataclass(frozen=True)
class TokenizedPrompt:
    """What this package tokenized itself, without further special tokens. The text is only carried along, into
    RequestOutput.prompt."""

    text: str
    ids: list[int]


Prompt = str | PromptDict | TokenizedPrompt


@dataclass(frozen=True)
class CheckedRequest:
    """A request that the engine can run. max_tokens: how many tokens it may generate, always a number. bad_words: as
    token ids. grammar: what guided_decoding was compiled to."""

    text: str | None
    ids: list[int]
    params: SamplingParams
    max_tokens: int
    bad_words: list[list[int]]
    grammar: Grammar | None = None


@dataclass(frozen=True)
class Capacity:
    """What a running engine holds at most. groups: window (0: none) and blocks of each cache group, every block of
    block_size positions."""

    groups: tuple[tuple[int, int], ...]
    block_size: int
    max_batch_size: int

    def positions(self, prompt: int, n: int) -> int | None:
        """Of each of n completions side by side, which share the full blocks of a prompt of so many tokens. None: any
        number, since all that is held lies in windows. As runtime/core/group_shape.h has it."""
        shared = prompt // self.block_size
        bounds = [
            (shared + (blocks - shared) // n) * self.block_size
            for window, blocks in self.groups
            if window == 0 or n * (-(-window // self.block_size) + 1) > blocks
        ]
        return min(bounds, default=None)


def check_request(prompt: Prompt, params: SamplingParams, engine: EngineDir, capacity: Capacity) -> CheckedRequest:
    """Tokenizes and checks one request; InvalidRequestError or PromptTooLongError says what is wrong with it."""
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError(f"sampling_params must be SamplingParams, got {type(params).__name__}")
    text, ids = _text_and_ids(prompt, engine)
    if params.truncate_prompt_tokens is not None:
        ids = ids[-params.truncate_prompt_tokens :]
    if not ids:
        raise InvalidRequestError("the prompt must hold at least one token, got an empty one")
    for position, token in enumerate(ids):
        if not is_int(token) or not 0 <= token < engine.vocab_size:
            raise InvalidRequestError(
                f"prompt_token_ids must be integers from 0 to {engine.vocab_size - 1}, got {shown(token)} at {position}"
            )
    _check_params(params, engine)
    if params.n > capacity.max_batch_size:
        raise InvalidRequestError(
            f"n must be at most max_batch_size, for every completion takes a place of the batch, which has "
            f"{capacity.max_batch_size}, got {params.n}: lower it, or raise max_batch_size"
        )
    most = _max_tokens(ids, params, engine, capacity)
    grammar = None if params.guided_decoding is None else engine.guided_vocabulary.compile(params.guided_decoding)
    if grammar is not None:
        grammar.first_mask(params.ignore_eos)  # refuses what cannot begin
    return CheckedRequest(text, [int(token) for token in ids], params, most, _bad_words(params, engine), grammar)


def _max_tokens(ids: Sequence[int], params: SamplingParams, engine: EngineDir, capacity: Capacity) -> int:
    """What OpenAI's clients know a prompt that is too long by is the error's beginning, OpenAI's own words."""
    most, holder, remedy = engine.max_seq_len, "engine", "build the engine with a larger --max-seq-len"
    kv_positions = capacity.positions(len(ids), params.n)
    if kv_positions is not None and kv_positions + 1 < most:  # the last token is never written to the cache
        most, holder, remedy = kv_positions + 1, "KV cache", "raise kv_cache_memory"
        if params.n > 1:
            holder, remedy = f"KV cache with {params.n} completions side by side", "lower n, or raise kv_cache_memory"
    room = most - len(ids)
    max_tokens = room if params.max_tokens is None else int(params.max_tokens)
    if isinstance(params.max_tokens, AtMost):
        max_tokens = min(max_tokens, room)
    if max_tokens > room or room < 1:
        raise PromptTooLongError(
            f"This model's maximum context length is {most} tokens: the {holder} holds {most} tokens of prompt and "
            f"output together, the prompt has {len(ids)} and max_tokens is {params.max_tokens}: shorten one, or "
            f"{remedy}"
        )
    if params.min_tokens > max_tokens:
        raise InvalidRequestError(
            f"min_tokens must be at most {max_tokens}, the room that is left, got {params.min_tokens}"
        )
    return max_tokens


def _text_and_ids(prompt: Prompt, engine: EngineDir) -> tuple[str | None, Sequence[int]]:
    if isinstance(prompt, str):
        return prompt, _encode(prompt, engine)
    if isinstance(prompt, TokenizedPrompt):
        return prompt.text, prompt.ids
    if not isinstance(prompt, dict):
        raise InvalidRequestError(
            f'a prompt must be a string or {{"prompt_token_ids": [...]}}, got {type(prompt).__name__}'
        )
    known = PromptDict.__annotations__
    for key in prompt:
        if key not in known:
            raise InvalidRequestError(f"a prompt has no key {key!r}; {closest(str(key), known)}")
    if len(prompt) != 1:
        came = "both" if prompt else "neither"
        raise InvalidRequestError(f'a prompt must have either "prompt" or "prompt_token_ids", {came} came')
    if "prompt_token_ids" in prompt:
        return None, _id_list(prompt["prompt_token_ids"])
    text = prompt["prompt"]
    if not isinstance(text, str):
        raise InvalidRequestError(f"prompt must be a string, got {type(text).__name__}")
    return text, _encode(text, engine)


def _id_list(ids: Any) -> list[int]:
    if isinstance(ids, (str, bytes)) or not hasattr(ids, "__iter__"):
        raise InvalidRequestError(f"prompt_token_ids must be a list of integers, got {type(ids).__name__}")
    return list(ids)


def _encode(text: str, engine: EngineDir, add_special_tokens: bool = True) -> list[int]:
    if engine.tokenizer is None:
        raise InvalidRequestError(
            "the engine has no tokenizer, so a prompt must be token ids: {'prompt_token_ids': [...]}"
        )
    return engine.tokenizer.encode(text, add_special_tokens)


def _check_params(params: SamplingParams, engine: EngineDir) -> None:
    _check_tokens("stop_token_ids", params.stop_token_ids, engine)
    _check_tokens("logit_bias", [token for token, _ in params.biases], engine)
    for name in ("logprobs", "prompt_logprobs"):
        if (getattr(params, name) or 0) > engine.vocab_size:
            raise InvalidRequestError(f"{name} must be at most {engine.vocab_size}, got {getattr(params, name)}")
    if params.detokenize and engine.tokenizer is None:
        raise InvalidRequestError("the engine has no tokenizer: set detokenize=False and read token_ids")


def _check_tokens(name: str, tokens: Sequence[int], engine: EngineDir) -> None:
    for token in tokens:
        if token >= engine.vocab_size:
            raise InvalidRequestError(f"{name} must be below {engine.vocab_size}, got {shown(token)}")


def _bad_words(params: SamplingParams, engine: EngineDir) -> list[list[int]]:
    """A text is banned as it is spelled at the start of a line and after a space: mostly two different spellings."""
    spellings: dict[tuple[int, ...], None] = {}  # a set that keeps the order
    for word in params.bad_words:
        if not isinstance(word, str):
            spellings[tuple(word)] = None
            continue
        if engine.tokenizer is None:
            raise InvalidRequestError("the engine has no tokenizer, so bad_words must be lists of token ids")
        for text in (word, " " + word.lstrip()):
            spelled = _encode(text, engine, add_special_tokens=False)
            check_count(f"bad_words: the tokens of {text!r}", spelled, BAD_WORD_TOKENS, "tokens")
            spellings[tuple(spelled)] = None
    spellings.pop((), None)  # the tokenizer may leave nothing of a blank
    for ids in spellings:
        _check_tokens("bad_words", ids, engine)
    return [list(ids) for ids in spellings]

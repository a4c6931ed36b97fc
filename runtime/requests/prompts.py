"""Defines the forms of a prompt, and checks and tokenizes a request before any work starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from tensorwright.engine_format.pooling import EMBED, GENERATE
from tensorwright.errors import InvalidRequestError, PromptTooLongError, TaskError
from tensorwright.number_checks import is_int
from tensorwright.runtime.base.keywords import closest
from tensorwright.runtime.base.parameter_checks import check_count, shown
from tensorwright.runtime.base.request_bounds import BAD_WORD_TOKENS
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.guided.dry_breakers import DryBreakers, spell_breakers
from tensorwright.runtime.guided.reader import guided_vocabulary
from tensorwright.runtime.requests.pooling_params import PoolingParams
from tensorwright.runtime.requests.sampling_params import AtMost, SamplingParams
from tensorwright.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tensorwright.runtime.engine.adapters import LoadedAdapter
    from tensorwright.runtime.guided.grammar import Grammar


class PromptDict(TypedDict, total=False):
    """A prompt as a dict with either prompt or prompt_token_ids. Both together are refused, because they could
    differ."""

    prompt: str
    prompt_token_ids: Sequence[int]


@dataclass(frozen=True)
class RenderedPrompt:
    """A text that a chat template made. It has its special tokens already, so the tokenizer adds no others."""

    text: str


Prompt = str | PromptDict | RenderedPrompt
MAX_TEXT = 4
"""The length limit, in multiples of the engine's maximum length, of a text that is truncated to its last tokens or that
is only tokenized."""


@dataclass(frozen=True)
class CheckedRequest:
    """A request that the engine can run.

    text: the prompt's text, None for token ids. ids: the prompt's token ids. max_tokens: the most tokens to generate,
    always a number. bad_words: the token ids of each. grammar: the compiled guided_decoding, None without it.
    dry_breakers: the spellings of dry_sequence_breakers, None where there are none or DRY is off. adapter: the one that
    the parameters name, which LLM finds.
    """

    text: str | None
    ids: list[int]
    params: SamplingParams
    max_tokens: int
    bad_words: list[list[int]]
    grammar: Grammar | None = None
    dry_breakers: DryBreakers | None = None
    adapter: LoadedAdapter | None = None


@dataclass(frozen=True)
class Capacity:
    """The most that a running engine can hold.

    groups: the window (0 means none) and the number of blocks of each cache group. block_size: the positions of a
    block.
    """

    groups: tuple[tuple[int, int], ...]
    block_size: int
    max_batch_size: int

    def positions(self, prompt: int, n: int) -> int | None:
        """Returns how many positions each of n parallel completions can have; None means any number.

        The completions share the full blocks of their prompt. The number is unlimited if every cache group has a window
        that fits. runtime/core/cache/group_shape.h has the same formula. prompt: the number of the prompt's tokens.
        """
        shared = prompt // self.block_size
        bounds = [
            (shared + (blocks - shared) // n) * self.block_size
            for window, blocks in self.groups
            if window == 0 or n * (-(-window // self.block_size) + 1) > blocks
        ]
        return min(bounds, default=None)


def check_kind(params: Any) -> None:
    """Raises InvalidRequestError for parameters of another class than SamplingParams."""
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError(f"sampling_params must be SamplingParams, got {type(params).__name__}")


def check_task(params: SamplingParams, engine: EngineDir) -> None:
    """Raises TaskError unless the engine was built for what the parameters ask for."""
    if not isinstance(params, PoolingParams):
        check_generates(engine)
    elif engine.config.task == GENERATE:
        raise TaskError(
            "this engine generates text, and it gives neither embeddings nor scores: build the checkpoint with --task "
            "embed or --task rerank (docs/embeddings.md)"
        )


def check_generates(engine: EngineDir) -> None:
    """Raises TaskError for an engine that draws no tokens."""
    task = engine.config.task
    if task == GENERATE:
        return
    gives = "embeddings" if task == EMBED else "scores of documents"
    raise TaskError(
        f"this engine was built for task {task}: it gives {gives}, and it generates no text: build the checkpoint with "
        "--task generate (docs/embeddings.md)"
    )


def check_request(prompt: Prompt, params: SamplingParams, engine: EngineDir, capacity: Capacity) -> CheckedRequest:
    """Tokenizes and checks one request. Raises InvalidRequestError or PromptTooLongError."""
    check_kind(params)
    check_task(params, engine)
    text, ids = _text_and_ids(prompt, params, engine, capacity)
    if params.truncate_prompt_tokens is not None:
        ids = ids[-params.truncate_prompt_tokens :]
    if not ids:
        raise InvalidRequestError("the prompt must hold at least one token, got an empty one")
    if len(ids) > engine.max_seq_len:
        raise _too_long(len(ids), params, engine, capacity)
    for position, token in enumerate(ids):
        if not is_int(token) or not 0 <= token < engine.vocab_size:
            raise InvalidRequestError(
                f"prompt_token_ids must be integers from 0 to {engine.vocab_size - 1}, got {shown(token)} at {position}"
            )
    _check_params(params, engine)
    if params.sequences > capacity.max_batch_size:
        name, one = ("n", "completion") if params.beam_width == 1 else ("beam_width", "beam")
        raise InvalidRequestError(
            f"{name} must be at most max_batch_size, for every {one} takes a place of the batch, which has "
            f"{capacity.max_batch_size}, got {params.sequences}: lower it, or raise max_batch_size"
        )
    most = _max_tokens(len(ids), params, engine, capacity)
    grammar = None if params.guided_decoding is None else guided_vocabulary(engine).compile(params.guided_decoding)
    if grammar is not None:
        grammar.first_mask(params.ignore_eos)  # raises if the grammar admits no first token
    bad_words, breakers = _bad_words(params, engine), _dry_breakers(params, engine)
    return CheckedRequest(text, [int(token) for token in ids], params, most, bad_words, grammar, breakers)


def _max_tokens(prompt: int, params: SamplingParams, engine: EngineDir, capacity: Capacity) -> int:
    """Returns the most tokens that the request may generate. prompt: the number of the prompt's tokens."""
    if isinstance(params, PoolingParams):
        return _check_pooled(prompt, params, engine, capacity)
    room = _room(prompt, params, engine, capacity).tokens - prompt
    max_tokens = room if params.max_tokens is None else int(params.max_tokens)
    if isinstance(params.max_tokens, AtMost):
        max_tokens = min(max_tokens, room)
    if max_tokens > room or room < 1:
        raise _too_long(prompt, params, engine, capacity)
    if params.min_tokens > max_tokens:
        raise InvalidRequestError(
            f"min_tokens must be at most {max_tokens}, the room that is left, got {params.min_tokens}"
        )
    return max_tokens


def _check_pooled(prompt: int, params: SamplingParams, engine: EngineDir, capacity: Capacity) -> int:
    """Returns 1, which the engine does not count, for a prompt that fits; nothing is generated after it."""
    positions = capacity.positions(prompt, 1)
    if positions is not None and prompt > positions:
        raise PromptTooLongError(
            f"This model's maximum context length is {positions} tokens: the KV cache holds {positions} tokens, the "
            f"text has {prompt}: shorten it, or raise kv_cache_memory"
        )
    return int(params.max_tokens or 1)


@dataclass(frozen=True)
class _Room:
    """The room for a request.

    tokens: the most tokens of prompt and output together. holder: the name of the part that sets this limit. remedy:
    how to raise the limit.
    """

    tokens: int
    holder: str
    remedy: str


def _room(prompt: int, params: SamplingParams, engine: EngineDir, capacity: Capacity) -> _Room:
    kv_positions = capacity.positions(prompt, params.sequences)
    if kv_positions is None or kv_positions + 1 >= engine.max_seq_len:  # the last token is never written to the cache
        return _Room(engine.max_seq_len, "engine", "build the engine with a larger --max-seq-len")
    if params.sequences == 1:
        return _Room(kv_positions + 1, "KV cache", "raise kv_cache_memory")
    name, several = ("n", "completions") if params.beam_width == 1 else ("beam_width", "beams")
    holder = f"KV cache with {params.sequences} {several} side by side"
    return _Room(kv_positions + 1, holder, f"lower {name}, or raise kv_cache_memory")


def _too_long(
    prompt: int, params: SamplingParams, engine: EngineDir, capacity: Capacity, counted: str = ""
) -> PromptTooLongError:
    """Returns the error for a prompt that is too long. It begins with OpenAI's own words, by which OpenAI's clients
    recognise it. counted: a word before the number of the prompt's tokens, such as "about "."""
    if isinstance(params, PoolingParams):
        most = engine.max_seq_len
        return PromptTooLongError(
            f"This model's maximum context length is {most} tokens: the text has {counted}{prompt}: shorten it, or "
            "build the engine with a larger --max-seq-len"
        )
    room = _room(prompt, params, engine, capacity)
    return PromptTooLongError(
        f"This model's maximum context length is {room.tokens} tokens: the {room.holder} holds {room.tokens} tokens of "
        f"prompt and output together, the prompt has {counted}{prompt} and max_tokens is {params.max_tokens}: shorten "
        f"one, or {room.remedy}"
    )


def _text_and_ids(
    prompt: Prompt, params: SamplingParams, engine: EngineDir, capacity: Capacity
) -> tuple[str | None, Sequence[int]]:
    if isinstance(prompt, str):
        return prompt, _encode_prompt(prompt, params, engine, capacity)
    if isinstance(prompt, RenderedPrompt):
        return prompt.text, _encode_prompt(prompt.text, params, engine, capacity, add_special_tokens=False)
    if not isinstance(prompt, dict):
        raise InvalidRequestError(
            f'a prompt must be a string or {{"prompt_token_ids": [...]}}, got {type(prompt).__name__}'
        )
    known = PromptDict.__annotations__
    for key in prompt:
        if key not in known:
            raise InvalidRequestError(f"a prompt has no key {shown(key)}; {closest(str(key), known)}")
    if len(prompt) != 1:
        came = "both" if prompt else "neither"
        raise InvalidRequestError(f'a prompt must have either "prompt" or "prompt_token_ids", {came} came')
    if "prompt_token_ids" in prompt:
        return None, _id_list(prompt["prompt_token_ids"])
    text = prompt["prompt"]
    if not isinstance(text, str):
        raise InvalidRequestError(f"prompt must be a string, got {type(text).__name__}")
    return text, _encode_prompt(text, params, engine, capacity)


def _id_list(ids: Any) -> list[int]:
    if isinstance(ids, (str, bytes)) or not hasattr(ids, "__iter__"):
        raise InvalidRequestError(f"prompt_token_ids must be a list of integers, got {type(ids).__name__}")
    return list(ids)


def _encode_prompt(
    text: str, params: SamplingParams, engine: EngineDir, capacity: Capacity, add_special_tokens: bool = True
) -> list[int]:
    """Returns the token ids of a prompt, and refuses a text that cannot fit before it encodes the text.

    With truncate_prompt_tokens it encodes the whole text, because a tokenizer may encode the end of a text differently
    if the end stands alone.
    """
    tokenizer = _tokenizer(engine)
    if params.truncate_prompt_tokens is not None:
        return encode_whole(text, engine, add_special_tokens)
    if (least := tokenizer.least_tokens(text)) > engine.max_seq_len:
        raise _too_long(least, params, engine, capacity, "at least ")
    ids = tokenizer.encode_within(text, engine.max_seq_len, add_special_tokens)
    if isinstance(ids, int):
        raise _too_long(ids, params, engine, capacity, "about " if ids > 2 * engine.max_seq_len else "")
    return ids


def encode_whole(text: str, engine: EngineDir, add_special_tokens: bool = True) -> list[int]:
    """Returns the token ids of a text that may be up to MAX_TEXT times as long as the engine's maximum length.

    Raises PromptTooLongError for a longer text.
    """
    tokenizer, most = _tokenizer(engine), MAX_TEXT * engine.max_seq_len
    least = tokenizer.least_tokens(text)
    ids = least if least > most else tokenizer.encode_within(text, most, add_special_tokens)
    if isinstance(ids, int):
        raise PromptTooLongError(
            f"a text must have at most {most} tokens to be tokenized, {MAX_TEXT} times the model's maximum context "
            f"length, got about {ids}"
        )
    return ids


def _tokenizer(engine: EngineDir) -> Tokenizer:
    if engine.tokenizer is None:
        raise InvalidRequestError(
            "the engine has no tokenizer, so a prompt must be token ids: {'prompt_token_ids': [...]}"
        )
    return engine.tokenizer


def _check_params(params: SamplingParams, engine: EngineDir) -> None:
    _check_tokens("stop_token_ids", params.stop_token_ids, engine)
    _check_tokens("logit_bias", [token for token, _ in params.biases], engine)
    for name in ("logprobs", "prompt_logprobs"):
        if (getattr(params, name) or 0) > engine.vocab_size:
            raise InvalidRequestError(f"{name} must be at most {engine.vocab_size}, got {getattr(params, name)}")
    for text in params.kept_special_tokens:
        if engine.tokenizer is None or engine.tokenizer.special_id(text) is None:
            raise InvalidRequestError(f"kept_special_tokens must be special tokens of the engine, got {text!r:.80}")
    if params.detokenize and engine.tokenizer is None:
        raise InvalidRequestError("the engine has no tokenizer: set detokenize=False and read token_ids")


def _check_tokens(name: str, tokens: Sequence[int], engine: EngineDir) -> None:
    for token in tokens:
        if token >= engine.vocab_size:
            raise InvalidRequestError(f"{name} must be below {engine.vocab_size}, got {shown(token)}")


def _dry_breakers(params: SamplingParams, engine: EngineDir) -> DryBreakers | None:
    if params.dry_multiplier == 0 or params.dry_penalty_last_n == 0 or not params.dry_sequence_breakers:
        return None
    if engine.tokenizer is None:
        raise InvalidRequestError("the engine has no tokenizer, so dry_sequence_breakers must be ()")
    return spell_breakers(engine.tokenizer, params.dry_sequence_breakers)


def _bad_words(params: SamplingParams, engine: EngineDir) -> list[list[int]]:
    """Returns the token ids of all bad words. A text is banned with and without a space before it, which mostly gives
    two different spellings."""
    spellings: dict[tuple[int, ...], None] = {}  # this dict is a set that keeps the order
    for word in params.bad_words:
        if not isinstance(word, str):
            spellings[tuple(word)] = None
            continue
        if engine.tokenizer is None:
            raise InvalidRequestError("the engine has no tokenizer, so bad_words must be lists of token ids")
        for text in (word, " " + word.lstrip()):
            spelled = engine.tokenizer.encode(text, add_special_tokens=False)
            check_count(f"bad_words: the tokens of {text!r}", spelled, BAD_WORD_TOKENS, "tokens")
            spellings[tuple(spelled)] = None
    spellings.pop((), None)  # the tokenizer may drop a blank, which leaves no tokens
    for spelling in spellings:
        _check_tokens("bad_words", spelling, engine)
    return [list(spelling) for spelling in spellings]

"""One engine's tokens as llguidance knows them, and the grammars compiled for them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from tensorwright.errors import InvalidRequestError, MissingDependencyError
from tensorwright.installing import install
from tensorwright.runtime.guided.grammar import Grammar, compile_grammar
from tensorwright.runtime.guided.params import GuidedDecodingParams

if TYPE_CHECKING:
    from tensorwright.runtime.engine_dir import EngineDir

KEPT = 64  # compiled grammars
STAND_IN = "<|tensorwright_end|>"  # the end of a grammar, for a model without an end-of-sequence token


def load_llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise MissingDependencyError(f"guided decoding needs llguidance ({error}): {install('guided')}") from error
    return llguidance


class GuidedVocabulary:
    """Thread-safe. Made at an engine's first guided request, for reading a large tokenizer takes a second."""

    def __init__(self, engine: EngineDir):
        if engine.tokenizer is None:
            raise InvalidRequestError(f"{engine.path} has no tokenizer, which guided decoding needs")
        self.eos = engine.eos_token_ids
        self.words = (engine.vocab_size + 31) // 32  # of a mask
        self.library = load_llguidance()
        library_tokens = tokenizers.Tokenizer.from_file(str(engine.file("tokenizer.json")))
        if not self.eos:
            library_tokens.add_special_tokens([STAND_IN])
        ends = self.eos or [token for token in [library_tokens.token_to_id(STAND_IN)] if token is not None]
        size = max(engine.vocab_size, engine.tokenizer.vocab_size, *(token + 1 for token in ends))
        try:
            self.tokens = self.library.LLTokenizer(library_tokens.to_str(), n_vocab=size, eos_token=ends)
        except Exception as error:  # a panic of the library is no Exception
            raise InvalidRequestError(
                f"{engine.path}: llguidance cannot use this tokenizer, so decoding cannot be guided: {error}"
            ) from error
        self.library_words = (self.tokens.vocab_size + 31) // 32  # of a mask before trim()
        self._known = _bits(range(engine.vocab_size), self.words)
        self._no_ends = ~_bits([token for token in ends if token < engine.vocab_size], self.words)
        self._grammars: OrderedDict[GuidedDecodingParams, Grammar] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def json_tokens(self) -> Any:
        """The same, prepared for JSON: the first string of an output else costs 8 ms, while the engine waits."""
        return self.tokens.with_slices(self.library.LLTokenizer.json_slices())

    def compile(self, params: GuidedDecodingParams) -> Grammar:
        """InvalidRequestError says what is wrong with it."""
        with self._lock:
            grammar = self._grammars.get(params)
            if grammar is not None:
                self._grammars.move_to_end(params)
                return grammar
        grammar = compile_grammar(self, params)
        with self._lock:
            self._grammars[params] = grammar
            if len(self._grammars) > KEPT:
                self._grammars.popitem(last=False)
        return grammar

    def trim(self, row: NDArray[np.uint32], with_ends: bool) -> NDArray[np.uint32]:
        """A mask of the library as the engine takes it: the model's own tokens only."""
        mask = row[: self.words] & self._known
        return mask if with_ends else mask & self._no_ends


def _bits(tokens: Any, words: int) -> NDArray[np.uint32]:
    bits = np.zeros(words * 32, dtype=np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)

"""One engine's tokens as llguidance knows them, and the grammars compiled for them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
import tokenizers
from numpy.typing import NDArray

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.guided.grammar import Grammar, compile_grammar
from tensorwright.runtime.guided.library import LibraryTokens, load_library
from tensorwright.runtime.guided.params import GuidedDecodingParams
from tensorwright.runtime.guided.spelling import SPECIAL, text_tokenizer, token_bytes

if TYPE_CHECKING:
    from tensorwright.runtime.engine_dir import EngineDir

KEPT = 64  # compiled grammars
STAND_IN = SPECIAL + b"<|tensorwright_end|>"  # the end of a grammar, for a model without an end-of-sequence token


class GuidedVocabulary:
    """Thread-safe. To make one takes about 4 us per token; other threads go on meanwhile."""

    def __init__(self, engine: EngineDir):
        if engine.tokenizer is None:
            raise InvalidRequestError(f"{engine.path} has no tokenizer, which guided decoding needs")
        load_library()
        self.eos = engine.eos_token_ids
        self.words = (engine.vocab_size + 31) // 32  # of a mask
        size = max(engine.vocab_size, engine.tokenizer.vocab_size)
        try:
            self.tokens = _read(engine.tokenizer.library, size, self.eos)
        except ValueError as error:
            raise InvalidRequestError(
                f"{engine.path}: llguidance cannot use this tokenizer, so decoding cannot be guided: {error}"
            ) from error
        self.library_words = (self.tokens.vocab_size + 31) // 32  # of a mask before trim()
        self._known = _bits(self.words, slice(0, engine.vocab_size))
        self._no_ends = ~_bits(self.words, self.eos)
        self._grammars: OrderedDict[GuidedDecodingParams, Grammar] = OrderedDict()
        self._lock = threading.Lock()

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


def _read(tokenizer: tokenizers.Tokenizer, size: int, eos: list[int]) -> LibraryTokens:
    """Raises ValueError."""
    lengths, spelled = token_bytes(tokenizer, size)
    if not eos:
        lengths = np.append(lengths, np.uint32(len(STAND_IN)))
        spelled += STAND_IN
    return LibraryTokens(lengths, bytes(spelled), eos or [size], text_tokenizer(tokenizer))


def _bits(words: int, tokens: slice | list[int]) -> NDArray[np.uint32]:
    bits = np.zeros(words * 32, dtype=np.uint8)
    bits[tokens] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)

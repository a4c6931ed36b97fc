"""Keeps one engine's tokens in llguidance's form, and the grammars that were compiled for them."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from concurrent.futures import Future

import numpy as np
import tokenizers

from tensorwright.errors import InvalidRequestError, QueueFullError
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.guided.child_link import SpelledVocabulary
from tensorwright.runtime.guided.compile_process import CompileProcess, process_for
from tensorwright.runtime.guided.grammar import Grammar, compile_grammar
from tensorwright.runtime.guided.library import LibraryTokens, load_library
from tensorwright.runtime.guided.params import GuidedDecodingParams
from tensorwright.runtime.guided.spelling import SPECIAL, text_tokenizer, token_bytes
from tensorwright.runtime.guided.token_masks import TokenMasks

KEPT = 64  # the most compiled grammars that are kept
KEPT_BYTES = 256 << 20  # the most bytes of all kept grammars together
# The token that ends a grammar, for a model without an end-of-sequence token.
STAND_IN = SPECIAL + b"<|tensorwright_end|>"


class GuidedVocabulary:
    """The vocabulary of one engine for guided decoding. It is thread-safe.

    To make one takes about 10 us of a processor per token, a bit less than half of that in the process that compiles
    grammars. Other threads can run meanwhile.
    """

    def __init__(self, engine: EngineDir):
        if engine.tokenizer is None:
            raise InvalidRequestError("the engine has no tokenizer, which guided decoding needs")
        load_library()
        try:
            self.compiler, self.tokens = _read(engine.tokenizer.library, engine)
        except ValueError as error:
            raise InvalidRequestError(
                f"llguidance cannot use this tokenizer, so decoding cannot be guided: {error}"
            ) from error
        self.masks = TokenMasks(engine.vocab_size, self.tokens.vocab_size, engine.eos_token_ids)
        self._grammars: OrderedDict[GuidedDecodingParams, Grammar] = OrderedDict()
        self._compiling: dict[GuidedDecodingParams, Future[Grammar]] = {}
        self._lock = threading.Lock()

    def compile(self, params: GuidedDecodingParams) -> Grammar:
        """Returns the compiled grammar. Threads that ask for the same one at the same time share one compilation.

        The calling thread waits for at most a few seconds. Raises what CompileProcess.compile raises.
        """
        refused = False
        while True:
            with self._lock:
                grammar = self._grammars.get(params)
                if grammar is not None:
                    self._grammars.move_to_end(params)
                    return grammar
                first = params not in self._compiling
                coming = self._compiling.setdefault(params, Future())
            try:
                if first:
                    self._compile(params, coming)
                return coming.result()
            except QueueFullError:  # the thread that asked first got no place, but this thread may get one
                if first or refused:
                    raise
                refused = True
            finally:
                # Without this line, an error and its future would refer to each other through the error's traceback,
                # and keep this vocabulary and its process alive.
                del coming

    def knows(self, params: GuidedDecodingParams) -> bool:
        """Whether compile() returns at once."""
        with self._lock:
            return params in self._grammars

    def _compile(self, params: GuidedDecodingParams, coming: Future[Grammar]) -> None:
        try:
            grammar = compile_grammar(self.compiler, self.tokens, self.masks, params)
        except BaseException as error:
            with self._lock:
                del self._compiling[params]
            own = isinstance(error, Exception)
            coming.set_exception(error if own else QueueFullError("the compilation was interrupted; try again"))
            del coming  # see compile()
            raise
        with self._lock:
            self._grammars[params] = grammar
            while len(self._grammars) > KEPT or sum(each.size for each in self._grammars.values()) > KEPT_BYTES:
                self._grammars.popitem(last=False)
            del self._compiling[params]
        coming.set_result(grammar)


def _read(tokenizer: tokenizers.Tokenizer, engine: EngineDir) -> tuple[CompileProcess, LibraryTokens]:
    """Reads the vocabulary, first in the child process, because the library might end the process that reads it.

    Raises ValueError, in the library's words.
    """
    eos = engine.eos_token_ids
    size = max(engine.vocab_size, tokenizer.get_vocab_size(with_added_tokens=True))
    lengths, spelled = token_bytes(tokenizer, size)
    if not eos:
        lengths = np.append(lengths, np.uint32(len(STAND_IN)))
        spelled += STAND_IN
    ends = tuple(eos or [size])
    compiler = process_for(SpelledVocabulary(lengths.tobytes(), bytes(spelled), ends))
    compiler.start()
    return compiler, LibraryTokens(array("I", lengths.tobytes()), bytes(spelled), ends, text_tokenizer(tokenizer))

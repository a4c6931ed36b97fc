"""Reads an engine's vocabulary for guided decoding: at the first guided request, or before in a thread of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tensorwright.errors import EngineStoppedError, TensorwrightError
from tensorwright.runtime.base.once import kept_with
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.guided.params import GuidedDecodingParams

if TYPE_CHECKING:
    from tensorwright.runtime.guided.vocabulary import GuidedVocabulary

THREAD = "tensorwright-vocabulary"
"""The name of the thread that reads a vocabulary while the engine starts, and then ends."""


class VocabularyReader:
    """Reads the vocabulary of one engine once, for the first caller. It is thread-safe."""

    def __init__(self, engine: EngineDir):
        self._engine = engine
        self._lock = threading.Lock()  # each engine has its own lock, so requests of other engines never wait for it
        self._vocabulary: GuidedVocabulary | None = None
        self._closed = False

    def get(self) -> GuidedVocabulary:
        """Returns the vocabulary. It reads the vocabulary, or waits for the thread that reads it. If reading fails,
        each call raises what GuidedVocabulary raises."""
        from tensorwright.runtime.guided.vocabulary import GuidedVocabulary  # imports 40 modules, for guided requests

        with self._lock:
            if self._closed:
                raise EngineStoppedError("the LLM was shut down; make a new one")
            vocabulary = self._vocabulary or GuidedVocabulary(self._engine)
            self._vocabulary = None if self._closed else vocabulary
            return vocabulary

    def knows(self, params: GuidedDecodingParams | None) -> bool:
        """Whether these parameters need neither a compilation nor the reading of the vocabulary. It never waits."""
        vocabulary = self._vocabulary
        return params is None or (vocabulary is not None and vocabulary.knows(params))

    def close(self) -> None:
        """Releases the vocabulary, and the process that compiles its grammars unless another engine uses that
        process."""
        self._closed = True  # it does not wait for a thread that reads; that thread drops the vocabulary by itself
        self._vocabulary = None

    def start(self) -> None:
        """Begins to read the vocabulary in a thread of its own."""
        threading.Thread(target=self._read_ahead, name=THREAD).start()

    def _read_ahead(self) -> None:
        try:
            self.get()
        except TensorwrightError:
            return  # this engine cannot do guided decoding; get() raises the error again for each guided request


def vocabulary_reader(engine: EngineDir) -> VocabularyReader:
    """Returns the one reader of this engine. It lives as long as the engine."""
    return kept_with(engine, VocabularyReader)


def guided_vocabulary(engine: EngineDir) -> GuidedVocabulary:
    """Returns the engine's vocabulary, and reads it on the first call. Raises InvalidRequestError for an engine without
    a tokenizer, and MissingDependencyError if the library is absent."""
    return vocabulary_reader(engine).get()

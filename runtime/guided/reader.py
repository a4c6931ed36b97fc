"""When an engine's vocabulary is read for guided decoding: at the first guided request, or before there is one."""

from __future__ import annotations

import threading

from tensorwright.errors import EngineStoppedError, TensorwrightError
from tensorwright.runtime.base.once import kept_with
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.guided.params import GuidedDecodingParams
from tensorwright.runtime.guided.vocabulary import GuidedVocabulary

THREAD = "tensorwright-vocabulary"
"""Name of the thread that reads one beside the start, and then ends."""


class VocabularyReader:
    """Reads the vocabulary of one engine once, whoever asks first. Thread-safe."""

    def __init__(self, engine: EngineDir):
        self._engine = engine
        self._lock = threading.Lock()  # of this engine alone: a request of another one never waits for it
        self._vocabulary: GuidedVocabulary | None = None
        self._closed = False

    def get(self) -> GuidedVocabulary:
        """Reads it, or waits for the thread that does. Raises what GuidedVocabulary does, each time."""
        with self._lock:
            if self._closed:
                raise EngineStoppedError("the LLM was shut down; make a new one")
            vocabulary = self._vocabulary or GuidedVocabulary(self._engine)
            self._vocabulary = None if self._closed else vocabulary
            return vocabulary

    def knows(self, params: GuidedDecodingParams | None) -> bool:
        """Whether these need no compiling, nor the vocabulary to be read. It never waits."""
        vocabulary = self._vocabulary
        return params is None or (vocabulary is not None and vocabulary.knows(params))

    def close(self) -> None:
        """Lets go of the vocabulary, and of the process that compiles grammars for it unless another engine uses it."""
        self._closed = True  # whoever reads it now is not waited for: it goes when they let go of it
        self._vocabulary = None

    def start(self) -> None:
        """Reads it in a thread of its own."""
        threading.Thread(target=self._read_ahead, name=THREAD).start()

    def _read_ahead(self) -> None:
        try:
            self.get()
        except TensorwrightError:
            return  # this engine cannot be guided: each request that asks for it is told so by get()


def vocabulary_reader(engine: EngineDir) -> VocabularyReader:
    """The one reader of this engine. It lives as long as the engine."""
    return kept_with(engine, VocabularyReader)


def guided_vocabulary(engine: EngineDir) -> GuidedVocabulary:
    """The engine's vocabulary, which is read when it is first asked for. Raises InvalidRequestError for an engine
    without a tokenizer and MissingDependencyError where the library is absent."""
    return vocabulary_reader(engine).get()

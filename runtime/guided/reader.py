"""When an engine's vocabulary is read for guided decoding: at the first guided request, or before there is one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tensorwright.errors import TensorwrightError

if TYPE_CHECKING:
    from tensorwright.runtime.engine_dir import EngineDir
    from tensorwright.runtime.guided.vocabulary import GuidedVocabulary

THREAD = "tensorwright-vocabulary"
"""Name of the thread that reads one beside the start, and then ends."""
TIMES = ("lazy", "eager")


class VocabularyReader:
    """Reads the vocabulary of one engine once, whoever asks first. Thread-safe."""

    def __init__(self, engine: EngineDir):
        self._engine = engine
        self._lock = threading.Lock()  # of this engine alone: a request of another one never waits for it
        self._vocabulary: GuidedVocabulary | None = None

    def get(self) -> GuidedVocabulary:
        """Reads it, or waits for the thread that does. Raises what GuidedVocabulary does, each time."""
        from tensorwright.runtime.guided.vocabulary import GuidedVocabulary

        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = GuidedVocabulary(self._engine)
            return self._vocabulary

    def start(self) -> None:
        """Reads it in a thread of its own."""
        threading.Thread(target=self._read_ahead, name=THREAD).start()

    def _read_ahead(self) -> None:
        try:
            self.get()
        except TensorwrightError:
            return  # this engine cannot be guided: each request that asks for it is told so by get()

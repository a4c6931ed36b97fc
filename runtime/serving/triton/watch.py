"""Watches for an engine that stopped in a living process, which Triton 2.51 does not notice."""

from __future__ import annotations

import threading
from typing import Any

PERIOD = 0.5  # seconds


class Watch:
    """Runs a thread until `close`. pb_utils: the module that Triton gives to its Python models.

    A model whose engine stopped unloads itself, so that it is not ready. Triton allows this only in explicit mode. In
    other modes each request is answered with the engine's error.
    """

    def __init__(self, pb_utils: Any, llm: Any, model: str):
        self._pb = pb_utils
        self._llm = llm
        self._model = model
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tensorwright-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread. Call it before the engine is shut down, for the watch would take that for a failure."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(PERIOD):
            if not self._llm.running and not self._llm.trouble:  # in trouble, another engine takes its place
                self._leave()
                return

    def _leave(self) -> None:
        self._pb.Logger.log_error(f"tensorwright: the engine of {self._model!r} stopped; load the model again")
        try:
            self._pb.unload_model(self._model)
        except self._pb.TritonModelException as error:
            self._pb.Logger.log_error(f"tensorwright: {self._model!r} stays ready, and answers with errors: {error}")

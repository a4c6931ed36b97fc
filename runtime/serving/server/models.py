"""Keeps a server's engines by the names that clients call them, and lists them at /v1/models."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from fastapi import APIRouter, Request

from tensorwright.errors import UnknownModelError
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.serving.server.responses import ModelCard, ModelList


class EngineRegistry(Mapping[str, "LLM"]):
    """Maps each name to its LLM, in the order of the command line. started: the Unix time of the registry's making."""

    def __init__(self, engines: Mapping[str, LLM]):
        self._engines = dict(engines)
        self.started = int(time.time())

    def find(self, name: str) -> LLM:
        """Returns the LLM of a name. Raises UnknownModelError for an unknown name, which clients see as 404."""
        if name not in self._engines:
            raise UnknownModelError(f"there is no model {name!r} here; there are {', '.join(self._engines)}")
        return self._engines[name]

    def __getitem__(self, name: str) -> LLM:
        return self._engines[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._engines)

    def __len__(self) -> int:
        return len(self._engines)


router = APIRouter(tags=["openai"])


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """Lists the models that this server has."""
    return ModelList(data=[_card(name, llm) for name, llm in request.app.state.engines.items()])


@router.get("/v1/models/{model:path}")
async def show_model(model: str, request: Request) -> ModelCard:
    """Describes one model of this server."""
    return _card(model, request.app.state.engines.find(model))


def _card(name: str, llm: LLM) -> ModelCard:
    return ModelCard(id=name, created=llm.engine.created, max_model_len=llm.engine.max_seq_len)

"""Keeps a server's engines by the names that clients call them, and lists them at /v1/models."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from fastapi import APIRouter, Request

from tensorwright.errors import InvalidRequestError, UnknownModelError
from tensorwright.runtime.engine.adapters import LoadedAdapter
from tensorwright.runtime.serving.server.responses import ModelCard, ModelList
from tensorwright.runtime.serving.server.served_model import ServedModel


class EngineRegistry(Mapping[str, ServedModel]):
    """Maps each name to its model, in the order of the command line. started: the Unix time of its making."""

    def __init__(self, engines: Mapping[str, ServedModel]):
        self._engines = dict(engines)
        self.started = int(time.time())

    def find(self, name: str) -> ServedModel:
        """Returns the model of a name. Raises UnknownModelError for an unknown name, which clients see as 404."""
        if name not in self._engines:
            there = [*self._engines, *(adapter for llm in self._engines.values() for adapter in llm.adapters)]
            raise UnknownModelError(f"there is no model {name!r} here; there are {', '.join(there)}")
        return self._engines[name]

    def find_adapter(self, name: str) -> tuple[str, ServedModel] | None:
        """Returns the name and the model whose adapter has this name; None if there is none."""
        return next(((model, llm) for model, llm in self._engines.items() if name in llm.adapters), None)

    @property
    def only(self) -> str:
        """The name of the only model. Raises InvalidRequestError if there are several."""
        if len(self._engines) != 1:
            raise InvalidRequestError(f"model must be one of {', '.join(self._engines)}, got none")
        return next(iter(self._engines))

    def __getitem__(self, name: str) -> ServedModel:
        return self._engines[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._engines)

    def __len__(self) -> int:
        return len(self._engines)


router = APIRouter(tags=["openai"])


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """Lists the models that this server has, each with its adapters behind it."""
    cards = []
    for name, llm in request.app.state.engines.items():
        cards += [_card(name, llm), *(_adapter_card(one, name, llm) for one in llm.adapters.values())]
    return ModelList(data=cards)


@router.get("/v1/models/{model:path}")
async def show_model(model: str, request: Request) -> ModelCard:
    """Describes one model or adapter of this server."""
    engines: EngineRegistry = request.app.state.engines
    owner = None if model in engines else engines.find_adapter(model)
    if owner is not None and (adapter := owner[1].adapters.get(model)) is not None:
        return _adapter_card(adapter, *owner)
    return _card(model, engines.find(model))


def _card(name: str, llm: ServedModel) -> ModelCard:
    engine = llm.engine
    return ModelCard(id=name, created=engine.created, max_model_len=engine.max_seq_len, task=engine.config.task)


def _adapter_card(adapter: LoadedAdapter, name: str, llm: ServedModel) -> ModelCard:
    """name: that of the model which the adapter changes."""
    return ModelCard(id=adapter.name, created=adapter.created, max_model_len=llm.engine.max_seq_len, parent=name)

"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from fastapi import APIRouter, Request

from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.serving.server.responses import ModelCard, ModelList
from tensorwright.runtime.serving.server.text_engine import model_created

router = APIRouter(tags=["openai"])


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """The engines that this server has."""
    return ModelList(data=[_card(name, llm) for name, llm in request.app.state.engines.items()])


@router.get("/v1/models/{model:path}")
async def show_model(model: str, request: Request) -> ModelCard:
    """One of them."""
    return _card(model, request.app.state.engines.find(model))


def _card(name: str, llm: LLM) -> ModelCard:
    return ModelCard(id=name, created=model_created(llm.engine), max_model_len=llm.engine.max_seq_len)

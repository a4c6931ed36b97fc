"""Answers POST /v1/load_lora_adapter and /v1/unload_lora_adapter in vLLM's form, if the server has --adapter-folder.

Both need a key. A client names folders inside --adapter-folder, and no others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from pydantic import Field

from tensorwright.engine_format.file_names import PEFT_CONFIG, PEFT_WEIGHTS
from tensorwright.errors import AdapterError, InvalidRequestError, UnknownModelError
from tensorwright.runtime.engine.adapters import MAX_NAME, check_name
from tensorwright.runtime.serving.server.body_route import BodyRoute
from tensorwright.runtime.serving.server.clients import client_of
from tensorwright.runtime.serving.server.models import EngineRegistry
from tensorwright.runtime.serving.server.request_fields import Name, StrictModel
from tensorwright.runtime.serving.server.served_model import ServedModel

router = APIRouter(tags=["adapters"], route_class=BodyRoute)

AdapterName = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class LoadAdapter(StrictModel):
    """lora_path: a folder inside the server's --adapter-folder. load_inplace: an adapter that has the name already is
    replaced. model: the model that the adapter changes; it may be left out where the server has one model."""

    lora_name: AdapterName
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    load_inplace: bool = False
    model: Name | None = None


class UnloadAdapter(StrictModel):
    lora_name: AdapterName


@router.post("/v1/load_lora_adapter")
async def load_lora_adapter(body: LoadAdapter, request: Request) -> PlainTextResponse:
    """Loads an adapter while requests run."""
    registry: EngineRegistry = request.app.state.engines
    llm = registry.find(registry.only if body.model is None else body.model)
    folder = Path(request.app.state.options.adapter_folder)

    def load() -> None:
        check_name(body.lora_name)
        place = _inside(folder, body.lora_path)
        owner = registry.find_adapter(body.lora_name)
        if body.lora_name in registry or (owner is not None and owner[1] is not llm):
            raise InvalidRequestError(
                f"lora_name must not be the name of a model or of another model's adapter, got {body.lora_name!r}"
            )
        if owner is not None and not body.load_inplace:
            raise InvalidRequestError(
                f"the adapter {body.lora_name!r} is loaded already; unload it first, or say load_inplace: true"
            )
        try:
            llm.load_adapter(body.lora_name, place)
        except AdapterError as error:  # A client reads the name that it gave, and no path of this machine.
            raise AdapterError(str(error).replace(str(place), body.lora_path)) from error

    # One thread loads for all clients: nothing is loaded between the look at the names and the load.
    await request.app.state.pools.adapters.run(load, client=client_of(request.scope))
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post("/v1/unload_lora_adapter")
async def unload_lora_adapter(body: UnloadAdapter, request: Request) -> PlainTextResponse:
    """Forgets an adapter. Requests that have it go on."""
    registry: EngineRegistry = request.app.state.engines
    owner = registry.find_adapter(body.lora_name)
    if owner is None:
        raise UnknownModelError(f"there is no adapter {body.lora_name!r} here")
    owner[1].unload_adapter(body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _inside(folder: Path, asked: str) -> Path:
    """Returns a folder that a client names. Raises AdapterError for one that is not inside `folder` with the
    files of its adapter, links followed."""
    if "\0" in asked:
        raise InvalidRequestError("lora_path must be the path of a folder")
    try:
        root = folder.resolve()
        place = (root / asked).resolve()
        all_inside = all((place / name).resolve().is_relative_to(root) for name in (".", PEFT_CONFIG, PEFT_WEIGHTS))
        found = all_inside and place.is_dir()
    except (OSError, RuntimeError):  # a name that is too long, a folder that may not be read, a circle of links
        found = False
    if not found:
        raise AdapterError("lora_path must be a folder inside the server's --adapter-folder, and is none")
    return place


def check_adapters(engines: dict[str, ServedModel]) -> None:
    """Raises AdapterError if an adapter has the name of a model, or two models have adapters of one name."""
    seen = set(engines)
    for llm in engines.values():
        for name in llm.adapters:
            if name in seen:
                raise AdapterError(f"{name!r} must be the name of one model or one adapter, and is that of several")
            seen.add(name)

"""Answers POST /tokenize and /detokenize in vLLM's form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field, model_validator

from tensorwright.errors import PromptTooLongError
from tensorwright.runtime.base.request_bounds import TOKENS
from tensorwright.runtime.requests.prompts import MAX_TEXT, encode_whole
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.server.body_route import BodyRoute
from tensorwright.runtime.serving.server.chat import plan_of
from tensorwright.runtime.serving.server.chat_request import ChatFields, Messages, TemplateVariables, ToolList
from tensorwright.runtime.serving.server.clients import client_of
from tensorwright.runtime.serving.server.request_fields import Name, StrictModel
from tensorwright.runtime.serving.server.requests import CLIENT_CLOSED, ClientGone, unless_gone
from tensorwright.runtime.serving.server.responses import DetokenizeResponse, TokenizeResponse
from tensorwright.runtime.serving.server.text_engine import TextEngine, find_any_engine

router = APIRouter(tags=["tokens"], route_class=BodyRoute)


class TokenizeRequest(StrictModel):
    """A prompt, or the messages of a conversation, from which the chat template makes a prompt.

    model: the model's name; it may be left out where the server has one model.
    add_special_tokens: whether the tokenizer adds its special tokens to a prompt; a chat template writes its own.
    return_token_strs: whether the answer also has the tokens as the vocabulary spells them.
    """

    model: Name | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    tools: ToolList | None = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("exactly one of prompt and messages must be given")
        of_messages = (self.add_generation_prompt, self.chat_template_kwargs, self.tools)
        if self.messages is None and any(value is not None for value in of_messages):
            raise ValueError("add_generation_prompt, chat_template_kwargs and tools must come with messages")
        if self.messages is not None and self.add_special_tokens:
            raise ValueError("add_special_tokens must come with prompt: a chat template writes its own special tokens")
        return self


class DetokenizeRequest(StrictModel):
    """Token ids to detokenize. model: the model's name; it may be left out where the server has one model."""

    model: Name | None = None
    tokens: Annotated[list[int], Field(max_length=TOKENS, fail_fast=True)]


@router.post("/tokenize", response_model=TokenizeResponse)
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """Returns the token ids of a prompt for a model."""
    return await _answer(request, _tokenize, find_any_engine(request, body.model), body)


@router.post("/detokenize", response_model=DetokenizeResponse)
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """Returns the text of token ids, special tokens included."""
    return await _answer(request, _detokenize, find_any_engine(request, body.model), body)


async def _answer(request: Request, work: Callable[[TextEngine, Any], str], engine: TextEngine, body: Any) -> Response:
    """Returns the answer that `work` makes. work: makes the answer's JSON; a thread of the pool for text runs it."""
    pool = request.app.state.pools.text
    try:
        made = await unless_gone(pool.run(work, engine, body, client=client_of(request.scope)), request.receive)
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED)
    return Response(made, media_type="application/json")


def _tokenize(engine: TextEngine, body: TokenizeRequest) -> str:
    ids = _encode(engine, body)
    texts = [engine.tokenizer.spelling(token) or "" for token in ids] if body.return_token_strs else None
    size = engine.llm.engine.max_seq_len
    return TokenizeResponse(count=len(ids), max_model_len=size, tokens=ids, token_strs=texts).model_dump_json()


def _detokenize(engine: TextEngine, body: DetokenizeRequest) -> str:
    most = MAX_TEXT * engine.llm.engine.max_seq_len
    if len(body.tokens) > most:
        raise PromptTooLongError(
            f"tokens must be at most {most}, {MAX_TEXT} times the model's maximum context length, "
            f"got {len(body.tokens)}"
        )
    engine.check_ids(body.tokens)
    return DetokenizeResponse(prompt=engine.tokenizer.decode(body.tokens, False)).model_dump_json()


def _encode(engine: TextEngine, body: TokenizeRequest) -> list[int]:
    if body.prompt is not None:
        return encode_whole(body.prompt, engine.llm.engine, body.add_special_tokens is not False)
    start = True if body.add_generation_prompt is None else body.add_generation_prompt
    fields = ChatFields.model_construct(
        messages=body.messages,
        add_generation_prompt=start,
        chat_template_kwargs=body.chat_template_kwargs,
        tools=body.tools,
    )
    prompt = plan_of(engine, fields, SamplingParams()).prompt
    return encode_whole(prompt.text, engine.llm.engine, add_special_tokens=False)

"""Answers POST /v1/embeddings, /v1/score, /v1/rerank and /rerank."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Callable, Iterable, Sequence

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from tensorwright.engine_format.pooling import EMBED, RERANK
from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.base.request_bounds import EMBEDDING_NUMBERS
from tensorwright.runtime.requests.outputs import RequestOutput
from tensorwright.runtime.requests.pooled_rows import EmbeddingWish, ScoreOutput, Scoring, ranking
from tensorwright.runtime.requests.prompts import Prompt
from tensorwright.runtime.serving.server.body_route import BodyRoute
from tensorwright.runtime.serving.server.clients import client_defaults, client_of
from tensorwright.runtime.serving.server.completions import check_places
from tensorwright.runtime.serving.server.pooled_request import (
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    pooling_params,
)
from tensorwright.runtime.serving.server.rate_limits import reserve_tokens
from tensorwright.runtime.serving.server.request_fields import TurnFields
from tensorwright.runtime.serving.server.request_log import note_work
from tensorwright.runtime.serving.server.requests import CLIENT_CLOSED, ClientGone, finish_all, start_all, write_answer
from tensorwright.runtime.serving.server.responses import (
    EmbeddingResponse,
    PooledUsage,
    RankedText,
    RankedTextBody,
    RerankResponse,
    ScoredPair,
    ScoreResponse,
)
from tensorwright.runtime.serving.server.shares import hold_places
from tensorwright.runtime.serving.server.text_engine import TextEngine, find_engine

router = APIRouter(tags=["embeddings"], route_class=BodyRoute)


@router.post("/v1/embeddings", response_model=EmbeddingResponse)
async def create_embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """Returns the embedding of each text."""
    engine = find_engine(request, body.model, EMBED)
    wish = EmbeddingWish(body.prompt_name, body.dimensions, body.normalize)
    prompts = body.prompts
    numbers = len(prompts) * (body.dimensions or engine.llm.engine.config.model.hidden_size or 1)
    if numbers > EMBEDDING_NUMBERS:
        raise InvalidRequestError(
            f"the embeddings of one request must have at most {EMBEDDING_NUMBERS} numbers together, these have "
            f"{numbers}: send the texts in several requests"
        )
    try:
        outputs = await _compute(request, engine, body, len(prompts), lambda: wish.prompts(engine.llm.engine, prompts))
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED)
    pool = request.app.state.pools.answers
    text = await pool.run(_write_embeddings, engine, body, wish, outputs, client=client_of(request.scope))
    return Response(text, media_type="application/json")


@router.post("/v1/score", response_model=ScoreResponse)
async def create_scores(body: ScoreRequest, request: Request) -> Response:
    """Says how well texts fit each other."""
    engine = find_engine(request, body.model, EMBED, RERANK)
    first, second = ([text] if isinstance(text, str) else text for text in (body.text_1, body.text_2))
    scoring = Scoring(engine.llm.engine, first, second, body.instruction)
    try:
        scores = await _score(request, engine, body, scoring)
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED)
    data = [ScoredPair(index=number, score=one.score) for number, one in enumerate(scores)]
    answer = ScoreResponse(
        id=f"score-{uuid.uuid4().hex}", created=int(time.time()), model=engine.name, data=data, usage=_usage_of(scores)
    )
    return await write_answer(request, lambda: answer)


@router.post("/v1/rerank", response_model=RerankResponse)
@router.post("/rerank", response_model=RerankResponse)
async def create_ranking(body: RerankRequest, request: Request) -> Response:
    """Puts documents in the order in which they fit a query, the best one first."""
    engine = find_engine(request, body.model, RERANK, EMBED)
    texts = body.texts
    scoring = Scoring(engine.llm.engine, [body.query], texts, body.instruction)
    try:
        scores = await _score(request, engine, body, scoring)
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED)
    shown = body.return_documents is not False
    results = [
        RankedText(
            index=one.index,
            relevance_score=one.relevance_score,
            document=RankedTextBody(text=one.document) if shown else None,
        )
        for one in ranking(texts, scores, body.top_n)
    ]
    identity = f"rerank-{uuid.uuid4().hex}"
    return await write_answer(
        request,
        lambda: RerankResponse(id=identity, model=engine.name, results=results, usage=_usage_of(scores)),
    )


async def _score(request: Request, engine: TextEngine, body: TurnFields, scoring: Scoring) -> list[ScoreOutput]:
    """Returns the scores, which a thread computes of the rows. Raises ClientGone if the client leaves."""
    outputs = await _compute(request, engine, body, scoring.count, scoring.prompts)
    pool = request.app.state.pools.answers
    scores: list[ScoreOutput] = await pool.run(scoring.scores, outputs, client=client_of(request.scope))
    return scores


async def _compute(
    request: Request, engine: TextEngine, body: TurnFields, count: int, make_prompts: Callable[[], Iterable[Prompt]]
) -> list[RequestOutput]:
    """Runs `count` prompts, all at once as the engine has room. Raises ClientGone if the client leaves."""
    params = pooling_params(body, client_defaults(request, body, engine.sampling_defaults))
    check_places(engine.llm, count)
    hold_places(request, count)
    reserve_tokens(request, params, count)
    handles = await start_all(request, engine.llm, make_prompts, params)
    note_work(request, engine.name, handles)
    return await finish_all(handles, request.receive)


def _write_embeddings(
    engine: TextEngine, body: EmbeddingRequest, wish: EmbeddingWish, outputs: Sequence[RequestOutput]
) -> bytes:
    """Returns the answer as JSON, written one embedding after the other, so that no call holds the interpreter long."""
    parts = []
    for number, output in enumerate(outputs):
        row = wish.embedding(engine.llm.engine, output).embedding
        if body.encoding_format == "base64":
            written = to_json(base64.b64encode(row.astype("<f4").tobytes()).decode())
        else:
            written = to_json(row.tolist())
        parts.append(b'{"object":"embedding","index":%d,"embedding":%s}' % (number, written))
    tokens = sum(len(output.prompt_token_ids) for output in outputs)
    rest = to_json({"model": engine.name, "usage": PooledUsage(prompt_tokens=tokens, total_tokens=tokens)})
    return b'{"object":"list","data":[' + b",".join(parts) + b"]," + rest[1:]


def _usage_of(scores: Sequence[ScoreOutput]) -> PooledUsage:
    tokens = sum(one.prompt_tokens for one in scores)
    return PooledUsage(prompt_tokens=tokens, total_tokens=tokens)

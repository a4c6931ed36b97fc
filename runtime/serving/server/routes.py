"""The routers of OpenAI's API, each in its own file."""

from __future__ import annotations

from fastapi import APIRouter

from tensorwright.runtime.serving.server import chat, completions, models, tokenization


def routers() -> list[APIRouter]:
    return [completions.router, chat.router, models.router, tokenization.router]

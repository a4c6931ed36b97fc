"""Python imports this by itself where the folder is on its path. It gives a server faults, which a request asks for by
the header x-planted: so a test of hostile clients shows that it would see them."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

KEPT: list[object] = []


def sleep() -> None:
    time.sleep(2.5)  # in the event loop


def memory() -> None:
    KEPT.append(b"a" * (100 << 20))


def thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def descriptor() -> None:
    os.open(os.devnull, os.O_RDONLY)


def fault() -> None:
    raise RuntimeError("planted")


def end() -> None:
    os._exit(9)


FAULTS = {
    b"sleep": sleep, b"memory": memory, b"thread": thread, b"descriptor": descriptor, b"fault": fault, b"exit": end,
}  # fmt: skip


class Planted:
    def __init__(self, app: Any):
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        asked = dict(scope.get("headers", ())).get(b"x-planted")
        if asked is not None:
            FAULTS[asked]()
        await self._app(scope, receive, send)


def plant() -> None:
    from tensorwright.runtime.serving.server import app as module

    create = module.create_app

    def create_app(*arguments: Any, **keywords: Any) -> Any:
        app = create(*arguments, **keywords)
        first = app.user_middleware
        app.add_middleware(Planted)
        first.append(first.pop(0))  # the innermost: what stands outside of it must hold all the same
        return app

    module.create_app = create_app


if "serve" in getattr(sys, "orig_argv", ()):
    plant()

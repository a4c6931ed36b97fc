"""Hands each request to an engine that prefills, if that helps, and then to one that decodes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx

from tensorwright.errors import InvalidOptionError
from tensorwright.options.declare import check_values
from tensorwright.options.transfer import RouterFields
from tensorwright.runtime.base.keywords import StrictKeywords
from tensorwright.runtime.routing.decode_choice import DecodeChoice
from tensorwright.runtime.routing.prefix_choice import PrefixChoice
from tensorwright.runtime.routing.reachable import Reachable
from tensorwright.runtime.serving.router.prompt_text import PromptText
from tensorwright.runtime.serving.router.upstream import Unreachable, Upstream, check_url
from tensorwright.runtime.serving.server.handover import MAX_TICKETS, PREFIX, Handover
from tensorwright.runtime.transfer.handshake import router_proof

logger = logging.getLogger("tensorwright.router")


@dataclass(frozen=True)
class RouterOptions(StrictKeywords, RouterFields):
    """The checked fields of RouterFields. token: the secret that transfer_token_file holds; None without a file."""

    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_values(self, RouterFields)
        if not self.decode:
            raise InvalidOptionError("a router needs at least one engine that decodes: give --decode URL")
        if self.prefill and self.token is None:
            raise InvalidOptionError("--prefill needs --transfer-token-file, which the engines know too")
        for name in ("prefill", "decode"):
            urls = [check_url(url, f"--{name}") for url in getattr(self, name)]
            if len(set(urls)) != len(urls):
                raise InvalidOptionError(f"--{name} must name each engine once, got {', '.join(urls)}")
            object.__setattr__(self, name, tuple(urls))


@dataclass
class RouteCounts:
    """What a router has done.

    prefilled: prompts that were computed elsewhere. prefill_failed: those that could not be. moved: requests that went
    to another decode engine because the first could not be reached.
    """

    prefilled: int = 0
    prefill_failed: int = 0
    moved: int = 0

    def metrics(self) -> dict[str, tuple[str, int]]:
        return {
            "tensorwright_router_prefilled_total": ("Requests whose prompt another engine computed.", self.prefilled),
            "tensorwright_router_prefill_failed_total": ("Prefills that failed.", self.prefill_failed),
            "tensorwright_router_moved_total": ("Requests that went to another engine.", self.moved),
        }


class Routes:
    """The engines behind a router, and which of them gets what. It belongs to one event loop."""

    def __init__(self, options: RouterOptions, upstream: Upstream):
        self.options = options
        self.counts = RouteCounts()
        self._upstream = upstream
        self._proof = "" if options.token is None else router_proof(options.token)
        self._prefills = PrefixChoice(options.prefill)
        self._decodes = DecodeChoice(options.decode)
        self._prefill_reach = Reachable(options.prefill, options.retry_after_failure)
        self._decode_reach = Reachable(options.decode, options.retry_after_failure)

    def ready(self) -> bool:
        """Whether an engine that decodes could be reached lately."""
        return bool(self._decode_reach.now())

    async def prefill(self, path: str, headers: Mapping[str, str], body: bytes, prompt: PromptText) -> Handover | None:
        """Has the prompt of a body computed. Returns where its prefix is; None if no engine could, or if it helps
        nobody."""
        reachable = self._prefill_reach.now()
        if not reachable or not prompt.helps or prompt.length < self.options.min_prefill_bytes:
            return None
        name = self._prefills.choose(prompt.keys, prompt.length, reachable)
        work = self._prefills.begin(name, prompt.keys, prompt.length)
        try:
            handover = await self._upstream.prefill(name, path, headers, body, self._proof)
        except Unreachable as error:
            self.counts.prefill_failed += 1
            self._prefill_reach.failed(name)
            self._prefills.forget(name)
            logger.warning("a prompt is computed where it is answered: %s", error, extra={"facts": {"engine": name}})
            return None
        finally:
            self._prefills.end(name, work)
        self._prefill_reach.answered(name)
        if handover is None or len(handover.tickets) > MAX_TICKETS:
            return None
        self.counts.prefilled += 1
        return handover

    async def open(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, handover: Handover | None = None
    ) -> tuple[httpx.Response, Callable[[], None]]:
        """Returns the answer of an engine that decodes, when its head has come, and what to call when it is over. An
        engine that cannot be reached is passed over. Raises Unreachable if none can be reached."""
        own = {} if handover is None else {PREFIX: handover.header(self._proof)}
        left = self._decode_reach.now() or list(self.options.decode)  # if all failed lately, all are tried
        last = Unreachable("there is no engine")
        while left:
            name = self._decodes.choose(left)
            left.remove(name)
            self._decodes.begin(name)
            try:
                answer = await self._upstream.open(method, name, path, headers, body, own)
            except Unreachable as error:
                self._decodes.end(name)
                self._decode_reach.failed(name)
                self.counts.moved += bool(left)
                logger.warning("an engine cannot be reached: %s", error, extra={"facts": {"engine": name}})
                last = error
            except asyncio.CancelledError:
                self._decodes.end(name)
                raise
            else:
                self._decode_reach.answered(name)
                return answer, lambda name=name: self._decodes.end(name)  # type: ignore[misc]
        raise last

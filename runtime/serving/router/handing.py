"""Hands each request to an engine that prefills, if that helps, and then to one that decodes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
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
from tensorwright.runtime.serving.router.upstream import Asked, Unreachable, Upstream, check_url
from tensorwright.runtime.serving.server.handover import MAX_TICKETS, PLACE, PREFIX, Handover, place_in, place_of
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
        self._places = {place_of(name): name for name in options.decode}

    def ready(self) -> bool:
        """Whether an engine that decodes could be reached lately."""
        return bool(self._decode_reach.now())

    def holder(self, response: str) -> str | None:
        """Returns the engine that stored a response; None if no engine here did, so that any can say so."""
        place = place_in(response)
        return None if place is None else self._places.get(place)

    async def prefill(self, asked: Asked, prompt: PromptText) -> Handover | None:
        """Has the prompt of a request computed. Returns where its prefix is; None if no engine could, or if it helps
        nobody."""
        reachable = self._prefill_reach.now()
        if not reachable or not prompt.helps or prompt.length < self.options.min_prefill_bytes:
            return None
        name = self._prefills.choose(prompt.keys, prompt.length, reachable)
        work = self._prefills.begin(name, prompt.keys, prompt.length)
        try:
            handover = await self._upstream.prefill(name, asked, self._proof)
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
        self, asked: Asked, handover: Handover | None = None, holder: str | None = None
    ) -> tuple[httpx.Response, Callable[[], None]]:
        """Returns the answer of an engine that decodes, when its head has come, and what to call when it is over. An
        engine that cannot be reached is passed over. Raises Unreachable if none can be reached.

        holder: the only engine that can answer; None means any.
        """
        own = {} if handover is None else {PREFIX: handover.header(self._proof)}
        left = self._decode_reach.now() or list(self.options.decode)  # if all failed lately, all are tried
        left = left if holder is None else [holder]
        last = Unreachable("there is no engine")
        while left:
            name = self._decodes.choose(left)
            left.remove(name)
            self._decodes.begin(name)
            try:
                answer = await self._upstream.open(name, asked, {**own, PLACE: place_of(name)})
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

    async def ask_all(self, asked: Asked, prefills_too: bool) -> httpx.Response:
        """Has every engine do what is asked. Returns the answer, which is closed, of the first that refused, or of the
        first if all did it. Raises Unreachable if one could not be asked; others may have done it then.

        prefills_too: whether engines that prefill have the endpoint.
        """
        names = (*self.options.decode, *(self.options.prefill if prefills_too else ()))
        answers = await asyncio.gather(*(self._upstream.ask(name, asked) for name in names), return_exceptions=True)
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, BaseException):
                logger.warning("an engine did not answer: %s", answer, extra={"facts": {"engine": name}})
                raise answer
        done = [answer for answer in answers if isinstance(answer, httpx.Response)]
        return next((answer for answer in done if answer.status_code >= 400), done[0])

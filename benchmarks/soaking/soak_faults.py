"""What is done to a server while it answers: crowded, held still, disk damaged or full, adapters taken away and given
back."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx
from soak_client import PATIENCE
from soak_jobs import ADAPTERS, KEYS
from soak_server import Life

FULL_SECONDS = 3.0
CROWD = 8
"""Requests that come at once and grow, in `crowd`."""
MOST_HOLDS = 5
"""How often a process is held still for one engine that is replaced."""
STEP_LIMIT = 4.0
"""The --step-limit of the life whose engine is replaced: the process is held still for longer."""


class Faults:
    """Injects faults into the present life. disk: the folder of the tier. counts: what was done, by name."""

    def __init__(self, seed: int, disk: Path):
        self._rng, self._disk = random.Random(seed), disk
        self.counts: Counter[str] = Counter()
        self._loaded = set(ADAPTERS)
        self._posted = 0

    def of_life(self, adapters: bool) -> list[Callable[[Life], Awaitable[None]]]:
        """Returns the faults of one life, in the order in which they come, evenly over its jobs."""
        disk = [self.truncate, self.corrupt, self.remove]
        if adapters:
            swaps = [self.swap_adapter] * 6
            return [
                *swaps[:2], self.crowd, self.hold, *disk, *swaps[2:4], self.fill_disk, *disk, *swaps[4:], self.hold,
            ]  # fmt: skip
        return [*disk, self.hold_beyond_the_limit, *disk, self.fill_disk, self.hold, *disk, self.hold_beyond_the_limit]

    async def crowd(self, life: Life) -> None:
        """Long requests come at once, again and again until one had to give its blocks to others: whether the jobs
        themselves bring that about depends on how fast they come."""
        self.counts["crowded"] += 1
        body = {"max_tokens": 160, "ignore_eos": True, "temperature": 0, "priority": 1}
        async with asyncio.timeout(PATIENCE):
            while not await self._preempted(life):
                prompts = [[self._rng.randrange(100, 8000) for _ in range(160)] for _ in range(CROWD)]
                sent = [self._post(life, "/v1/completions", {**body, "prompt": prompt}) for prompt in prompts]
                for response in await asyncio.gather(*sent):
                    if response.status_code not in (200, 429):
                        raise RuntimeError(f"a crowd must be served or limited, got {response.status_code}")

    async def _preempted(self, life: Life) -> bool:
        metrics = await asyncio.to_thread(life.metrics)
        return bool(metrics.get("tensorwright_preemptions_total"))

    async def hold(self, life: Life) -> None:
        self.counts["held still for 1 s"] += 1
        await asyncio.to_thread(life.stop_for, 1.0)

    async def hold_beyond_the_limit(self, life: Life) -> None:
        """The watchdog acts. Where the step is done before the watchdog looks, it does not, and the process is held
        still again."""
        before = life.log.replaced
        for _ in range(MOST_HOLDS):
            if await self._hold_in_a_step(life) == 503 or life.log.replaced > before:
                return

    async def _hold_in_a_step(self, life: Life) -> int:
        """Holds the process still while a long request of its own is under way, for an engine without requests hangs in
        nothing. Returns the status of that request, which ends with the engine, or before."""
        self.counts[f"held still for {STEP_LIMIT + 2:g} s"] += 1
        body = {"prompt": [7] * 20, "max_tokens": 600, "ignore_eos": True, "temperature": 0}
        asking = asyncio.create_task(self._post(life, "/v1/completions", body))
        while not asking.done() and not (await asyncio.to_thread(life.metrics))["tensorwright_requests_running"]:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(life.stop_for, STEP_LIMIT + 2)
        response = await asking
        if response.status_code not in (200, 429, 503):
            raise RuntimeError(f"a request must end with its engine, got {response.status_code}: {response.text}")
        return response.status_code

    async def _post(self, life: Life, path: str, body: dict[str, object]) -> httpx.Response:
        self._posted += 1
        headers = {
            "authorization": f"Bearer {KEYS[0].split()[0]}",
            "x-request-id": f"soak-fault-{self._posted}-{path.rsplit('/', 1)[1]}",
        }
        async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client:
            return await client.post(f"http://127.0.0.1:{life.port}{path}", json=body, headers=headers)

    async def fill_disk(self, life: Life) -> None:
        self.counts["disk full"] += 1
        with life.full_disk():
            await asyncio.sleep(FULL_SECONDS)

    def _file(self) -> Path | None:
        files = sorted(path for path in self._disk.glob("*/*") if _size(path) > 4096)
        return self._rng.choice(files) if files else None

    async def truncate(self, life: Life) -> None:
        if (path := self._file()) is not None:
            with suppress(FileNotFoundError):  # The tier may have removed it by now.
                size = path.stat().st_size
                with path.open("r+b") as file:
                    file.truncate(self._rng.randrange(size))
                self.counts["file cut off"] += 1

    async def corrupt(self, life: Life) -> None:
        if (path := self._file()) is not None:
            with suppress(FileNotFoundError), path.open("r+b") as file:
                for _ in range(16):
                    file.seek(self._rng.randrange(path.stat().st_size))
                    file.write(bytes([self._rng.randrange(256)]))
                self.counts["file damaged"] += 1

    async def remove(self, life: Life) -> None:
        if (path := self._file()) is not None:
            path.unlink(missing_ok=True)
            self.counts["file removed"] += 1

    async def swap_adapter(self, life: Life) -> None:
        """Unloads an adapter that is loaded, or loads one that is not. What is under way goes on."""
        name = self._rng.choice(ADAPTERS)
        loaded = name in self._loaded
        body = {"lora_name": name} if loaded else {"lora_name": name, "lora_path": name}
        path = "/v1/unload_lora_adapter" if loaded else "/v1/load_lora_adapter"
        response = await self._post(life, path, body)
        if response.status_code != 200:
            raise RuntimeError(f"{path} must answer 200 for {name}, got {response.status_code}: {response.text}")
        (self._loaded.discard if loaded else self._loaded.add)(name)
        self.counts["adapter unloaded" if loaded else "adapter loaded"] += 1


def _size(path: Path) -> int:
    """Returns the bytes of a file of the tier; 0 for one that is gone, and for a folder."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0

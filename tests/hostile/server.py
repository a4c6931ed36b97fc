"""The server that attacks are run against: a real process, on an engine of pico."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

from hostile.attacks import Attack
from hostile.clients import Target
from support.served import Served, serve

KEYS = ("attacker-key", "honest-key")
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
MEMORY = 6 << 30  # bytes of address space, so that an attack takes down the server and not the machine


@contextlib.contextmanager
def attacked(
    engine: Path, folder: Path, *options: str, keys: bool = True, files: int | None = None
) -> Iterator[tuple[Served, Target]]:
    """A server with quiet probes and a chat template; threads and memory are `support.served`'s."""
    template = folder / "chat.jinja"
    template.write_text(TEMPLATE)
    key_file = folder / "keys"
    key_file.write_text("".join(f"{key} pinned_prefixes=2 cache_events=tokens\n" for key in KEYS))
    key_file.chmod(0o600)
    own = ["--pinned-prefix-memory", "256KiB", "--cache-events", "1000"]
    named = ["--api-key-file", str(key_file), *own] if keys else []
    given = ("--chat-template", str(template), "--quiet-probes", *named, *options)
    with serve(engine, folder, *given, files=files) as served:
        resource.prlimit(served.process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
        yield served, Target(*served.address, KEYS if keys else None)


@contextlib.contextmanager
def attacked_by(attack: Attack, engine: Path, folder: Path) -> Iterator[tuple[Served, Target]]:
    """A server as one attack needs it."""
    with attacked(engine, folder, *attack.options, keys=attack.keys, files=attack.files) as pair:
        yield pair

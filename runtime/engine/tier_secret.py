"""Keeps the secret that the names of stored blocks are made with, so that they are the same after a restart.

Whoever lacks the secret cannot foresee a block's name, and so neither make two contents meet under one name, nor learn
from the names of the files what was asked.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from tensorwright.errors import InvalidOptionError, reason

SECRET_BYTES = 32
"""The bytes of a secret. runtime/core/cache/secret_hash.h has the same number."""
SECRET_FILE = "secret"


def read_secret(directory: str) -> bytes:
    """Returns the secret of a directory of blocks, and makes directory and secret if they are missing.

    directory: "" returns a new secret that is kept nowhere. Only the user of this process can read the file. Raises
    InvalidOptionError for a directory that cannot be used, and for a file that is no secret.
    """
    if not directory:
        return secrets.token_bytes(SECRET_BYTES)
    path = Path(directory) / SECRET_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _make(path)
        found = path.read_bytes()
    except OSError as error:
        raise InvalidOptionError(
            f"prefix_cache_disk={directory}: {path} cannot be read or made ({reason(error)}); name a directory of your "
            "own"
        ) from error
    if len(found) != SECRET_BYTES:
        raise InvalidOptionError(
            f"prefix_cache_disk={directory}: {path} must have {SECRET_BYTES} bytes, has {len(found)}; remove it, and "
            "what is in the directory is computed again"
        )
    return found


def pin_file(disk: str, secret: bytes, identity: str) -> Path | None:
    """Returns the file of an engine's pinned prefixes. disk: the directory of its prefix cache; "" returns None.
    secret: of the directory. identity: says which engine it is."""
    if not disk:
        return None
    name = hmac.new(secret, f"pins of {identity}".encode(), hashlib.sha256).hexdigest()[:32]
    return Path(disk) / f"pins-{name}.json"


def _make(path: Path) -> None:
    """Writes a new secret. If another process makes one at the same time, the first stays."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
        with suppress(FileExistsError):
            os.link(part, path)
    finally:
        part.unlink()

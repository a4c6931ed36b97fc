"""`tensorwright serve`: engines behind OpenAI's API. Everything that can be wrong is found before an engine is loaded,
and the server's packages are imported only when they are there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from tensorwright.errors import InvalidOptionError, MissingDependencyError
from tensorwright.installing import install
from tensorwright.runtime.memory import parse_size
from tensorwright.runtime.serve_options import APP_OPTIONS, ENGINE_OPTIONS, NETWORK_OPTIONS, take

PACKAGES = ("fastapi", "uvicorn", "prometheus_client")


def require_serve_extra() -> None:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f"serving needs {', '.join(missing)}, which is not installed: {install('serve')}")


def serve_engines(engines: tuple[str, ...], api_key_file: str | None, log_level: str, options: dict[str, Any]) -> None:
    """Serves until a signal. engines: PATH or NAME=PATH. options: those of serve_options.py."""
    require_serve_extra()
    from tensorwright.runtime.server.listen import Listen
    from tensorwright.runtime.server.options import ServerOptions
    from tensorwright.runtime.server.request_log import set_up_logging

    app_options = take(options, APP_OPTIONS)
    app_options["max_body_size"] = parse_size(app_options["max_body_size"], "--max-body-size")
    app_options["api_keys"] += read_keys(api_key_file)
    told = ServerOptions(**app_options)
    listen = Listen(**take(options, NETWORK_OPTIONS))
    listen.check_tls()
    places = name_engines(engines)
    with listen.bind() as bound, ExitStack() as running:
        set_up_logging(log_level)
        with _terminate_as_interrupt():
            loaded = _load(places, take(options, ENGINE_OPTIONS), running)
        _run(loaded, told, listen, bound)


def _run(loaded: dict[str, Any], told: Any, listen: Any, bound: Any) -> None:
    from prometheus_client import disable_created_metrics

    from tensorwright.runtime.server.app import create_app
    from tensorwright.runtime.server.process import serve

    def announce() -> None:
        click.echo(f"serving {', '.join(loaded)} at {listen.url(bound)}")

    disable_created_metrics()  # a second gauge for each counter, which nobody reads
    serve(create_app(loaded, told), listen, bound, announce)


def _load(places: dict[str, Path], options: dict[str, Any], running: ExitStack) -> dict[str, Any]:
    from tensorwright.runtime.llm import LLM
    from tensorwright.runtime.model_cache import BuildChoices
    from tensorwright.runtime.run_command import tell_of_build

    for path in places.values():
        tell_of_build(path, BuildChoices(**{name: options[name] for name in ("dtype", "quantize", "kv_cache_dtype")}))
    return {name: running.enter_context(LLM(path, **options)) for name, path in places.items()}


def name_engines(engines: Iterable[str]) -> dict[str, Path]:
    """Name -> place. "NAME=PATH", or a path, whose last part is the name."""
    places: dict[str, Path] = {}
    for text in engines:
        name, equals, path = text.partition("=")
        if not equals or "/" in name:  # a path may hold an "=", a name no "/"
            name, path = "", text
        place = Path(os.path.expanduser(path))
        name = name or os.path.basename(os.path.realpath(place))
        if not path.strip() or not name.strip() or not name.isprintable():
            raise InvalidOptionError(f"an engine must be PATH or NAME=PATH, got {text!r}")
        if name in places:
            raise InvalidOptionError(f"{places[name]} and {place} would both be called {name!r}: write NAME=PATH")
        places[name] = place
    return places


def read_keys(file: str | None) -> tuple[str, ...]:
    """One key per line; empty lines and those that begin with "#" do not count."""
    if file is None:
        return ()
    from tensorwright.runtime.server.options import check_key

    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InvalidOptionError(f"--api-key-file must be a readable text file: {error}") from error
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise InvalidOptionError(f"--api-key-file {file} must hold at least one key: with none everybody could enter")
    for number, key in enumerate(keys, start=1):
        check_key(key, f"--api-key-file {file}, key {number}")
    return keys


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """While engines load, a polite kill ends as Ctrl-C does: with what was opened closed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

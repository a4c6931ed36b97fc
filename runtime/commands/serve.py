"""Runs `tensorwright serve`, which serves engines behind OpenAI's API.

All options are checked before an engine is loaded. The server's packages are imported only after a check that they are
installed.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorwright.click_options import take
from tensorwright.engine_format.engine_config import is_engine
from tensorwright.engine_format.file_names import TOKENIZER
from tensorwright.errors import InvalidOptionError, MissingDependencyError, reason
from tensorwright.installing import install
from tensorwright.options.build_choices import BuildChoices
from tensorwright.options.by_engine import by_engine
from tensorwright.options.declare import Door, Size, find, options_at
from tensorwright.options.engine import EngineFields
from tensorwright.options.ray import RayFields
from tensorwright.options.server import NetworkFields, ServerFields
from tensorwright.options.transfer import TransferFields
from tensorwright.sizes import parse_size

if TYPE_CHECKING:
    from tensorwright.runtime.api.llm import LLM
    from tensorwright.runtime.serving.ray.fleet import Fleet
    from tensorwright.runtime.serving.ray.settings import RaySettings
    from tensorwright.runtime.serving.server.listen import Listen
    from tensorwright.runtime.serving.server.options import ServerOptions
    from tensorwright.runtime.serving.server.served_model import ServedModel
    from tensorwright.runtime.serving.server.transfers import Transfers

logger = logging.getLogger("tensorwright.server")
PARSERS = ("tool_parser", "reasoning_parser")
"""The options that each engine may have of its own."""
PACKAGES = ("fastapi", "uvicorn", "httptools", "prometheus_client")


def require_serve_extra() -> None:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f"serving needs {', '.join(missing)}, which is not installed: {install('serve')}")


def require_ray_extra() -> None:
    if find_spec("ray") is None:
        raise MissingDependencyError(f"--ray needs ray, which is not installed: {install('serve', 'ray')}")


def serve_engines(
    engines: tuple[str, ...],
    api_key_file: str | None,
    allow_no_tokenizer: bool,
    log_level: str,
    options: dict[str, Any],
) -> None:
    """Serves until a signal comes. engines: texts PATH or NAME=PATH. options: the values of the command's declared
    options."""
    require_serve_extra()
    from tensorwright.runtime.serving.ray.settings import RaySettings
    from tensorwright.runtime.serving.server.listen import Listen
    from tensorwright.runtime.serving.server.options import ServerOptions
    from tensorwright.runtime.serving.server.request_log import set_up_logging
    from tensorwright.runtime.serving.server.tracing import require_otel
    from tensorwright.runtime.serving.server.transfers import TransferOptions, Transfers

    settings = RaySettings(**take(options, Door.SERVE, RayFields))
    settings.require_unused()
    if settings.ray:
        require_ray_extra()
    app_options = take(options, Door.SERVE, ServerFields)
    for option in options_at(Door.SERVE, ServerFields):
        if option.kind is Size and app_options[option.name] is not None:
            app_options[option.name] = parse_size(app_options[option.name], option.shown(Door.SERVE).flag)
    app_options["api_keys"] += read_keys(api_key_file)
    server_options = ServerOptions(**app_options)
    if server_options.otel:
        require_otel()
    asked = take(options, Door.SERVE, TransferFields)
    transfer_options = TransferOptions(**asked, token=read_token(asked["transfer_token_file"]))
    if transfer_options.token is not None and (options.get("adapters") or server_options.adapter_folder is not None):
        raise InvalidOptionError(
            "--adapter and --adapter-folder must come without --transfer-token-file: prefixes of adapters are not "
            "exchanged"
        )
    if server_options.adapter_folder is not None:
        if not os.path.isdir(server_options.adapter_folder):
            raise InvalidOptionError(f"--adapter-folder must be a folder, {server_options.adapter_folder!r} is none")
        if not options.get("adapters") and not options.get("max_loras"):
            raise InvalidOptionError("--adapter-folder needs --max-loras, for without it there is no room for adapters")
    if settings.ray and transfer_options.token is not None:
        raise InvalidOptionError("--transfer-token-file must come without --ray, whose replicas exchange no prefixes")
    listen = Listen(**take(options, Door.SERVE, NetworkFields))
    listen.check_tls()
    places = name_engines(engines)
    _read_template(options)
    for name in PARSERS:
        options[name] = by_engine(options[name], places, find(EngineFields, name))
    if not allow_no_tokenizer:
        for name, path in places.items():
            if is_engine(path) and not os.path.exists(path / TOKENIZER):
                raise _no_tokenizer(name, path)
    with listen.bind() as bound, ExitStack() as running:
        set_up_logging(log_level)
        listen = listen.check_files()
        if not listen.local and not server_options.api_keys:
            logger.warning(
                "everybody who reaches this address is served: no key is set", extra={"facts": {"host": listen.host}}
            )
        loaded: Mapping[str, ServedModel]
        reload: Callable[[], None] | None = None
        transfers: Transfers | None = None
        with _terminate_as_interrupt():
            if settings.ray:
                fleet = _start_fleet(places, options, settings, server_options, listen, running)
                loaded, reload = fleet.models, fleet.reload
            else:
                engines_here = _load(places, options, running)
                loaded = engines_here
                if transfer_options.token is not None:
                    transfers = Transfers(engines_here, transfer_options, listen.host)
                    running.callback(transfers.close)
            for name, llm in loaded.items():
                if llm.engine.tokenizer is None and not allow_no_tokenizer:  # It was just built.
                    raise _no_tokenizer(name, places[name])
        note_defaults(loaded)
        _run(loaded, server_options, transfers, listen, bound, reload)


def _run(
    loaded: Mapping[str, ServedModel],
    server_options: ServerOptions,
    transfers: Transfers | None,
    listen: Listen,
    bound: socket.socket,
    reload: Callable[[], None] | None,
) -> None:
    # Texts are tokenized in the server's own pools, whose bounds would not hold for the library's threads.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from prometheus_client import disable_created_metrics

    from tensorwright.runtime.serving.server.app import create_app
    from tensorwright.runtime.serving.server.process import serve

    def announce() -> None:
        click.echo(f"serving {', '.join(loaded)} at {listen.url(bound)}")

    disable_created_metrics()  # Otherwise each counter has a second gauge, which nobody reads.
    serve(create_app(loaded, server_options, local=listen.local, transfers=transfers), listen, bound, announce, reload)


def _start_fleet(
    places: dict[str, Path],
    options: dict[str, Any],
    settings: RaySettings,
    server_options: ServerOptions,
    listen: Listen,
    running: ExitStack,
) -> Fleet:
    """Starts the replicas of every engine. options: all keywords of LLM, and the options of the build, which must be at
    their defaults: every machine needs the finished engine."""
    from tensorwright.runtime.serving.ray.fleet import running_fleet

    for path in places.values():
        if not is_engine(path):
            raise InvalidOptionError(
                f"{path} is no engine: with --ray every machine reads it, so build it first, with build-engine"
            )
    if options.get("trace") is not None:
        raise InvalidOptionError("--trace is for an engine in this process; leave it out with --ray")
    if options.get("prefix_cache_disk") is not None:
        raise InvalidOptionError(
            "--prefix-cache-disk is for an engine in this process, as replicas of one machine would share the "
            "directory; leave it out with --ray"
        )
    for name, flag in (("pinned_prefix_memory", "--pinned-prefix-memory"), ("cache_events", "--cache-events")):
        if options.get(name) is not None:
            raise InvalidOptionError(f"{flag} is for an engine in this process; leave it out with --ray")
    if options.pop("adapters") or options.get("max_loras"):
        raise InvalidOptionError("--adapter is for an engine in this process; leave it out with --ray")
    take(options, Door.SERVE, BuildChoices)
    options.pop("revision")
    return running.enter_context(
        running_fleet(places, options, settings, listen.drain_timeout, server_options.max_stall_seconds)
    )


def _load(places: dict[str, Path], options: dict[str, Any], running: ExitStack) -> dict[str, LLM]:
    """Loads every engine, and builds it first if it is a model directory. options: all keywords of LLM, and the options
    of the build."""
    from tensorwright.runtime.api.llm import LLM
    from tensorwright.runtime.api.open_model import find_model
    from tensorwright.runtime.commands.first_use import tell_of_build

    choices = BuildChoices(**take(options, Door.SERVE, BuildChoices))
    if options.get("adapters") and len(places) > 1:
        raise InvalidOptionError(f"--adapter is for one engine, and {len(places)} are to be served; give one")
    if options.get("trace") is not None and len(places) > 1:
        raise InvalidOptionError(f"--trace is for one engine, and {len(places)} are to be served; give one")
    revision = options.pop("revision")
    places = {name: find_model(path, revision) for name, path in places.items()}
    for path in places.values():
        tell_of_build(path, choices)
    loaded = {}
    for name, path in places.items():
        parsers = {option: options[option][name] for option in PARSERS}
        loaded[name] = running.enter_context(LLM(path, **{**options, **parsers, **vars(choices)}))
    return loaded


def _read_template(options: dict[str, Any]) -> None:
    """Replaces the name of the chat template's file in `options` by the template's text."""
    if options["chat_template"] is not None:
        from tensorwright.runtime.text.chat_template import read_argument  # imports Jinja

        options["chat_template"] = read_argument(options["chat_template"], "--chat-template")


def _no_tokenizer(name: str, path: Path) -> InvalidOptionError:
    return InvalidOptionError(
        f"{name}: {path} has no tokenizer, so every request to it would be refused, for all are text: build it from a "
        "checkpoint with one (a build without says why on standard error), or say --allow-no-tokenizer"
    )


def note_defaults(engines: Mapping[str, ServedModel]) -> None:
    """Logs one line for each model with sampling defaults of its own, which could otherwise surprise."""
    for name, llm in engines.items():
        if llm.sampling_defaults:
            facts = {"model": name, "sampling_defaults": llm.sampling_defaults}
            logger.info("sampling defaults of generation_config.json", extra={"facts": facts})


def name_engines(engines: Iterable[str]) -> dict[str, Path]:
    """Returns the path of each engine by name. engines: texts "NAME=PATH" or "PATH", whose last part is then the name.
    Raises InvalidOptionError if a name is missing or not unique."""
    places: dict[str, Path] = {}
    given: set[str] = set()  # the names that the user gave
    for text in engines:
        own, equals, path = text.partition("=")
        if not equals or "/" in own:  # A path may hold an "=", but a name holds no "/".
            own, path = "", text
        place = Path(os.path.expanduser(path))
        name = own or os.path.basename(os.path.realpath(place))
        if not path.strip() or not name.strip() or not name.isprintable():
            raise InvalidOptionError(f"an engine must be PATH or NAME=PATH, got {text!r}")
        if name in places and own and name in given:
            raise InvalidOptionError(
                f"{name!r} is given to two engines, {places[name]} and {place}: give each a name of its own"
            )
        if name in places:
            raise InvalidOptionError(
                f"{places[name]} and {place} would both be called {name!r}: write NAME=PATH with another name for one "
                "of them"
            )
        places[name] = place
        given |= {own}
    return places


def read_keys(file: str | None) -> tuple[str, ...]:
    """Reads a file with one key per line, each as --api-key takes it. Empty lines and lines that begin with "#" do not
    count. Raises InvalidOptionError for a file that cannot be read or has no key."""
    if file is None:
        return ()
    from tensorwright.runtime.serving.server.api_keys import parse_key

    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InvalidOptionError(f"--api-key-file must be a readable text file: {reason(error)}") from error
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise InvalidOptionError(f"--api-key-file {file} must hold at least one key: with none everybody could enter")
    for number, key in enumerate(keys, start=1):
        parse_key(key, f"--api-key-file {file}, key {number}")
    return keys


def read_token(file: str | None) -> str | None:
    """Returns the first line of a file, the secret that engines and router share; None for None. Raises
    InvalidOptionError for a file that cannot be read."""
    if file is None:
        return None
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InvalidOptionError(f"--transfer-token-file must be a readable text file: {reason(error)}") from error
    return lines[0].strip() if lines else ""


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Makes SIGTERM raise KeyboardInterrupt, as Ctrl-C does, so that open engines are closed when loading is ended."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

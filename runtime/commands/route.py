"""Runs `tensorwright route`, a router before engines that prefill and engines that decode."""

from __future__ import annotations

import logging
from typing import Any

import click

from tensorwright.click_options import take
from tensorwright.options.declare import Door, Size, options_at
from tensorwright.options.server import NetworkFields, ServerFields
from tensorwright.options.transfer import RouterFields
from tensorwright.runtime.commands.serve import read_token, require_serve_extra
from tensorwright.sizes import parse_size

logger = logging.getLogger("tensorwright.router")


def route_requests(log_level: str, options: dict[str, Any]) -> None:
    """Routes until a signal comes. options: the values of the command's declared options."""
    require_serve_extra()
    from tensorwright.runtime.serving.router.handing import RouterOptions
    from tensorwright.runtime.serving.server.listen import Listen
    from tensorwright.runtime.serving.server.options import ServerOptions
    from tensorwright.runtime.serving.server.request_log import set_up_logging

    asked = take(options, Door.ROUTE, RouterFields)
    router_options = RouterOptions(**asked, token=read_token(asked["transfer_token_file"]))
    app_options = take(options, Door.ROUTE, ServerFields)
    for option in options_at(Door.ROUTE, ServerFields):
        if option.kind is Size and app_options[option.name] is not None:
            app_options[option.name] = parse_size(app_options[option.name], option.shown(Door.ROUTE).flag)
    server_options = ServerOptions(**app_options)
    listen = Listen(**take(options, Door.ROUTE, NetworkFields))
    listen.check_tls()
    with listen.bind() as bound:
        set_up_logging(log_level)
        listen = listen.check_files()
        from prometheus_client import disable_created_metrics

        from tensorwright.runtime.serving.router.app import create_router_app
        from tensorwright.runtime.serving.server.process import serve

        disable_created_metrics()  # Otherwise each counter has a second gauge, which nobody reads.
        app = create_router_app(router_options, server_options, listen.local, listen.max_connections)
        names = f"{len(router_options.prefill)} that prefill and {len(router_options.decode)} that decode"
        serve(app, listen, bound, lambda: click.echo(f"routing to {names} at {listen.url(bound)}"))

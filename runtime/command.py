"""How the commands end: one form of error, one table of exit codes, and with --json an object on stdout as well.

0 done   1 it failed while at work   2 wrong input: refused, nothing was begun   130 interrupted
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from tensorwright.errors import TensorwrightError, TensorwrightWarning

EXIT_FAILED = 1
EXIT_WRONG_INPUT = 2
EXIT_INTERRUPTED = 130  # as a shell reports a process that SIGINT ended
_PYTHONS = warnings.showwarning


def run_command(command: click.Command, arguments: Sequence[str] | None, name: str) -> NoReturn:
    """Runs a click command (of sys.argv if arguments is None) and ends the process with its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    warnings.showwarning = _show_warning
    try:
        sys.exit(command.main(args=list(arguments), prog_name=name, standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as help_text:
        click.echo(help_text.format_message(), err=True)
        sys.exit(EXIT_WRONG_INPUT)
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would fail again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except (KeyboardInterrupt, click.Abort) as error:  # click makes the one of the other
        _fail(arguments, "KeyboardInterrupt", str(error.__cause__ or error) or "interrupted", EXIT_INTERRUPTED)
    except click.ClickException as error:
        _fail(arguments, "UsageError", _usage(error, name), EXIT_WRONG_INPUT)
    except TensorwrightError as error:
        _fail(arguments, type(error).__name__, str(error), error.exit_code)
    except OSError as error:
        _fail(arguments, type(error).__name__, str(error), EXIT_FAILED)
    except Exception as error:  # a fault of ours: Python shows the traceback and exits with 1
        if "--json" in arguments:
            click.echo(_as_json(type(error).__name__, str(error), EXIT_FAILED))
        raise


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Ours in the form of errors, those of packages as Python has them."""
    if issubclass(category, TensorwrightWarning):
        click.echo(f"warning: {message}", err=True)
    else:
        _PYTHONS(message, category, *where, **more)


def _fail(arguments: list[str], error: str, message: str, code: int) -> NoReturn:
    """Tells of an error and exits. The arguments are looked at as they came, for they may be what is wrong."""
    if "--debug" in arguments:
        traceback.print_exc()
    if "--json" in arguments:
        click.echo(_as_json(error, message, code))
    click.echo(f"error: {message}", err=True)
    sys.exit(code)


def _as_json(error: str, message: str, code: int) -> str:
    return json.dumps({"error": error, "message": message, "exit_code": code})


def _usage(error: click.ClickException, name: str) -> str:
    context = getattr(error, "ctx", None)
    return f"{error.format_message().rstrip('.')}; see '{context.command_path if context else name} --help'"

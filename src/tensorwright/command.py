"""How the commands end: one form of error, one table of exit codes, and with --json an object on stdout as well.

0 done   1 it failed while at work   2 wrong input: refused, nothing was begun   130 interrupted
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn, TextIO

import click

from tensorwright.errors import TensorwrightError, TensorwrightWarning
from tensorwright.interrupts import EXIT_INTERRUPTED, INTERRUPTED, leave, nothing_begun, work

EXIT_FAILED = 1
EXIT_WRONG_INPUT = 2


def run_command(command: click.Command, arguments: Sequence[str] | None, name: str) -> NoReturn:
    """Runs a click command (of sys.argv if arguments is None) and ends the process with its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        sys.exit(_run(command, arguments, name))
    except click.exceptions.NoArgsIsHelpError as help_text:
        click.echo(help_text.format_message(), err=True)
        sys.exit(EXIT_WRONG_INPUT)
    except (KeyboardInterrupt, click.Abort) as error:  # click makes the one of the other
        _fail(arguments, "KeyboardInterrupt", str(error.__cause__ or error) or INTERRUPTED, EXIT_INTERRUPTED)
    except click.ClickException as error:
        _fail(arguments, "UsageError", _usage(error, name), EXIT_WRONG_INPUT)
    except TensorwrightError as error:
        _fail(arguments, type(error).__name__, str(error), error.exit_code)
    except OSError as error:
        broken = _silence_broken_streams()
        if isinstance(error, BrokenPipeError) and broken:
            sys.exit(EXIT_FAILED)  # whoever read our output has seen enough
        _fail(arguments, type(error).__name__, _os_error(error, broken), EXIT_FAILED)
    except Exception as error:  # a fault of ours: Python shows the traceback and exits with 1
        if _was_interrupted(error):
            _fail(arguments, "KeyboardInterrupt", INTERRUPTED, EXIT_INTERRUPTED)
        if "--json" in arguments:
            click.echo(_as_json(type(error).__name__, str(error), EXIT_FAILED))
        raise


def _run(command: click.Command, arguments: list[str], name: str) -> int:
    """The exit code of a command that came to its end. After it, whatever it was, Ctrl-C ends the process at once."""
    try:
        work()
        try:
            with _told_once():
                code = command.main(args=list(arguments), prog_name=name, standalone_mode=False) or 0
        except SystemExit as end:
            code = end.code or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # Python would do it later, and show a traceback where it fails
    finally:
        nothing_begun.__enter__()
    return code


@contextmanager
def _told_once() -> Iterator[None]:
    """Our own warnings are lines of standard error, each once; those of others are as Python shows them."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, TensorwrightWarning):
                click.echo(f"warning: {message}", err=True)
            else:
                shown(message, category, filename, lineno, file, line)

        warnings.simplefilter("once", TensorwrightWarning)
        warnings.showwarning = show
        yield


def _fail(arguments: list[str], error: str, message: str, code: int) -> NoReturn:
    """Tells of an error and exits. The arguments are looked at as they came, for they may be what is wrong."""
    with suppress(OSError):  # there is nobody to tell it to, and the exit code still says it
        if "--debug" in arguments:
            traceback.print_exc()
        if "--json" in arguments:
            click.echo(_as_json(error, message, code))
        click.echo(f"error: {message}", err=True)
    _silence_broken_streams()
    if code == EXIT_INTERRUPTED:
        leave()
    sys.exit(code)


def _silence_broken_streams() -> list[str]:
    """Names of the standard streams that cannot be written to; Python would try again, and fail, at the exit."""
    broken = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            if stream is not None:  # it was closed before we began, and nobody expects anything there
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            broken.append(name)
    return broken


def _os_error(error: OSError, broken: list[str]) -> str:
    """What the system refused, in the form of our own errors: where, why, what to do."""
    why = error.strerror or str(error)
    if error.filename is not None:
        return f"{error.filename}: cannot be used ({why}); free it or its disk, or choose another place"
    if broken:
        return f"{broken[0]} cannot be written to ({why}); free its disk, or send the output elsewhere"
    return f"the system refused what the command needs ({why}); --debug shows where"


def _was_interrupted(error: BaseException) -> bool:
    """Whether a KeyboardInterrupt is what it came of: compiled modules make an ImportError of one."""
    return any(isinstance(cause, KeyboardInterrupt) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _as_json(error: str, message: str, code: int) -> str:
    return json.dumps({"error": error, "message": message, "exit_code": code})


def _usage(error: click.ClickException, name: str) -> str:
    context = getattr(error, "ctx", None)
    return f"{error.format_message().rstrip('.')}; see '{context.command_path if context else name} --help'"

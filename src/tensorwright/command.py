"""Runs the commands, reports their errors in one form, and chooses their exit codes.

With --json an error is also an object on stdout. The exit codes are:
0: the command is done. 1: the command failed while it worked. 2: the input was wrong, and the command began nothing.
130: the command was interrupted.
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
    """Runs a click command and ends the process with its exit code. arguments: None means those of sys.argv."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        sys.exit(_run(command, arguments, name))
    except click.exceptions.NoArgsIsHelpError as help_text:
        click.echo(help_text.format_message(), err=True)
        sys.exit(EXIT_WRONG_INPUT)
    except (KeyboardInterrupt, click.Abort) as error:  # click turns a KeyboardInterrupt into an Abort
        _fail(arguments, "KeyboardInterrupt", str(error.__cause__ or error) or INTERRUPTED, EXIT_INTERRUPTED)
    except click.ClickException as error:
        _fail(arguments, "UsageError", _usage(error, name), EXIT_WRONG_INPUT)
    except TensorwrightError as error:
        _fail(arguments, type(error).__name__, str(error), error.exit_code)
    except OSError as error:
        broken = _silence_broken_streams()
        if isinstance(error, BrokenPipeError) and broken:
            sys.exit(EXIT_FAILED)  # the reader of our output closed the pipe, so it needs no message
        _fail(arguments, type(error).__name__, _os_error(error, broken), EXIT_FAILED)
    except Exception as error:  # this is a bug of ours, so Python shows the traceback and exits with 1
        if _was_interrupted(error):
            _fail(arguments, "KeyboardInterrupt", INTERRUPTED, EXIT_INTERRUPTED)
        if "--json" in arguments:
            click.echo(_as_json(type(error).__name__, str(error), EXIT_FAILED))
        raise


def _run(command: click.Command, arguments: list[str], name: str) -> int:
    """Runs a command and returns its exit code. After the command, even if it failed, Ctrl-C ends the process."""
    try:
        work()
        try:
            with _told_once():
                code = command.main(args=list(arguments), prog_name=name, standalone_mode=False) or 0
        except SystemExit as end:
            code = end.code or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # otherwise Python flushes at its exit, and shows a traceback if that fails
    finally:
        nothing_begun.__enter__()
    return code


@contextmanager
def _told_once() -> Iterator[None]:
    """Prints each of our own warnings once, as a line on standard error. Python shows other warnings as usual."""
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
    """Reports an error and exits. It searches the unparsed arguments, because the error may lie in the arguments."""
    with suppress(OSError):  # nobody reads a broken stream, and the exit code still shows the error
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
    """Returns the names of the standard streams that cannot be written to, and redirects them to /dev/null.

    Otherwise Python would flush them once more at its exit, and fail.
    """
    broken = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            if stream is not None:  # None means that the stream was closed before this process began
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            broken.append(name)
    return broken


def _os_error(error: OSError, broken: list[str]) -> str:
    """Returns the message for an OSError in the form of our own errors: where it happened, why, and what to do."""
    why = error.strerror or str(error)
    if error.filename is not None:
        return f"{error.filename}: cannot be used ({why}); free it or its disk, or choose another place"
    if broken:
        return f"{broken[0]} cannot be written to ({why}); free its disk, or send the output elsewhere"
    return f"the system refused what the command needs ({why}); --debug shows where"


def _was_interrupted(error: BaseException) -> bool:
    """Whether a KeyboardInterrupt caused the error. Compiled modules turn a KeyboardInterrupt into an ImportError."""
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

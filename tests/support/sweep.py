"""Sizes that one test runs through: a test for each of thousands of sizes takes longer to report than to run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def sweep(name: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like `pytest.mark.parametrize(name, values)`, but the values are run through within one test. The error of the
    first that fails says which it was. A skip is such an error too, for it would hide all values after it. The fixtures
    of the test must stand being used again.
    """
    every = list(values)
    assert every

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run_through(*args: Any, **kwargs: Any) -> None:
            for value in every:
                try:
                    test(*args, **kwargs, **{name: value})
                except pytest.skip.Exception as skip:
                    raise AssertionError(f"{test.__name__} skips at {name} = {value!r}: {skip}") from skip
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"with {name} = {value!r}")
                    raise

        signature = inspect.signature(test)
        left = [parameter for parameter in signature.parameters.values() if parameter.name != name]
        assert len(left) == len(signature.parameters) - 1, f"{test.__name__} has no argument {name}"
        run_through.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run_through

    return decorate

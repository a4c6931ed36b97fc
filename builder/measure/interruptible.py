"""Keeps long computations of compiled code interruptible: Python answers Ctrl-C only between two calls of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

MAX_SLEEP_S = 0.2
"""The longest wait in one call, in seconds. An interrupt just before a wait begins ends it only at the next call."""


@contextmanager
def in_another_thread() -> Iterator[Callable[..., Any]]:
    """Gives a function that calls another one in a thread, and waits for it in the caller's thread.

    An interrupt while it waits is raised at once. The called function runs to its end; only the exit of the process
    waits for it.
    """
    threads = ThreadPoolExecutor(max_workers=1)

    def call(work: Callable[..., Any], *arguments: Any) -> Any:
        future = threads.submit(work, *arguments)
        while not wait([future], MAX_SLEEP_S).done:
            pass
        return future.result()

    try:
        yield call
    finally:
        threads.shutdown(wait=False)


def short_products(max_operations: int = 4_000_000_000) -> Any:
    """Returns a context in which torch computes no product with a weight matrix of more operations at a time.

    A larger product is computed for some columns of the result at a time. Each element is still one sum over one row.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    linear, addmm = torch.nn.functional.linear, torch.addmm
    products = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)

    class ShortProducts(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if kwargs:
                return func(*args, **kwargs)
            if func is linear:
                x, w, bias = (*args, None)[:3]
                return _joined(x, w.shape[0], lambda a, b: linear(x, w[a:b], None if bias is None else bias[a:b]))
            if func is addmm and args[0].dim() == 1:
                bias, x, w = args
                return _joined(x, w.shape[1], lambda a, b: addmm(bias[a:b], x, w[:, a:b]))
            if func in products and args[1].dim() == 2:
                x, w = args
                return _joined(x, w.shape[1], lambda a, b: torch.matmul(x, w[:, a:b]))
            return func(*args)

    def _joined(x: torch.Tensor, columns: int, part: Callable[[int, int], torch.Tensor]) -> torch.Tensor:
        step = max(1, max_operations // (2 * x.numel()))
        if step >= columns:
            return part(0, columns)
        whole = x.new_empty(*x.shape[:-1], columns)
        for start in range(0, columns, step):
            whole[..., start : start + step] = part(start, min(columns, start + step))
        return whole

    return ShortProducts()


def free_weights(model: Any) -> None:
    """Frees the memory of a torch module's weights, one after the other. The module cannot be used any more."""
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data = tensor.new_empty(0)

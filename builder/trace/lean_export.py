"""Switches off what torch.export makes beside its graph, which nobody reads here: a third of an export.

the cache of what operations give    with sizes that are expressions of the length, it takes longer than the operations
a stack trace for each node          explain_export.py reads the traceback of the exception instead
Python code of each graph            a graph is lowered, never called
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch.fx import config
from torch.fx._lazy_graph_module import _use_lazy_graph_module

_ONE_AT_A_TIME = threading.Lock()
"""Of two exports at once, the one that ends last would leave the switches as the other one had set them."""


@contextmanager
def lean_export() -> Iterator[None]:
    """Within the context torch.export makes the same graph in less time. The switches are those of the process, so an
    export in another thread waits."""
    from torch._dynamo import config as exporter  # It takes long to import, and not every command traces.

    switches = exporter.patch(fake_tensor_cache_enabled=False)
    with _ONE_AT_A_TIME, switches, _use_lazy_graph_module(True), _without_stack_traces():
        yield


@contextmanager
def _without_stack_traces() -> Iterator[None]:
    before = config.do_not_emit_stack_traces
    config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        config.do_not_emit_stack_traces = before

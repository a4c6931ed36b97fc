"""Nothing that a build computes in compiled code keeps Ctrl-C waiting for long."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from support.tiny_models import make_variant
from support.waiting import PATIENCE
from tensorwright.builder.measure import reference
from tensorwright.builder.measure.interruptible import in_another_thread, short_products

MOST = 10_000


class Products(TorchDispatchMode):
    """Notes the operations of every product with a matrix."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.linear.default:
            self.operations.append(2 * args[0].numel() * args[1].shape[0])
        if func in (torch.ops.aten.addmm.default, torch.ops.aten.matmul.default) and args[-1].dim() == 2:
            self.operations.append(2 * args[-2].numel() * args[-1].shape[1])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("variant", ["llama", "gpt2", "falcon"])
def test_the_model_in_transformers_is_computed_in_short_products(tmp_path, monkeypatch, variant):
    """Linears, GPT-2's products with transposed matrices, and Falcon's own linears."""
    path = make_variant(tmp_path / "model", variant)
    ids = list(range(24))
    with Products() as seen:
        whole = reference.transformers_logits(path, ids, 64)
    assert max(seen.operations) > MOST
    monkeypatch.setattr(reference, "short_products", lambda: short_products(MOST))
    with Products() as seen:
        parts = reference.transformers_logits(path, ids, 64)
    assert 0 < max(seen.operations) <= MOST
    assert abs(parts - whole).max() <= 1e-5 * abs(whole).max()


@pytest.mark.usefixtures("hears_interrupts")
def test_an_interrupt_does_not_wait_for_what_was_called():
    begun, release, ended = threading.Event(), threading.Event(), threading.Event()

    def compute():
        begun.set()
        release.wait(PATIENCE)
        ended.set()

    def interrupt():
        begun.wait(PATIENCE)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt), in_another_thread() as call:
            call(compute)
        assert not ended.is_set()
    finally:
        release.set()


def test_results_and_errors_come_back():
    with in_another_thread() as call:
        assert call(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            call(divmod, 7, 0)

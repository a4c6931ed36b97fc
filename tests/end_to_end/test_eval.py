"""`tensorwright eval` gives the perplexity that transformers gives: on random models, and on pico and its own text;
and with --tasks the log-likelihoods of choices that transformers gives.

A logprob moves by at most twice the largest error of the logits (its own, and that of the sum), and so does their mean;
the bound on logits is that of test_parity_float32.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from support.command_line import call
from support.harness import load_reference
from support.tiny_models import make_variant
from tensorwright import build
from tensorwright.runtime.commands.eval import cut
from tensorwright.runtime.commands.eval_tasks import encode_pair
from tensorwright.runtime.engine.engine_dir import open_engine

ROOT = Path(__file__).resolve().parents[2]


Models = tuple[torch.nn.Module, torch.nn.Module]


def load(model_dir: Path) -> Models:
    """transformers in float64, and in float32."""
    return load_reference(model_dir, torch.float64), load_reference(model_dir, torch.float32)


def reference(models: Models, windows: list[list[int]]) -> tuple[float, float]:
    """(mean nll in float64, how far an engine's may be). The last window may be shorter than the others."""
    logprobs: list[torch.Tensor] = []
    allowed = 0.0
    with torch.inference_mode():
        for ids in (torch.tensor(part) for part in (windows[:-1], windows[-1:]) if part):
            exact, theirs = (model(ids).logits.double() for model in models)
            worst, largest = float((theirs - exact).abs().max()), float(exact.abs().max())
            allowed = max(allowed, 2 * (4 * worst + largest * float(np.finfo(np.float32).eps)))
            logprobs.append(exact[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).flatten())
    return -float(torch.cat(logprobs).mean()), allowed


def evaluated(capsys: pytest.CaptureFixture[str], engine: Path, text: Path, window: int) -> dict[str, float]:
    code, out, err = call(capsys, "eval", str(engine), str(text), "--window", str(window), "--json")
    assert code == 0, err
    return json.loads(out)["total"]


def check(capsys: pytest.CaptureFixture[str], models: Models, engine: Path, text: Path, window: int) -> None:
    """The perplexity, and that windows cut one token later, with one token less, would not pass for it."""
    tokenizer = open_engine(engine).tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode(text.read_text(encoding="utf-8"))
    total = evaluated(capsys, engine, text, window)
    windows = cut(ids, window)
    nll, allowed = reference(models, windows)
    assert total["tokens"] == sum(len(each) - 1 for each in windows)
    assert abs(total["nll"] - nll) <= allowed
    assert abs(total["perplexity"] / np.exp(nll) - 1) <= np.expm1(allowed) + 4 * np.finfo(np.float64).eps
    assert abs(reference(models, cut(ids[1:], window))[0] - nll) > allowed


@pytest.mark.parametrize("variant", ["llama", "mistral", "gemma2"])  # the latter two: sliding windows
def test_random_models(variant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_variant(tmp_path / "model", variant, seed=3)
    build(model, tmp_path / "engine", dtype="float32", accuracy="none")
    words = np.random.default_rng(5).integers(0, 100, 333)
    (tmp_path / "text.txt").write_text(" ".join(f"t{word}" for word in words))
    models = load(model)
    for window in (2, 33, 100):
        check(capsys, models, tmp_path / "engine", tmp_path / "text.txt", window)


def test_pico(pico_model: Path, pico_engine_float32: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "builder" / "measure" / "text.txt").read_text(encoding="utf-8")
    (tmp_path / "text.txt").write_text(text[:1823])
    check(capsys, load(pico_model), pico_engine_float32, tmp_path / "text.txt", 512)


TASKS = [
    {"context": "import", "choices": [" os\n", " banana", " the harbour"], "answer": 0},
    {"context": "def add(a, b):\n    return a ", "choices": ["+ b", "def", "b +"], "answer": 0},
    {"context": "for i in range(10):\n    print", "choices": ["(i)", "x", ")("], "answer": 1},
]


def likelihoods(models: Models, context: list[int], choice: list[int]) -> tuple[float, float]:
    """(the sum of the choice's logprobs in float64, how far an engine's may be)."""
    ids = torch.tensor([[*context, *choice]])
    with torch.inference_mode():
        exact, theirs = (model(ids).logits[0].double() for model in models)
    worst, largest = float((theirs - exact).abs().max()), float(exact.abs().max())
    allowed = 2 * (4 * worst + largest * float(np.finfo(np.float32).eps)) * len(choice)
    rows = exact[len(context) - 1 : -1].log_softmax(-1)
    return float(rows.gather(-1, torch.tensor(choice)[:, None]).sum()), allowed


def test_choices(
    pico_model: Path, pico_engine_float32: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each choice is one call of transformers' model."""
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, TASKS)))
    arguments = ("eval", str(pico_engine_float32), "--tasks", str(tmp_path / "tasks.jsonl"), "--json")
    code, out, err = call(capsys, *arguments)
    assert code == 0, err
    (result,) = json.loads(out)["files"]
    engine, models = open_engine(pico_engine_float32), load(pico_model)
    picked = []
    for task, answer in zip(TASKS, result["answers"], strict=True):
        pairs = [encode_pair(engine, task["context"], choice) for choice in task["choices"]]
        exact = [likelihoods(models, *pair) for pair in pairs]
        for got, (wanted, allowed) in zip(answer["logprobs"], exact, strict=True):
            assert abs(got - wanted) <= allowed
            assert allowed < 0.01  # much less than what tells choices apart
        picked.append(int(np.argmax([wanted for wanted, _ in exact])))
    right = [pick == task["answer"] for pick, task in zip(picked, TASKS, strict=True)]
    assert result["acc"] == sum(right) / len(right)

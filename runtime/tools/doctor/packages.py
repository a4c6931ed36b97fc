"""Lists the packages that Tensorwright uses, their installed versions, and how to install those that are missing.

The versions are those of pyproject.toml; a test compares them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tensorwright.installing import install


@dataclass(frozen=True)
class Package:
    """A distribution and the versions that Tensorwright can use.

    oldest: the first version that works. too_new: the first later version that does not, or None.
    extra: the extra that installs the package; None means that it comes with Tensorwright itself.
    use: what the package is for. instead: distributions that hold the same module.
    """

    name: str
    oldest: str
    extra: str | None
    use: str
    too_new: str | None = None
    instead: tuple[str, ...] = ()


PACKAGES = (
    Package("numpy", "1.26", None, "everything"),
    Package("tokenizers", "0.22", None, "text to tokens and back"),
    Package("safetensors", "0.6.2", None, "weights"),
    Package("torch", "2.13", "build", "building engines", "2.16"),
    Package("transformers", "5.22", "build", "building engines", "5.24"),
    Package("sentencepiece", "0.2", "build", "converting tokenizers of checkpoints without tokenizer.json"),
    Package("tiktoken", "0.8", "build", "converting tokenizers of checkpoints without tokenizer.json"),
    Package("onnx", "1.21", "onnx", "building engines of targets onnx, tensorrt and tensorrt-rtx"),
    Package("onnxruntime", "1.23", "onnx", "running engines of target onnx", instead=("onnxruntime-gpu",)),
    Package("triton", "3.9", "gpu", "compiling GPU kernels into engines", "3.10"),
    Package("tensorrt", "10.15", "tensorrt", "building and running engines of target tensorrt"),
    Package("tensorrt-rtx-cu13", "1.7", "tensorrt-rtx", "building and running engines of target tensorrt-rtx", "2"),
    Package("cuda-bindings", "12.8", "tensorrt-rtx", "running engines of targets tensorrt and tensorrt-rtx"),
    Package("llguidance", "1.9", "guided", "guided decoding", too_new="2"),
    Package("fastapi", "0.132", "serve", "tensorwright serve"),
    Package("uvicorn", "0.32", "serve", "tensorwright serve"),
    Package("httptools", "0.6.3", "serve", "tensorwright serve"),
    Package("ray", "2.60", "ray", "tensorwright serve --ray", "2.61"),
)


def examine_packages() -> list[dict[str, Any]]:
    """Returns for each package: name, version (None if absent), wanted, use, ok, and remedy (None if ok)."""
    return [_examine(package) for package in PACKAGES]


def _examine(package: Package) -> dict[str, Any]:
    name, found = package.name, installed(package.name)
    for other in package.instead:
        if found is None and installed(other) is not None:
            name, found = other, installed(other)
    wanted = f">={package.oldest}" + (f",<{package.too_new}" if package.too_new else "")
    fault = None if found is None else _fault(package, found)
    return {
        "name": name,
        "version": found,
        "wanted": wanted,
        "use": package.use,
        "ok": found is not None and fault is None,
        "remedy": None if found is not None and fault is None else _remedy(package, name, wanted),
    }


def _remedy(package: Package, name: str, wanted: str) -> str:
    if installed(name) is not None:
        return f"pip install '{name}{wanted}'"
    return install(package.extra) if package.extra else f"pip install '{name}{wanted}'"


def _fault(package: Package, found: str) -> str | None:
    if numbers(found) < numbers(package.oldest):
        return "too old"
    return "too new" if package.too_new and numbers(found) >= numbers(package.too_new) else None


def installed(name: str) -> str | None:
    """Returns the version of an installed distribution, or None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def numbers(text: str) -> tuple[int, ...]:
    """Returns the release part of a version: (2, 13, 0) for "2.13.0+cpu"."""
    release = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in release[0].split(".")) if release else ()

"""Makes an environment and converted models for every peer once, under one cache folder.

CACHE/envs/PEER          the peer's virtual environment; installed.json lists the requested packages
CACHE/checkpoints/SHAPE  the random weights
CACHE/models/SHAPE/PEER-FORM       the peer's conversion, with PEER-FORM.json beside it: time, memory, bytes
CACHE/logs               the output of pip, converters and workers
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shapes
from protocol import Peer
from worker import PeerError, last_lines

FOLDER = Path(__file__).resolve().parent
MODULES = {
    "tensorwright": "peer_tensorwright",
    "llama.cpp": "peer_llama",
    "onnxruntime-genai": "peer_ort",
    "openvino-genai": "peer_openvino",
    "transformers": "peer_transformers",
}
OURS = "tensorwright"


@dataclass(frozen=True)
class Side:
    """One column of the comparison: a peer in one form."""

    peer: str
    form: str

    def __str__(self) -> str:
        return f"{self.peer} {self.form}"

    @property
    def module(self) -> Peer:
        return importlib.import_module(MODULES[self.peer])  # type: ignore[return-value]

    @property
    def bits(self) -> int:
        """Returns the approximate bits of a weight, which decide the sides that are compared."""
        forms = self.module.FORMS
        if self.form in forms:
            return forms[self.form]
        number = re.search(r"\d+", self.form)  # The bits come first: uint4:g128, w4a8.
        return int(number.group()) if number else forms["bf16"]

    @property
    def file_name(self) -> str:
        return str(self).replace(" ", "-").replace(":", "-").replace(",", "-")


def parse_sides(texts: list[str] | None) -> list[Side]:
    """Parses PEER or PEER=FORM; None means all sides. This project also takes any spec of quantize as a form."""
    modules = {peer: Side(peer, "").module for peer in MODULES}
    if not texts:
        return [Side(peer, form) for peer, module in modules.items() for form in module.FORMS]
    sides = []
    for text in texts:
        peer, _, form = text.partition("=")
        if peer not in modules:
            raise SystemExit(f"a side must be one of {', '.join(modules)}, each also with =FORM; {text!r} is not")
        forms = modules[peer].FORMS
        if form and form not in forms and peer != OURS:
            raise SystemExit(f"{peer} has the forms {', '.join(forms)}, not {form!r}")
        sides += [Side(peer, form)] if form else [Side(peer, f) for f in forms]
    return list(dict.fromkeys(sides))


def run_logged(command: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
    """Runs a command to its end with its output in `log`. Raises PeerError with the last lines if it fails."""
    with log.open("w") as out:
        code = subprocess.run(command, stdout=out, stderr=out, env=os.environ | (environment or {})).returncode
    if code != 0:
        raise PeerError(f"{Path(command[0]).name} {' '.join(command[1:4])} ended with code {code}: {last_lines(log)}")


class Cache:
    def __init__(self, folder: Path, shape: str):
        self.folder, self.shape = folder, shape
        self.models, self.logs = folder / "models" / shape, folder / "logs"
        for made in (self.models, self.logs, folder / "envs"):
            made.mkdir(parents=True, exist_ok=True)

    def checkpoint(self) -> Path:
        out = self.folder / "checkpoints" / self.shape
        if not (out / shapes.DONE).exists():
            log = self.logs / f"shape-{self.shape}.log"
            run_logged([sys.executable, str(FOLDER.parent / "shapes.py"), self.shape, str(out)], log)
        return out

    def python(self, peer: str) -> str:
        """Returns the interpreter of a peer's environment; installs what is missing. This project uses the tool's."""
        if peer == OURS:
            return sys.executable
        module = Side(peer, "").module
        place = self.folder / "envs" / peer.replace(".", "_")
        python, record = place / "bin" / "python", place / "installed.json"
        wanted = {"packages": list(module.PACKAGES), "removed": list(module.REMOVE)}
        if not record.exists() or json.loads(record.read_text()) != wanted:
            log = self.logs / f"install-{place.name}.log"
            run_logged([sys.executable, "-m", "venv", str(place)], log)
            run_logged([str(python), "-m", "pip", "install", *module.PACKAGES], log, module.ENVIRONMENT)
            if module.REMOVE:
                run_logged([str(python), "-m", "pip", "uninstall", "-y", *module.REMOVE], log)
            record.write_text(json.dumps(wanted))
        return str(python)

    def command(self, side: Side, *words: str) -> list[str]:
        return [self.python(side.peer), str(FOLDER / f"{MODULES[side.peer]}.py"), *words]

    def variables(self, peer: str) -> dict[str, str]:
        """Returns a peer's environment variables: its processes find protocol.py, and only their own packages."""
        return {"PYTHONSAFEPATH": ""} | ({} if peer == OURS else {"PYTHONPATH": ""})

    def convert(self, side: Side, checkpoint: Path, *, again: bool) -> dict[str, Any]:
        """Returns the facts of a converted model: seconds, peak_bytes, bytes_per_token, file_bytes."""
        out = self.models / side.file_name
        record = self.models / f"{side.file_name}.json"
        if record.exists() and out.exists() and not again:
            return json.loads(record.read_text()) | {"earlier": True}
        record.unlink(missing_ok=True)
        shutil.rmtree(out, ignore_errors=True)
        command, log = self.command(side, "convert", str(checkpoint), str(out), side.form), f"convert-{side.file_name}"
        start = time.perf_counter()
        facts = _answer(command, self.logs / f"{log}.log", self.variables(side.peer))
        wall = time.perf_counter() - start
        size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file() and "tokenizer" not in f.name)
        facts |= {"wall_seconds": wall, "file_bytes": size}
        record.write_text(json.dumps(facts, indent=2))
        return facts | {"earlier": False}


def _answer(command: list[str], log: Path, variables: dict[str, str]) -> dict[str, Any]:
    """Returns the last line of a command's standard output, as JSON."""
    with log.open("w") as errors:
        variables = os.environ | variables
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=variables)
    if done.returncode != 0:
        raise PeerError(f"conversion ended with code {done.returncode}: {last_lines(log)}")
    return json.loads(done.stdout.splitlines()[-1])

"""Tries wheels of dist/ as somebody does who has no checkout.

    python deploy/wheel/try_wheels.py --model models/pico dist/*x86_64.whl
    python deploy/wheel/try_wheels.py --engine out/pico dist/*x86_64.whl dist/*aarch64.whl

Each wheel is installed with the extra `serve` into an environment of its own, in a folder outside of the checkout.
There it answers a prompt as a command, in Python, behind its server, and in a program of C and one of C++ that are
linked with the wheel's library by pkg-config and by CMake. All must give the same tokens, and so must all wheels.
--model builds the engine with the first wheel, which gets the extra `build` (torch) too; --engine takes one that was
built before.

A wheel for aarch64 runs on another processor in qemu-aarch64 (apt-get install qemu-user g++-aarch64-linux-gnu), with a
Python of Debian (deploy/arm64/make_root.py). Products of bfloat16 by instructions round as a processor does, so wheels
for two processors are compared with an engine of another type, such as `build-engine --dtype float32`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ARM64 = ROOT / "deploy" / "arm64"
ARM64_PYTHONS = {"cp311": "3.11", "cp312": "3.13"}
"""Which Python of Debian runs a wheel for aarch64, by the tag of the wheel's Python."""
ARM64_PLATFORMS = ("manylinux2014", *(f"manylinux_2_{number}" for number in range(17, 37)))
"""What pip may install for aarch64 on another processor: the platforms with a glibc that no root lacks, up to 2.36."""
EXAMPLES = ROOT / "docs" / "examples" / "c"
PROMPT, TOKENS = "def read_file(", 24
PATIENCE = 600
"""Seconds that one command may take. An emulated one takes a hundred times as long as a real one."""
EMULATED_MEMORY = 8 << 30
"""The most address space of an emulated program, in bytes: the emulator takes memory that a program never touches."""
IN_PYTHON = """
import json, sys
from tensorwright import LLM, SamplingParams

if __name__ == "__main__":
    with LLM(sys.argv[1], kv_cache_memory="64MiB") as llm:
        (output,) = llm.generate([sys.argv[2]], SamplingParams(max_tokens=int(sys.argv[3]), temperature=0))
        print(json.dumps([list(output.prompt_token_ids), list(output.outputs[0].token_ids)]))
"""


class TrialError(Exception):
    """A wheel does not do what it should."""


@dataclass(frozen=True)
class Installed:
    """A wheel in an environment of its own. `python` starts its Python, `launcher` a program for its processor,
    `scripts` is the folder of its commands, `compiler` and `cmake` are what programs of C are compiled with."""

    folder: Path
    python: tuple[str, ...]
    scripts: Path
    environment: dict[str, str]
    emulated: bool = False
    launcher: tuple[str, ...] = ()
    compiler: str = "gcc"
    cmake: tuple[str, ...] = ()

    def command(self, name: str, *arguments: str) -> list[str]:
        """Returns a command of the wheel: by its own first line, or by the emulated Python."""
        return [*(self.python if self.emulated else ()), str(self.scripts / name), *arguments]

    def answer(self, *command: str | Path) -> str:
        """Runs a command of the wheel's environment outside of the checkout, and returns what it printed. Raises
        TrialError if it fails."""
        return self._run(command, self.environment)

    def tool(self, *command: str | Path) -> str:
        """Runs a program of this machine, such as a compiler, and is as `answer` else."""
        return self._run(command, clean_environment())

    def _run(self, command: tuple[str | Path, ...], environment: dict[str, str]) -> str:
        words = [*map(str, command)]
        outcome = subprocess.run(
            words, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
        if outcome.returncode:
            raise TrialError(f"{' '.join(words)} ended with code {outcome.returncode}:\n{outcome.stderr[-2000:]}")
        return outcome.stdout


def tags(wheel: Path) -> tuple[str, str]:
    """Returns the tag of Python and the processor in a wheel's name, such as ("cp311", "aarch64")."""
    found = re.fullmatch(r"tensorwright-[^-]+-(cp\d+)-[^-]+-manylinux_\d+_\d+_(\w+)\.whl", wheel.name)
    if found is None or not wheel.is_file():
        raise TrialError(f"{wheel} is no wheel of `make wheel` or `make wheel-arm64`")
    return found[1], found[2]


def clean_environment() -> dict[str, str]:
    """Returns the variables of this process but for those that change what Python finds or what the wheel takes."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TENSORWRIGHT_"))}


def install(wheel: Path, extras: str, pythons: list[str], folder: Path) -> Installed:
    """Installs the wheel with extras and what they need."""
    tag, machine = tags(wheel)
    if machine == platform.machine():
        return install_here(wheel, extras, tag, pythons, folder)
    if machine != "aarch64":
        raise TrialError(f"{wheel.name} is for {machine}: nothing here runs it")
    return install_arm64(wheel, extras, tag, folder)


def install_here(wheel: Path, extras: str, tag: str, pythons: list[str], folder: Path) -> Installed:
    interpreter = folder / "environment" / "bin" / "python"
    place = Installed(folder, (str(interpreter),), interpreter.parent, clean_environment())
    version = "import sys; print('cp%d%d' % sys.version_info[:2])"
    fitting = [python for python in pythons if place.tool(python, "-c", version).strip() == tag]
    place.tool(*(fitting or [f"python3.{tag.removeprefix('cp3')}"])[:1], "-m", "venv", folder / "environment")
    pip = (interpreter, "-m", "pip", "--disable-pip-version-check", "install", "-q")
    place.answer(*pip, "-c", ROOT / "constraints.txt", f"{wheel.resolve()}[{extras}]")
    return place


def install_arm64(wheel: Path, extras: str, tag: str, folder: Path) -> Installed:
    """Installs into a folder that the emulated Python looks into. The programs of C are compiled here, for aarch64."""
    if shutil.which("qemu-aarch64") is None:
        raise TrialError("qemu-aarch64 is not installed: apt-get install qemu-user")
    version = ARM64_PYTHONS.get(tag)
    if version is None:
        raise TrialError(f"{wheel.name}: no Python of Debian is there for {tag}")
    made = subprocess.run(
        [sys.executable, ARM64 / "make_root.py", version], check=True, stdout=subprocess.PIPE, text=True
    )
    root = Path(made.stdout.strip())
    packages = folder / "packages"
    emulator = ("prlimit", f"--as={EMULATED_MEMORY}", "qemu-aarch64", "-L", str(root))
    variables = {"PYTHONHOME": str(root / "usr"), "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    place = Installed(
        folder,
        (*emulator, str(root / "usr" / "bin" / f"python{version}")),
        packages / "bin",
        clean_environment() | variables,
        emulated=True,
        launcher=emulator,
        compiler="aarch64-linux-gnu-gcc",
        cmake=("--toolchain", str(ARM64 / "toolchain.cmake")),
    )
    platforms = [part for each in ARM64_PLATFORMS for part in ("--platform", f"{each}_aarch64")]
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-compile")
    command = (
        *pip, "--target", packages, "--python-version", version, "--only-binary", ":all:", *platforms,
        "-c", ROOT / "constraints.txt", f"{wheel.resolve()}[{extras}]",
    )  # fmt: skip
    subprocess.run([*map(str, command)], check=True, env=clean_environment())
    return place


def tokens_of_programs(place: Installed, engine: Path, prompt: list[int]) -> dict[str, list[int]]:
    """Returns the tokens of a program of C and of one of C++, linked with the library in the wheel."""
    folder = place.answer(*place.command("tensorwright", "c-interface", "--pkgconfig-dir")).strip()
    pkg_config = ("env", f"PKG_CONFIG_LIBDIR={folder}", "pkg-config", "--cflags", "--libs", "tensorwright")
    flags = place.tool(*pkg_config).split()
    library = next(flag.removeprefix("-L") for flag in flags if flag.startswith("-L"))
    program = place.folder / "generate"
    place.tool(place.compiler, EXAMPLES / "generate.c", *flags, f"-Wl,-rpath,{library}", "-o", program)
    build = place.folder / "examples"
    package = place.answer(*place.command("tensorwright", "c-interface", "--cmake-dir")).strip()
    place.tool("cmake", "-S", EXAMPLES, "-B", build, f"-Dtensorwright_DIR={package}", *place.cmake)
    place.tool("cmake", "--build", build)
    params = json.dumps({"max_tokens": TOKENS, "temperature": 0})
    found = {}
    for name, path in {"C, by pkg-config": program, "C++, by CMake": build / "generate_cpp"}.items():
        printed = place.answer(*place.launcher, path, engine, params, *map(str, prompt))
        found[name] = [int(token) for token in printed.split()]
    return found


def text_of_server(place: Installed, engine: Path) -> str:
    """Returns the text of one completion of the server, which is then told to end, and must end well."""
    command = place.command("tensorwright", "serve", f"pico={engine}", "--port", "0", "--kv-cache-memory", "64MiB")
    log = place.folder / "serve.log"
    with log.open("w") as errors:
        server = subprocess.Popen(
            command, cwd=place.folder, env=place.environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert server.stdout is not None
        found = re.search(r"serving pico at (\S+)", server.stdout.readline())
        if found is None:
            raise TrialError(f"the server did not start:\n{log.read_text()[-2000:]}")
        body = {"model": "pico", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
        request = urllib.request.Request(
            f"{found[1]}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=PATIENCE) as response:
            text = json.load(response)["choices"][0]["text"]
        server.send_signal(signal.SIGTERM)
        if code := server.wait(PATIENCE):
            raise TrialError(f"the server ended with code {code} when it was told to end:\n{log.read_text()[-2000:]}")
        return str(text)
    finally:
        if server.poll() is None:
            server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()


def try_wheel(place: Installed, engine: Path) -> dict[str, Any]:
    """Returns what the wheel answered: the tokens and the text. Raises TrialError where two of its doors disagree."""
    options = ("--prompt", PROMPT, "--max-tokens", str(TOKENS), "--temperature", "0", "--json")
    run = json.loads(place.answer(*place.command("tensorwright", "run", str(engine), *options)))
    prompt, tokens = json.loads(place.answer(*place.python, "-c", IN_PYTHON, engine, PROMPT, str(TOKENS)))
    answers = {"the command": run["token_ids"], "Python": tokens, **tokens_of_programs(place, engine, prompt)}
    for door, found in answers.items():
        if found != run["token_ids"] or not found:
            raise TrialError(f"{door} gave the tokens {found}, and the command run {run['token_ids']}")
    if (served := text_of_server(place, engine)) != run["text"]:
        raise TrialError(f"the server gave {served!r}, and the command run {run['text']!r}")
    return {"token_ids": run["token_ids"], "text": run["text"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path, help="a checkpoint, of which the first wheel builds an engine")
    source.add_argument("--engine", type=Path, help="an engine of target cpu that was built before")
    parser.add_argument("--python", action="append", default=[], help="in place of python3.N; may be repeated")
    parser.add_argument("wheels", type=Path, nargs="+", help="wheels of `make wheel` or `make wheel-arm64`")
    arguments = parser.parse_args()
    first: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tensorwright-wheels-") as work:
        try:
            for number, wheel in enumerate(arguments.wheels):
                folder = Path(work, str(number))
                folder.mkdir()
                builds = arguments.model is not None and number == 0
                place = install(wheel, "build,serve" if builds else "serve", arguments.python, folder)
                if builds:
                    engine = Path(work, "engine")
                    place.answer(
                        *place.command("build-engine", str(arguments.model.resolve()), str(engine)),
                        "--quantize", "int4", "--dtype", "float32", "--accuracy", "none",
                    )  # fmt: skip
                elif arguments.engine is not None:
                    engine = arguments.engine.resolve()
                found = try_wheel(place, engine)
                if (first := first or found) != found:
                    raise TrialError(f"{wheel.name} answered {found}, and {arguments.wheels[0].name} {first}")
                print(f"{wheel.name}: {len(found['token_ids'])} tokens, {found['text']!r}", flush=True)
        except (TrialError, subprocess.SubprocessError, OSError) as error:
            sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

"""Carries out a Dockerfile without Docker, on folders in place of its images, and runs what it makes.

    mmdebstrap --variant=minbase --include=python3-pip,python3-dev,ca-certificates bookworm build/python-slim
    rm build/python-slim/usr/lib/python3*/EXTERNALLY-MANAGED && ln -s python3 build/python-slim/usr/bin/python
    python deploy/image/try_dockerfile.py deploy/Dockerfile --image python:3.11-slim=build/python-slim --engine out/pico
    python deploy/image/try_dockerfile.py deploy/Dockerfile.triton --models out/models \\
        --image nvcr.io/nvidia/tritonserver:25.08-py3=build/triton

Each FROM copies the folder that --image names for it, COPY takes what .dockerignore leaves of the repository, and RUN
runs in the copy, in namespaces of bubblewrap (apt-get install bubblewrap; it needs root). What a folder lacks that the
real image has, or the other way round, is not seen. With --engine, the entry point then serves an engine on a root that
is read-only, as the Dockerfile's user and without capabilities; the health check must come true, a prompt be answered,
and the Dockerfile's signal end the server well. --models does the same with a repository of `tensorwright triton-repo`.
This stands for Triton's image, and is made as root:

    mmdebstrap --variant=minbase --keyring=ubuntu-archive-keyring.gpg \\
      --include=python3-pip,python3-numpy,libpython3.12t64,libstdc++6,ca-certificates,curl \\
      noble build/triton "deb http://archive.ubuntu.com/ubuntu noble main universe"
    useradd --root "$PWD/build/triton" triton-server
    pip download --no-deps nvidia-pytriton==0.7.0 && unzip nvidia_pytriton-*.whl -d build/pytriton
    cp -r build/pytriton/nvidia_pytriton.libs build/pytriton/pytriton/tritonserver build/triton/opt/
    SERVER=build/triton/opt/tritonserver
    cp $SERVER/python_backend_stubs/3.12/triton_python_backend_stub $SERVER/backends/python/
    chmod -R a+rX build/triton/opt && chmod a+x $SERVER/bin/* $SERVER/backends/python/*stub
    printf '%s\\n' '#!/bin/sh' 'export LD_LIBRARY_PATH=/opt/nvidia_pytriton.libs' \\
      'exec /opt/tritonserver/bin/tritonserver --backend-directory=/opt/tritonserver/backends \\
       --pinned-memory-pool-byte-size=0 --allow-gpu-metrics=false "$@"' > build/triton/usr/local/bin/tritonserver
    chmod a+x build/triton/usr/local/bin/tritonserver

An instruction that this program does not know is refused before anything is done.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KNOWN = (
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "STOPSIGNAL", "USER", "WORKDIR",
)  # fmt: skip
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROMPT = "import os"
PATIENCE = 120
"""Seconds that a server may take until its health check comes true, and until it has ended."""


class DockerfileError(Exception):
    """The Dockerfile does not do what it should, or cannot be carried out here."""


@dataclass
class Stage:
    """What the instructions since a FROM have made: a root, and what they set."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"
    entry: tuple[str, ...] = ()
    health: tuple[str, ...] = ()
    signal: str = "SIGTERM"


def instructions(text: str) -> list[tuple[str, str]]:
    """Returns the instructions of a Dockerfile and what follows each. Raises DockerfileError for one that is not
    known."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ").splitlines()
    parts = [line.partition(" ") for line in lines if line.strip()]
    found = [(word.upper(), rest.strip()) for word, _, rest in parts]
    if unknown := sorted({word for word, _ in found} - set(KNOWN)):
        raise DockerfileError(f"{', '.join(unknown)} cannot be carried out here; {', '.join(KNOWN)} can")
    return found


def is_left_out(path: str, patterns: list[str]) -> bool:
    """Returns whether .dockerignore leaves out a path of the repository: the last pattern decides that fits it, or a
    folder that it is in."""
    parts = Path(path).parts
    heads = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    out = False
    for pattern in patterns:
        wanted = pattern.removeprefix("!").removeprefix("**/")
        names = parts if "**/" in pattern else heads
        if any(fnmatch(name, wanted) and name.count("/") == wanted.count("/") for name in names):
            out = not pattern.startswith("!")
    return out


def context() -> list[str]:
    """Returns the files of the repository's folder that a build may copy."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    files = []
    for place, folders, names in os.walk(ROOT):
        here = Path(place).relative_to(ROOT)
        folders[:] = [name for name in folders if not is_left_out((here / name).as_posix(), patterns)]
        files += [(here / name).as_posix() for name in names]
    return sorted(path for path in files if not is_left_out(path, patterns))


def inside(stage: Stage, *places: str) -> list[str]:
    """Returns the beginning of a command that runs in a root as its root, with the network of this machine. places:
    what is bound where, as bubblewrap takes it."""
    command = ["bwrap", *places, "--dev", "/dev", "--proc", "/proc", "--unshare-pid", "--die-with-parent"]
    command += ["--cap-add", "ALL", "--clearenv", "--chdir", stage.folder]
    for name, value in {"PATH": PATH, **stage.variables}.items():
        command += ["--setenv", name, value]
    return command


def copy(stage: Stage, words: list[str], stages: dict[str, Stage]) -> None:
    """Carries out COPY, from the repository or from another stage."""
    source = ROOT
    if words[0].startswith("--from="):
        source = stages[words.pop(0).removeprefix("--from=")].root
    *wanted, place = words
    target = stage.root / os.path.join(stage.folder, place).lstrip("/")
    for each in wanted:
        if source != ROOT:
            shutil.copytree(source / each.lstrip("/"), target, symlinks=True, dirs_exist_ok=True)
            continue
        found = [path for path in context() if each == "." or fnmatch(path, each)]
        if not found:
            raise DockerfileError(f"COPY {each}: the repository has none, or .dockerignore leaves it out")
        for path in found:
            whole = target / path if each == "." else target / Path(path).name if place.endswith("/") else target
            whole.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, whole, follow_symlinks=False)


def run(stage: Stage, line: str, bound: list[str]) -> None:
    """Carries out RUN."""
    print(f"RUN {line}", file=sys.stderr)
    start = inside(stage, "--bind", str(stage.root), "/", "--ro-bind", "/etc/resolv.conf", "/etc/resolv.conf")
    arguments = [part for pair in stage.arguments.items() for part in ("--setenv", *pair)]
    outcome = subprocess.run([*start, *bound, *arguments, "/bin/sh", "-c", line])
    if outcome.returncode:
        raise DockerfileError(f"RUN {line} ended with code {outcome.returncode}")


def begin(rest: str, images: dict[str, Path], work: Path, outer: dict[str, str], stages: dict[str, Stage]) -> Stage:
    """Carries out FROM. outer: the arguments before the first FROM."""
    image, _, name = string.Template(rest).safe_substitute(outer).partition(" AS ")
    if image not in images:
        raise DockerfileError(f"no --image says which folder {image} is")
    stage = stages[name or str(len(stages))] = Stage(work / f"stage-{len(stages)}")
    subprocess.run(["cp", "-a", "--reflink=auto", str(images[image]), str(stage.root)], check=True)
    return stage


def settle(stage: Stage, word: str, rest: str) -> None:
    """Carries out an instruction that only says something of the image."""
    if word == "WORKDIR":
        stage.folder = rest
        (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
    elif word == "ENV":
        stage.variables |= dict(pair.split("=", 1) for pair in rest.split())
    elif word == "ARG":
        name, _, stage.arguments[name] = rest.partition("=")
    elif word == "USER":
        stage.user = rest
    elif word == "STOPSIGNAL":
        stage.signal = rest
    elif word == "HEALTHCHECK":
        stage.health = tuple(json.loads(rest.partition("CMD ")[2]))
    elif word in ("ENTRYPOINT", "CMD"):
        stage.entry += tuple(json.loads(rest))


def carry_out(text: str, images: dict[str, Path], work: Path, bound: list[str]) -> Stage:
    """Carries out a Dockerfile and returns its last stage. bound: variables and files of this machine that RUN sees, as
    bubblewrap takes them."""
    stages: dict[str, Stage] = {}
    outer: dict[str, str] = {}
    stage: Stage | None = None
    for word, rest in instructions(text):
        if word == "FROM":
            stage = begin(rest, images, work, outer, stages)
        elif stage is None:
            name, _, outer[name] = rest.partition("=")
        elif word == "RUN":
            run(stage, rest, bound)
        elif word == "COPY":
            copy(stage, rest.split(), stages)
        else:
            settle(stage, word, rest)
    if stage is None:
        raise DockerfileError("there is no FROM")
    return stage


def numbers_of_user(stage: Stage) -> tuple[str, str]:
    """Returns the numbers of the stage's user and group, by its /etc/passwd where the Dockerfile names them."""
    name, _, group = stage.user.partition(":")
    if name.isdigit():
        return name, group or "0"
    for line in (stage.root / "etc" / "passwd").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.split(":")[2], line.split(":")[3]
    raise DockerfileError(f"USER {name}: /etc/passwd has no such user")


@dataclass(frozen=True)
class Service:
    """What is served with an image, and asked of it. `mounts` are places in the image and the folders of this machine
    that are seen there, `arguments` follow the entry point, `path` and `body` are a request, and `key` leads to the
    text in its answer."""

    mounts: dict[str, Path]
    arguments: tuple[str, ...]
    path: str
    body: dict[str, object]
    key: tuple[str | int, ...]


def engine_service(engine: Path, port: int) -> Service:
    """Returns how the image of `tensorwright serve` serves an engine."""
    body = {"model": "pico", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    arguments = ("serve", "pico=/mnt", "--host", "127.0.0.1", "--port", str(port))
    return Service({"/mnt": engine.resolve()}, arguments, "v1/completions", body, ("choices", 0, "text"))


def triton_service(models: Path, port: int) -> Service:
    """Returns how an image of Triton serves a model repository of one model, whose engine lies where config.pbtxt names
    it. Raises DockerfileError if there are more models or none, or if the engine has no absolute path."""
    configs = [*models.glob("*/config.pbtxt")]
    if len(configs) != 1:
        raise DockerfileError(f"{models} has {len(configs)} models, and must have one: `tensorwright triton-repo`")
    config = configs[0]
    found = re.search(r'key: "engine", value: \{ string_value: "(/[^"]+)"', config.read_text(encoding="utf-8"))
    if found is None:
        raise DockerfileError(f"{config} names no engine by an absolute path: write it with `tensorwright triton-repo`")
    mounts = {"/models": models.resolve(), found[1]: Path(found[1])}
    ports = {"http": port, "grpc": port + 1, "metrics": port + 2}
    arguments = tuple(f"--{name}-{word}" for name in ports for word in ("address=127.0.0.1", f"port={ports[name]}"))
    body = {"text_input": PROMPT, "max_tokens": 8, "exclude_input_in_output": True}
    return Service(mounts, arguments, f"v2/models/{config.parent.name}/generate", body, ("text_output",))


def serve(stage: Stage, service: Service, port: int) -> str:
    """Serves as the stage's user, and returns the text of an answer. Raises DockerfileError."""
    user, group = numbers_of_user(stage)
    places = ["--ro-bind", str(stage.root), "/", "--perms", "1777", "--tmpfs", "/tmp"]
    for place, folder in service.mounts.items():
        (stage.root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for parent in [*Path(place).parents][-2::-1]:  # below /tmp, bubblewrap makes folders for root alone
            places += ["--perms", "0755", "--dir", str(parent)]
        places += ["--ro-bind", str(folder), place]
    start = [*inside(stage, *places), "--perms", "1777", "--tmpfs", "/dev/shm"]  # after /dev, which it lies in
    start += ["setpriv", "--reuid", user, "--regid", group, "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
    server = subprocess.Popen([*start, *stage.entry, *service.arguments])
    try:
        check = [word.replace(":8000/", f":{port}/") for word in stage.health]
        begun = time.monotonic()
        while subprocess.run([*start, *check], capture_output=True).returncode:
            if server.poll() is not None:
                raise DockerfileError(f"the server ended with code {server.returncode}")
            if time.monotonic() - begun > PATIENCE:
                raise DockerfileError(f"the health check is false {PATIENCE} s after the start")
            time.sleep(1)
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/{service.path}",
            json.dumps(service.body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=PATIENCE) as answer:
            text = json.load(answer)
        for key in service.key:
            text = text[key]
        os.kill(innermost(server.pid), signal.Signals[stage.signal])
        if code := server.wait(PATIENCE):
            raise DockerfileError(f"the server ended with code {code} after {stage.signal}")
        return str(text)
    finally:
        if server.poll() is None:
            server.kill()
        server.wait()


def innermost(process: int) -> int:
    """Returns the program that bubblewrap runs: it waits for a process that waits for the program."""
    for _ in range(2):
        process = int(Path(f"/proc/{process}/task/{process}/children").read_text().split()[0])
    return process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dockerfile", type=Path)
    parser.add_argument("--image", action="append", default=[], metavar="NAME=DIR", help="the folder of an image")
    served = parser.add_mutually_exclusive_group()
    served.add_argument("--engine", type=Path, help="an engine for the entry point to serve")
    served.add_argument("--models", type=Path, help="a model repository of one model, for an image of Triton to serve")
    parser.add_argument("--port", type=int, default=8123, help="where it is served (default: %(default)s)")
    parser.add_argument("--bind", action="append", default=[], type=Path, help="a file of this machine that RUN sees")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable that RUN sees")
    arguments = parser.parse_args()
    images = {name: Path(folder) for name, _, folder in (each.partition("=") for each in arguments.image)}
    bound = [part for path in arguments.bind for part in ("--ro-bind", str(path.resolve()), str(path))]
    bound += [part for each in arguments.env for part in ("--setenv", *each.split("=", 1))]
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="dockerfile-") as work:
        Path(work).chmod(0o755)  # The Dockerfile's user walks through it.
        try:
            service = None
            if arguments.engine is not None:
                service = engine_service(arguments.engine, arguments.port)
            elif arguments.models is not None:
                service = triton_service(arguments.models, arguments.port)
            stage = carry_out(arguments.dockerfile.read_text(encoding="utf-8"), images, Path(work), bound)
            print(json.dumps({"user": numbers_of_user(stage), "entry": stage.entry, "health": stage.health}))
            if service is not None:
                print(f"served: {serve(stage, service, arguments.port)!r}")
        except (DockerfileError, subprocess.SubprocessError, OSError) as error:
            sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

"""Runs the tritonserver of the nvidia-pytriton wheel in a virtual environment of its own, and checks that it can run.

`make triton-venv` makes that environment: the server's embedded Python needs numpy 1, and tensorwright beside it.
`make triton-serve REPO=...` runs this module, which starts the server on loopback with the paths of its parts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import click

from tensorwright.command import run_command
from tensorwright.errors import InvalidOptionError, MissingDependencyError

# These arguments suit a machine without a GPU, and let the server wait for requests at its end. An argument of the user
# replaces the one of the same name.
_USUAL = (
    "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1", "--exit-timeout-secs=60",
    "--pinned-memory-pool-byte-size=0", "--allow-gpu-metrics=false",
)  # fmt: skip


class ServerVenv:
    """The virtual environment in which the server runs. problem: the reason why the server cannot run, or None."""

    def __init__(self, path: Path):
        self.path = path
        self.problem: str | None = None
        self.environment: dict[str, str] = {}
        said = path / "unavailable"
        python = path / "bin" / "python"
        if said.is_file():
            self.problem = said.read_text().strip()
        elif not python.exists():
            self.problem = f"{path} is not there; `make triton-venv` makes it"
        else:
            self._look_at(python)

    def _look_at(self, python: Path) -> None:
        asked = "import sys, sysconfig as s; print('%d.%d' % sys.version_info[:2], s.get_path('purelib'), sep='\\n')"
        asked += "; print(s.get_config_var('LIBDIR'))"
        version, packages, libraries = subprocess.check_output([python, "-c", asked], text=True).splitlines()
        self.root = Path(packages) / "pytriton" / "tritonserver"
        self.server = self.root / "bin" / "tritonserver"
        self.backends = self.root / "backends"
        if not self.server.exists():
            self.problem = f"{self.path} holds no tritonserver; remove it, then `make triton-venv`"
            return
        stub = self.backends / "python" / "triton_python_backend_stub"
        stubs = self.root / "python_backend_stubs" / version / stub.name
        if not stub.exists() and not stubs.exists():
            self.problem = f"nvidia-pytriton has no stub for Python {version}, only for {_names(stubs.parent.parent)}"
            return
        if not stub.exists():
            shutil.copy(stubs, stub)
        self._find_libpython(stub, version, Path(libraries))

    def _find_libpython(self, stub: Path, version: str, libraries: Path) -> None:
        """Sets the environment variables with which the stub finds libpython: that of the environment's own Python, or
        else one that the loader knows."""
        name = f"libpython{version}.so.1.0"
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        environment["PATH"] = (
            f"{self.path / 'bin'}:{os.environ['PATH']}"  # The stub's interpreter finds its prefix by this path.
        )
        # A program at its own place finds the wheel's libraries, but one that is started through a link does not.
        paths = [self.root.parents[1] / "nvidia_pytriton.libs", libraries if (libraries / name).exists() else None]
        environment["LD_LIBRARY_PATH"] = ":".join(str(path) for path in paths if path)
        missing = [
            line.split(" =>")[0].strip()
            for program in (stub, self.server)
            for line in subprocess.run(
                ["ldd", program], env=environment, text=True, capture_output=True, check=True
            ).stdout.splitlines()
            if "not found" in line
        ]
        if missing:
            self.problem = (
                f"tritonserver needs {', '.join(sorted(set(missing)))}, which is neither in {libraries} nor known"
            )
            self.problem += f" to the loader; on Debian: apt install libpython{version}"
        self.environment = environment


def _names(folder: Path) -> str:
    return ", ".join(sorted(each.name for each in folder.iterdir())) if folder.is_dir() else "none"


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("venv")
@click.argument("repository")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(venv: str, repository: str, arguments: tuple[str, ...]) -> NoReturn:
    """Become the tritonserver of VENV, serving the models of REPOSITORY. ARGUMENTS are the server's own."""
    models = Path(repository).expanduser().absolute()
    if not models.is_dir():
        raise InvalidOptionError(f"{repository}: no such model repository; write one with: tensorwright triton-repo")
    found = ServerVenv(Path(venv).absolute())
    if found.problem:
        raise MissingDependencyError(f"there is no tritonserver: {found.problem}")
    given = {argument.partition("=")[0] for argument in arguments}
    usual = [text for text in (*_USUAL, f"--backend-directory={found.backends}") if text.partition("=")[0] not in given]
    # The embedded Python's path has the working folder. A checkout there would hide the installed package.
    os.chdir(models)
    command = [str(found.server), f"--model-repository={models}", *usual, *arguments]
    os.execve(found.server, command, found.environment)


if __name__ == "__main__":
    run_command(serve, None, "tritonserver")

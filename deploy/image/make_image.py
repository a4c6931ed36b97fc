"""Makes the image of `tensorwright serve` without Docker: Debian, Python, the wheel and its extras, and nothing else.

    python deploy/image/make_image.py dist/tensorwright-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl [--out build/image]

Debian's mmdebstrap makes the root, umoci the image (apt-get install mmdebstrap umoci). OUT becomes a folder in OCI's
layout, which podman, skopeo and containerd read:

    skopeo copy oci:build/image:latest docker-daemon:tensorwright:local

The image is what deploy/Dockerfile makes of Docker's own Python: the same user without rights, entry point, port and
signal. OCI's format knows no health check; deploy/compose.yaml and deploy/kubernetes/ have them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = {"mmdebstrap": "mmdebstrap", "umoci": "umoci"}
"""Programs, and the Debian packages that have them."""
SUITE, PYTHON = "bookworm", "3.11"
"""The release of Debian, and the Python that it has. The wheel must be for that."""
INCLUDED = "base-files,python3-minimal,libpython3-stdlib,ca-certificates,libstdc++6"
"""The packages of Debian. They are unpacked and not set up, so there is neither a shell nor a package manager."""
USER = 10001
MOST_BYTES = 300_000_000
"""A root of more bytes is refused: something is in it that should not be."""
PLACE = "opt/tensorwright"
NOT_NEEDED = (
    "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/lintian", "usr/share/zoneinfo",
    "var/lib/apt", "var/cache", "var/log", "usr/share/perl", "usr/lib/x86_64-linux-gnu/perl-base", "usr/bin/perl",
    "usr/lib/x86_64-linux-gnu/gconv", "usr/share/bash-completion", "usr/share/common-licenses",
)  # fmt: skip
"""What packages of Debian bring and the server does not read."""
PACKAGES_LEAVE = ("__pycache__", "tests")
"""Folders of Python packages that are left out: bytecode, which cannot be kept on a root that is read-only and is as
large as the source, and tests."""
SETTINGS = {
    "--config.user": f"{USER}:{USER}",
    "--config.entrypoint": "tensorwright",
    "--config.exposedports": "8000/tcp",
    "--config.stopsignal": "SIGTERM",
    "--config.workingdir": "/",
}
VARIABLES = ("PATH=/usr/bin:/bin", "HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1", "LANG=C.UTF-8")
LAUNCHER = f"""#!/usr/bin/python3 -P
import sys

sys.path.insert(0, "/{PLACE}")
from tensorwright.entry import tensorwright

tensorwright()
"""


class ImageError(Exception):
    """The image cannot be made."""


def run(*command: str | Path) -> None:
    outcome = subprocess.run([*map(str, command)], cwd=ROOT)
    if outcome.returncode:
        raise ImageError(f"{' '.join(map(str, command[:4]))} ... ended with code {outcome.returncode}")


def check_tools() -> None:
    missing = [package for program, package in TOOLS.items() if shutil.which(program) is None]
    if missing:
        raise ImageError(f"{' and '.join(missing)} are not installed: apt-get install {' '.join(missing)}")


def check_wheel(wheel: Path) -> None:
    tag = "cp" + PYTHON.replace(".", "")
    if not wheel.is_file() or not wheel.name.endswith(".whl"):
        raise ImageError(f"{wheel} is no wheel: `make wheel` makes one")
    if f"-{tag}-" not in wheel.name:
        raise ImageError(f"{wheel.name} is not for Python {PYTHON} ({tag}), which Debian {SUITE} has")


def check_out(out: Path) -> None:
    """Refuses a place that holds something other than an image, for it would be replaced."""
    if out.exists() and not (out / "oci-layout").is_file():
        raise ImageError(f"{out} exists already and is no image in OCI's layout: name another place with --out")


def install_packages(wheel: Path, extras: str, folder: Path) -> None:
    """Installs the wheel and what it needs into a folder, in the versions of constraints.txt, compiling nothing."""
    run(
        sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-compile", "--target", folder,
        "--python-version", PYTHON, "--only-binary", ":all:", "-c", "constraints.txt", f"{wheel.resolve()}[{extras}]",
    )  # fmt: skip
    for name in PACKAGES_LEAVE:
        for found in sorted(folder.rglob(name)):
            if found.is_dir() and "tensorwright" not in found.relative_to(folder).parts:
                shutil.rmtree(found)
    shutil.rmtree(folder / "bin", ignore_errors=True)


def make_root(packages: Path, root: Path) -> None:
    """Makes the file system of the image."""
    run(
        "mmdebstrap", "--mode=auto", "--variant=extract", f"--include={INCLUDED}", "--quiet",
        '--dpkgopt=path-exclude=/usr/share/doc/*', '--dpkgopt=path-exclude=/usr/share/man/*',
        '--dpkgopt=path-exclude=/usr/share/locale/*', SUITE, root,
    )  # fmt: skip
    for unneeded in NOT_NEEDED:
        path = root / unneeded
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    shutil.copytree(packages, root / PLACE, symlinks=True)
    launcher = root / "usr" / "bin" / "tensorwright"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    python = root / "usr" / "bin" / "python"
    if not python.exists():
        python.symlink_to("python3")
    (root / "etc" / "passwd").write_text(f"root:x:0:0::/:/none\ntensorwright:x:{USER}:{USER}::/tmp:/none\n")
    (root / "etc" / "group").write_text(f"root:x:0:\ntensorwright:x:{USER}:\n")
    known = sorted((root / "usr" / "share" / "ca-certificates" / "mozilla").glob("*.crt"))
    bundle = root / "etc" / "ssl" / "certs" / "ca-certificates.crt"  # what the package would make when it is set up
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_text("".join(path.read_text() for path in known))


def size_of(root: Path) -> int:
    """The bytes of all files, each counted once however many names it has."""
    seen = {(entry.st_dev, entry.st_ino): entry.st_size for path in root.rglob("*") if (entry := path.lstat())}
    return sum(seen.values())


def make_image(root: Path, out: Path, name: str) -> None:
    run("umoci", "init", "--layout", out)
    image = f"{out}:{name}"
    run("umoci", "new", "--image", image)
    run("umoci", "insert", "--image", image, root, "/")
    changes = [part for pair in SETTINGS.items() for part in pair]
    for variable in VARIABLES:
        changes += ["--config.env", variable]
    run("umoci", "config", "--image", image, *changes)
    run("umoci", "gc", "--layout", out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="a wheel of `make wheel`")
    parser.add_argument("--extras", default="serve", help="extras of pyproject.toml (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "image", help="default: build/image")
    parser.add_argument("--name", default="latest", help="the image's name in the layout (default: %(default)s)")
    parser.add_argument("--keep-root", type=Path, help="leave the file system in this folder too, to look at")
    arguments = parser.parse_args()
    try:
        check_tools()
        check_wheel(arguments.wheel)
        check_out(arguments.out)
        if arguments.keep_root is not None and arguments.keep_root.exists():
            raise ImageError(f"{arguments.keep_root} exists already")
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=arguments.out.parent) as work:
            packages, root, layout = Path(work, "packages"), Path(work, "root"), Path(work, "layout")
            install_packages(arguments.wheel, arguments.extras, packages)
            make_root(packages, root)
            size = size_of(root)
            if size > MOST_BYTES:
                raise ImageError(f"the image has {size / 1e6:.0f} MB, at most {MOST_BYTES / 1e6:.0f} are allowed")
            make_image(root, layout, arguments.name)
            shutil.rmtree(arguments.out, ignore_errors=True)
            os.rename(layout, arguments.out)
            packed = sum(path.stat().st_size for path in arguments.out.rglob("*") if path.is_file())
            if arguments.keep_root is not None:
                os.rename(root, arguments.keep_root)
    except ImageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.out}:{arguments.name}: {size / 1e6:.0f} MB, {packed / 1e6:.0f} MB packed")
    return 0


if __name__ == "__main__":
    sys.exit(main())

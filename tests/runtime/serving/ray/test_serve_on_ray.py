"""What `tensorwright serve --ray` refuses before it touches a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tensorwright.errors import InvalidOptionError, MissingDependencyError
from tensorwright.runtime.commands import serve as serve_command
from tensorwright.runtime.commands.cli import cli


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--resume",), "--resume needs --ray"),
        (("--ray", "--replicas", "3", "--max-replicas", "2"), "max_replicas must be at least replicas (3)"),
        (("--ray", "--keep-replicas"), "keep_replicas needs ray_address"),
        (("--ray", "--replicas", "0"), "replicas must be from 1 to 4096, got 0"),
        (("--ray", "--replica-cpus", "-1"), "replica_cpus must be positive, or None"),
        (("--ray", "--ray-address", "ray://x:1"), "not of its client server"),
        (("--ray", "--trace", "x.json"), "leave it out with --ray"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(
    toy_engine: Path, options: tuple[str, ...], error: str
) -> None:
    result = CliRunner().invoke(cli, ["serve", str(toy_engine), "--port", "0", *options])
    assert isinstance(result.exception, InvalidOptionError)
    assert error in str(result.exception)


def test_a_model_that_is_not_built_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["serve", str(tmp_path), "--port", "0", "--ray"])
    assert isinstance(result.exception, InvalidOptionError)
    assert "build it first, with build-engine" in str(result.exception)


def test_without_ray_the_option_says_what_to_install(toy_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_command, "find_spec", lambda name: None if name == "ray" else object())
    result = CliRunner().invoke(cli, ["serve", str(toy_engine), "--port", "0", "--ray"])
    assert isinstance(result.exception, MissingDependencyError)
    assert "--ray needs ray, which is not installed: pip install -e '.[serve,ray]'" in str(result.exception)


def test_an_address_without_a_cluster_is_refused(toy_engine: Path) -> None:
    result = CliRunner().invoke(cli, ["serve", str(toy_engine), "--port", "0", "--ray", "--ray-address", "here"])
    assert isinstance(result.exception, InvalidOptionError)
    assert "answers at here" in str(result.exception)

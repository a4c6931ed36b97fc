"""The declarations of options, and the signatures and pages that a person writes: they say the same."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from support.doc_words import ROOT
from tensorwright import LLM, build
from tensorwright.builder.cli import build_engine
from tensorwright.builder.rebuild_cli import rebuild_engine
from tensorwright.engine_format.targets import GPU_TARGETS
from tensorwright.errors import InvalidOptionError
from tensorwright.options.bench import LoadFields, LoadTestFields
from tensorwright.options.build import BuildFields, SourceFields
from tensorwright.options.build_choices import BuildChoices
from tensorwright.options.declare import Door, Option, find, options_at, options_in
from tensorwright.options.engine import EngineFields
from tensorwright.options.ray import RayFields
from tensorwright.options.request import GUIDED, SAMPLING
from tensorwright.options.server import NetworkFields, ServerFields
from tensorwright.options.simulate import FleetFields, GoalFields, TrafficFields
from tensorwright.options.transfer import RouterFields, TransferFields
from tensorwright.options.triton import INTERFACES, ModelFields, RepositoryFields
from tensorwright.runtime.commands.cli import cli
from tensorwright.runtime.serving.triton import interfaces
from tensorwright.runtime.serving.triton.model_options import NAMES, OTHER_DEFAULTS, TRITONS

DECLARED = options_in(
    BuildFields, EngineFields, LoadFields, LoadTestFields, ServerFields, NetworkFields, RayFields, ModelFields,
    RepositoryFields, FleetFields, TrafficFields, GoalFields, RouterFields, TransferFields, SAMPLING, GUIDED,
)  # fmt: skip


def test_llm_has_the_declared_options_and_defaults() -> None:
    declared = options_at(Door.LLM, EngineFields, BuildFields, SourceFields)
    keywords = {name: part.default for name, part in inspect.signature(LLM).parameters.items() if name != "model"}
    assert keywords == {option.name: option.shown(Door.LLM).default for option in declared}


def test_build_has_the_declared_options_and_defaults() -> None:
    keywords = {name: part.default for name, part in inspect.signature(build).parameters.items()}
    declared = {option.name: option.default for option in options_in(BuildFields)}
    assert {name: keywords[name] for name in declared} == declared
    others = {"model", "out", "revision", "verify", "dump", "overwrite", "progress", "begin"}
    assert set(keywords) == others | set(declared)


def test_first_use_of_a_model_directory_has_all_build_options_of_llm() -> None:
    for door in (Door.LLM, Door.RUN, Door.SERVE, Door.EVAL, Door.BENCH):
        assert options_at(door, BuildChoices) == options_at(door, BuildFields)


def test_commands_help_with_every_option_that_they_have() -> None:
    doors = [(option, door) for option in DECLARED for door in option.at if door is not Door.LLM]
    missing = [f"{option.name} at {door.value}" for option, door in doors if not option.shown(door).help]
    assert not missing, f"without a help text: {', '.join(missing)}"


def test_every_option_of_every_command_has_a_help_text() -> None:
    """Whole sentences or noun phrases: they begin with a capital letter or name what they go with, and end."""
    commands = [("build-engine", build_engine), ("rebuild", rebuild_engine), *walk("tensorwright", cli)]
    for name, command in commands:
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                words = (parameter.help or "").partition("[")[0].rstrip()
                assert re.fullmatch(r"(/|[A-Z]|[a-z]+: ).{8,}[.]", words, re.DOTALL), (
                    f"{name}: {parameter.opts}: {words!r}"
                )
                assert "Default:" not in (parameter.help or ""), f"{name}: {parameter.opts}: write [default: ...]"


def walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for word, inner in command.commands.items():
            yield from walk(f"{name} {word}", inner)


def test_parse_without_choices_or_repetition_is_refused() -> None:
    with pytest.raises(TypeError, match="'name': parse needs choices or a repeated option"):
        Option("name", str, None, {}, parse=str.upper)


def test_an_option_that_triton_starts_otherwise_is_declared_so() -> None:
    assert OTHER_DEFAULTS == {"watchdog": "restart", "guided_vocabulary": "eager", "generation_config": "neutral"}
    for option in options_at(Door.TRITON_REPO, EngineFields, ModelFields):
        default = option.shown(Door.TRITON).default
        if option.shown(Door.TRITON_REPO).default is None and default is not None:
            assert f"[default: {default}" in option.shown(Door.TRITON_REPO).help, option.name


def test_every_interface_of_triton_can_be_asked_for() -> None:
    assert tuple(interfaces.INTERFACES) == INTERFACES


def test_defaults_keep_their_own_rules() -> None:
    for option in DECLARED:
        option.check(option.default)


def test_an_option_that_a_target_lacks_is_refused_with_the_reason() -> None:
    cache = find(BuildFields, "kv_cache_dtype")
    cache.check_target("int8", "cpu")
    cache.check_target("auto", "onnx")
    with pytest.raises(InvalidOptionError, match="must be auto on target onnx, not int8: ONNX Runtime's cache"):
        cache.check_target("int8", "onnx")
    cache.check_target("int8", "tensorrt")
    cache.check_target("int4", "cpu")
    with pytest.raises(InvalidOptionError, match="must not be fp8 on target cpu: its kernels multiply integers"):
        cache.check_target("fp8", "cpu")
    for target in GPU_TARGETS:
        cache.check_target("fp8", target)
        with pytest.raises(InvalidOptionError, match=f"must not be int4 on target {target}: the kernels of GPUs"):
            cache.check_target("int4", target)


def test_tables_of_options_are_those_of_the_declarations() -> None:
    """docs/make_options.py has no old page to name, and the table of config.pbtxt has every parameter."""
    done = subprocess.run(
        [sys.executable, ROOT / "docs/make_options.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    section = (ROOT / "docs/triton.md").read_text(encoding="utf-8").partition("## Parameters")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == NAMES
    assert all(f"`{name}`" in section for name in TRITONS)


def test_limits_on_the_page_are_the_declared_ones() -> None:
    """docs/operating.md, "Limits": a row that names an option of the server, and begins its default with a number."""
    page = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
    declared = {
        option.shown(Door.SERVE).flag: option.shown(Door.SERVE).default
        for option in options_at(Door.SERVE, ServerFields, NetworkFields, EngineFields)
    }
    seen = 0
    for flag, words in re.findall(r"^\|[^|]*\| `(--[\w-]+)` \| ([^|]*) \|", page, re.MULTILINE):
        number = re.match(r"(\d+)(?: (MiB))?( tog| times)?", words)
        default = declared[flag]
        if number is None or number[3]:
            assert default is None, f"{flag}: {words}"
        elif default is not None:
            assert (f"{number[1]}{number[2]}" if number[2] else float(number[1])) == default, f"{flag}: {words}"
            seen += 1
    assert seen > 10

"""Shells complete commands, options, choices and paths; help texts have the declared options under headings."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from tensorwright.builder.cli import build_engine
from tensorwright.click_command import FILE, FOLDER, OTHERS, SectionedCommand, SectionedOption
from tensorwright.errors import MissingDependencyError
from tensorwright.runtime.commands.cli import PROGRAMS, cli

COMMANDS = {
    **{name: cli.resolve_command(click.Context(cli), [name])[1] for name in cli.list_commands(click.Context(cli))},
    "build-engine": build_engine,
}
SCRIPTS = Path(sys.executable).parent


def completed(words: str) -> dict[str, str]:
    """The completions of the last word, each with its kind."""
    program, *rest = words.split(" ")
    command = build_engine if program == "build-engine" else cli
    items = ShellComplete(command, {}, program, "_UNUSED").get_completions(rest[:-1], rest[-1])
    return {item.value: item.type for item in items}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tensorwright se", {"serve": "plain"}),
        ("tensorwright bench la", {"latency": "plain"}),
        ("tensorwright completion z", {"zsh": "plain"}),
        ("tensorwright serve --max-body-s", {"--max-body-size": "plain"}),
        ("tensorwright serve engine --load m", {"map": "plain"}),
        ("tensorwright build models/pico out --quantize-c", {"--quantize-config": "plain"}),
        ("tensorwright rebuild --kv-cache-d", {"--kv-cache-dtype": "plain"}),
        ("build-engine models/pico out --target tensorrt-", {"tensorrt-rtx": "plain"}),
        ("tensorwright run ou", {"ou": FILE}),
        ("build-engine models/pico out --quantize-config fi", {"fi": FILE}),
        ("tensorwright serve engine --watchdog-dir fo", {"fo": FOLDER}),
        ("tensorwright cache clear ke", {}),
        ("tensorwright serve engine --host lo", {}),
    ],
)
def test_the_last_word_is_completed(words: str, expected: dict[str, str]) -> None:
    assert completed(words) == expected


def test_without_the_builders_packages_a_shell_completes_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> click.Command:
        raise MissingDependencyError("no torch")

    monkeypatch.setitem(cli.loaders, "build", missing)
    assert completed("tensorwright build --quantize-c") == {}
    with pytest.raises(MissingDependencyError):
        cli.main(["build", "a", "b"], standalone_mode=False)


@pytest.mark.parametrize("program", PROGRAMS)
def test_bash_takes_the_script(program: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not here")
    script = subprocess.run(
        [SCRIPTS / "tensorwright", "completion", "bash"], capture_output=True, text=True, check=True
    ).stdout
    name = program.replace("-", "_")
    words = f"COMP_WORDS=({program} --ver); COMP_CWORD=1; _{name}_completion {program}"
    ask = f'{script}\n{words}; printf "%s" "${{COMPREPLY[*]}}"'
    environment = {"PATH": f"{SCRIPTS}:/usr/bin:/bin"}
    answer = subprocess.run([bash, "-c", ask, program], capture_output=True, text=True, env=environment, check=True)
    expected = "--version" if program == "tensorwright" else "--verify --version"
    assert answer.stdout.split() == expected.split(), answer.stderr


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_declared_options_have_a_heading(name: str) -> None:
    command = COMMANDS[name]
    members = command.commands.values() if isinstance(command, click.Group) else [command]
    for member in members:
        assert isinstance(member, SectionedCommand)
        declared = [parameter for parameter in member.params if isinstance(parameter, SectionedOption)]
        assert all(option.section != OTHERS for option in declared), [o.name for o in declared if o.section == OTHERS]
        text = member.get_help(click.Context(member, info_name=name, terminal_width=100))
        at = [text.index(f"\n{section}:\n") for section in dict.fromkeys(option.section for option in declared)]
        assert at == sorted(at)
        assert text.index(f"\n{OTHERS}:\n") > max(at, default=0)
        arguments = [each for each in member.params if isinstance(each, click.Argument)]
        shown = [each.make_metavar(click.Context(member)) for each in arguments]
        assert not {line.strip() for line in text.splitlines()} & {*shown}, "an argument is no option"

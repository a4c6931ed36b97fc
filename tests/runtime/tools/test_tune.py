"""`tensorwright tune`: how a value is judged, what is kept, and that engines run with it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from support.toy_engine import write_toy_engine
from tensorwright import LLM, SamplingParams
from tensorwright.errors import EngineError, InvalidOptionError
from tensorwright.runtime.commands.cli import cli
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.engine.tuning import Tuning, find_tuning, read_tunings, write_tuning
from tensorwright.runtime.tools import tune as tool
from tensorwright.runtime.tools.inspect import describe
from tensorwright.runtime.tools.tune import Setting, best_of, compare, thread_choices, works_for

HERE = ("a processor", 8, 1)
WORKS = ["one", "many"]


def test_a_value_is_taken_if_it_is_better_in_both_halves() -> None:
    before = {work: [1.0] * 8 for work in WORKS}
    better = {work: [0.9] * 8 for work in WORKS}
    lucky_once = {work: [0.5] + [1.0] * 7 for work in WORKS}  # something slowed the others down in one round
    little = {work: [0.98] * 8 for work in WORKS}
    traded = {"one": [0.5] * 8, "many": [2.5] * 8}
    assert best_of([before, lucky_once, better, little]) == 2
    assert best_of([before, lucky_once, little, traded]) == 0
    assert best_of([before]) == 0


def busy_times(true: list[float], seed: int) -> list[dict[str, list[float]]]:
    """Times of settings that take so long. Every run may take up to twice as long, and for a while all of them do."""
    noise, runs = random.Random(seed), 0
    times: list[dict[str, list[float]]] = [{work: [] for work in WORKS} for _ in true]
    for _ in range(40):
        for work in WORKS:
            for i, seconds in enumerate(true):
                runs += 1
                times[i][work].append(seconds * (1 + noise.random()) * (1.5 if 100 < runs < 200 else 1.0))
    return times


def test_a_busy_machine_decides_nothing() -> None:
    chosen = [best_of(busy_times([1.0, 1.0, 0.7], seed)) for seed in range(20)]
    assert 1 not in chosen
    assert chosen.count(2) >= 15


def test_settings_take_turns() -> None:
    order: list[int] = []

    def run(work: str, setting: Setting) -> float:
        order.append(setting.threads)
        return 1.0

    times = compare([Setting(1), Setting(2), Setting(3)], ["one"], run, 0.0)
    assert order == [1, 2, 3, 2, 3, 1, 3, 1, 2, 1, 2, 3]
    assert [len(one["one"]) for one in times] == [4, 4, 4]


def test_what_is_tried() -> None:
    assert thread_choices(2, 2) == [2, 1]
    assert thread_choices(12, 24) == [12, 1, 2, 4, 6, 8, 24]
    assert [(w.context, w.tokens) for w in works_for(64)] == [(63, 1), (63, 1), (0, 64)]
    sizes = native.work_cut_defaults()
    assert tool.stage_names() == ["threads", *sizes, "together"]
    assert tool.cut_choices("tasks_per_thread") == [1, 2, 8, 16]


def test_machines_are_kept_apart(tmp_path: Path) -> None:
    one, other = Tuning(*HERE, threads=4), Tuning("another", 2, 1, work_cut={"task_bytes": 8192})
    for tuning in (one, other):
        write_tuning(tmp_path, tuning, tuning.machine)
    assert find_tuning(tmp_path, HERE) == one
    write_tuning(tmp_path, Tuning(*HERE, threads=2), HERE)
    assert read_tunings(tmp_path) == [other, Tuning(*HERE, threads=2)]
    write_tuning(tmp_path, None, HERE)
    assert find_tuning(tmp_path, HERE) is None
    write_tuning(tmp_path, None, other.machine)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON|cannot be read"),
        ("[]", "must be an object"),
        ('{"format": "tensorwright-tuning", "machines": [{}]}', "each machine must have"),
        ("threads: 0", "threads of a machine is wrong, 0"),
        ("threads: 5000", "threads of a machine is wrong"),
        ('work_cut: {"task_bytes": -1}', "work_cut of a machine is wrong"),
        ("cores: true", "cores of a machine is wrong"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, content: str, said: str) -> None:
    if ": " in content and not content.startswith("{"):
        name, value = content.split(": ", 1)
        write_tuning(tmp_path, Tuning(*HERE), HERE)
        whole = json.loads((tmp_path / "tuning.json").read_text())
        whole["machines"][0][name] = json.loads(value)
        content = json.dumps(whole)
    (tmp_path / "tuning.json").write_text(content)
    with pytest.raises(EngineError, match=said) as caught:
        read_tunings(tmp_path)
    assert str(tmp_path / "tuning.json") in str(caught.value)


@pytest.fixture
def engine(pico_engine: Path, tmp_path: Path) -> Path:
    """The engine in a folder of its own, by links."""
    copy = tmp_path / "engine"
    for source in pico_engine.rglob("*"):
        if source.is_file():
            target = copy / source.relative_to(pico_engine)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.hardlink_to(source)
    return copy


def test_an_engine_runs_with_what_is_kept(engine: Path) -> None:
    machine = native.this_machine()
    params = SamplingParams(max_tokens=6, temperature=0.0, logprobs=1)

    def answer(**options: object) -> tuple[int, object]:
        with LLM(engine, kv_cache_memory="4MiB", **options) as llm:  # type: ignore[arg-type]
            output = llm.generate(["def read(path):"], params)[0].outputs[0]
            return llm.options.threads, (output.token_ids, output.logprobs)

    plain = answer()
    write_tuning(engine, Tuning(*machine, threads=1, work_cut={"task_bytes": 4096, "tasks_per_thread": 64}), machine)
    assert answer() == (1, plain[1])
    assert answer(threads=2) == (2, plain[1])
    assert describe(open_engine(engine))["tuning"]["threads"] == 1
    write_tuning(engine, Tuning("another processor", 64, 2, threads=1), ("another processor", 64, 2))
    write_tuning(engine, None, machine)
    assert answer() == plain
    write_tuning(engine, Tuning(*machine, work_cut={"tile_bytes": 1}), machine)
    with pytest.raises(EngineError, match="work_cut has no tile_bytes"):
        answer()
    write_tuning(engine, Tuning(*machine, work_cut={"task_bytes": 1}), machine)
    with pytest.raises(InvalidOptionError, match="task_bytes must be 4096 to"):
        answer()


def test_the_command_measures_and_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage with two other values, in as few rounds as there are halves. Besides those of the stage of threads, no
    step has a thread that waits for others, which would take long where others have the processors."""
    monkeypatch.setattr(tool, "LEAST_ROUNDS", 2)
    monkeypatch.setattr(tool, "FACTORS", (0.5, 2.0))
    monkeypatch.setattr(tool, "default_threads", lambda: 1)
    engine = write_toy_engine(tmp_path / "engine")
    done = CliRunner().invoke(cli, ["tune", str(engine), "--seconds", "0.1", "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert set(found["seconds"]) == {"decode 1", "decode 16", "prompt"}
    assert all(min(pair.values()) > 0 for pair in found["seconds"].values())
    assert Path(found.pop("path")) == engine / "tuning.json"
    assert read_tunings(engine) == [Tuning(**found)]
    shown = CliRunner().invoke(cli, ["tune", str(engine), "--clear"], catch_exceptions=False)
    assert (shown.exit_code, shown.stdout, (engine / "tuning.json").exists()) == (0, "", False)
    (engine / "tuning.json").write_text("{}")
    refused = CliRunner().invoke(cli, ["tune", str(engine)])  # before it measures
    assert isinstance(refused.exception, EngineError)
    assert "remove it" in str(refused.exception)
    for seconds in ("0", "nan"):
        wrong = CliRunner().invoke(cli, ["tune", str(engine), "--seconds", seconds])
        assert isinstance(wrong.exception, InvalidOptionError)

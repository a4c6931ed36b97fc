"""What all tests share: engines of the bundled model, built once; the order in which files run on several workers; and
a note of what this machine cannot run."""

from __future__ import annotations

import atexit
import fcntl
import gc
import logging
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.unraisableexception import gc_collect_iterations_key
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from support.fake_hub import FakeHub, point_at, running
from support.file_costs import pytest_runtest_setup, pytest_runtest_teardown  # noqa: F401  hooks of pytest
from support.known_traces import folder_of_traces, known_traces
from support.leftovers import changes, noted_state, process_state
from support.places import ROOT, TESTS

SLOW_ROOMS = (
    "benchmarks", "builder", "cpp", "end_to_end", "fuzz", "gpu", "hostile", "insight/test_convert_heads.py",
    "insight/test_diff.py", "insight/test_explain.py", "insight/test_published_sizes.py", "insight/test_report.py",
    "models/test_train_eagle3.py", "models/test_train_medusa.py", "models/test_train_pico.py", "plugins/gpu",
    "plugins/tensorrt", "plugins/test_isa_files.py", "plugins/test_quantized_matmul.py", "runtime/engine/ranks",
    "runtime/engine/tensorrt", "runtime/guided", "runtime/serving", "simulation", "test_families_page.py",
    "test_survey.py",
)  # fmt: skip
"""`make check` leaves them out: their tests are marked slow here. With -m 'not slow' they are not even imported."""

LONGEST_FIRST = (
    "builder/test_crashes.py", "cpp/test_cpp.py", "end_to_end/test_batch_invariance.py",
    "runtime/serving/tritonserver", "plugins/tensorrt", "builder/test_build_memory.py", "simulation",
    "end_to_end/test_families.py", "runtime/serving/server", "runtime/serving/ray", "end_to_end",
    "insight/test_estimate.py", "plugins/test_isa_files.py", "runtime/tools/test_tune.py",
    "insight/test_convert_heads.py", "hostile", "builder", "plugins/gpu", "runtime/engine/tensorrt",
)  # fmt: skip
"""What begins first, so that no worker is left with a long file while the others have nothing more to do. `python
tests/support/file_costs.py build/test.xml` shows after `make test` what belongs here. test_crashes.py comes before
them: it forks hundreds of times, which takes three times as long in a worker that has grown."""

TOGETHER = ("builder/onnx", "plugins/tensorrt", "runtime/serving/tritonserver", "runtime/serving/server/api")
"""Folders that go to one worker as a whole: what their tests share takes longer to make than the tests take."""

NAMES_OF_KERNELS = {"index", "kernel", "level"}
"""Parameters of tests/plugins that say which kernel or instruction set computes a case. Such a case is the same on
every processor that has the kernel, and `make test` has it: a run for a smaller processor leaves it out. What remains
there computes with the kernels that the smaller processor chooses."""

VOCABULARY = 8192
"""As many tokens as pico has, so that loads of requests for pico are loads for these too."""

TRACING_ITSELF = (
    "builder/test_trace.py", "builder/test_trace_attention_sinks.py", "builder/test_trace_ops.py",
    "builder/test_trace_refusals.py", "builder/test_fix_longrope.py", "builder/test_fix_dynamic_rope.py",
    "builder/test_collector.py",
    "builder/test_interruptible.py", "builder/test_interrupts.py", "builder/test_killed_build.py",
)  # fmt: skip
"""Tests of what a trace does: these trace every model anew."""


def pytest_configure(config: pytest.Config) -> None:
    # At its end pytest collects garbage five times over, for errors in finalizers. An engine that a test dropped in a
    # cycle is closed by another thread after the first time, and freed by the second.
    config.stash[gc_collect_iterations_key] = 2
    # A busy machine draws examples slowly, which is no fault of a test. Every run draws the same examples, so that what
    # fails in one fails in the next; TENSORWRIGHT_EXPLORE=1 draws others, to look for faults.
    explores = os.environ.get("TENSORWRIGHT_EXPLORE", "") not in ("", "0")
    settings.register_profile(
        "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=not explores,
        **({} if explores else {"database": None}),
    )  # fmt: skip
    settings.load_profile("any machine")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out files that -m would deselect all tests of: to import them all takes many seconds."""
    left_out = config.option.markexpr == "not slow" and _place(collection_path, SLOW_ROOMS) is not None
    if config.option.markexpr.startswith("computes") and collection_path.match("test_*.py"):
        left_out = "pytest.mark.computes" not in collection_path.read_text(encoding="utf-8")
    return True if left_out else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr.startswith("computes"):
        repeated = [item for item in items if _names_its_kernel(item)]
        items[:] = [item for item in items if not _names_its_kernel(item)]
        config.hook.pytest_deselected(items=repeated)
    for item in items:
        if _place(item.path, SLOW_ROOMS) is not None:
            item.add_marker(pytest.mark.slow)
    ranks = {place: rank for rank, place in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(_place(item.path, LONGEST_FIRST) or "", len(ranks)))


def _names_its_kernel(item: pytest.Item) -> bool:
    """Whether a case is computed by the kernel that it names. The tests of the choice itself name levels too."""
    chosen = NAMES_OF_KERNELS & set(item.callspec.params if hasattr(item, "callspec") else ())
    return bool(chosen) and item.path.parent == TESTS / "plugins" and item.path.name != "test_dispatch.py"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Modules and tests stay until the end: the collector of cycles need not look at them again and again, neither
    while they are made nor later (`pytest_collection_finish`)."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    # Compiled modules report what is left of their objects when the interpreter ends, so everything is looked at once
    # more there; but not before, when pytest collects garbage four times over.
    atexit.register(gc.unfreeze)


@cache
def _place(path: Path, places: tuple[str, ...]) -> str | None:
    """The first of the places that `path` lies in."""
    name = path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else ""
    return next((place for place in places if name == place or name.startswith(f"{place}/")), None)


class LongestFirst(LoadFileScheduling):
    """--dist loadfile in the order of collection, and with folders that stay on one worker."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return _place(ROOT / file, TOGETHER) or file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return LongestFirst(config, log)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run that all of xdist's workers share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def cache_home(shared_folder: Path) -> Path:
    """$XDG_CACHE_HOME of this run: no test may pass because of what a machine built or compiled before, nor leave
    anything there. The caches of other programs stay where they are."""
    before = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("PIP_CACHE_DIR", str(before / "pip"))
    if not (Path.home() / ".ccache").exists():
        os.environ.setdefault("CCACHE_DIR", str(before / "ccache"))
    os.environ["XDG_CACHE_HOME"] = str(shared_folder / "cache")
    return shared_folder / "cache"


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left_to_other_files() -> Iterator[None]:
    """The worker runs other files after this one, in an order that depends on the machine."""
    before, put_back = process_state(), noted_state()
    yield
    put_back()
    left = changes(before, process_state())
    assert not left, f"the tests of this file leave behind: {'; '.join(left)}"


@pytest.fixture
def hears_interrupts() -> Iterator[None]:
    """SIGINT raises a KeyboardInterrupt in this process, and Python loses none. A shell starts what runs in its
    background with interrupts ignored. Where the exception is raised in a callback of the collector of cycles, as
    hypothesis has one, or in a finalizer that the collector calls, Python prints it and goes on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    collects = gc.isenabled()
    gc.disable()
    yield
    if collects:
        gc.enable()
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module", autouse=True)
def _known_traces(request: pytest.FixtureRequest) -> Iterator[None]:
    """A model is traced once for these sources. Where no test has imported the builder, nothing will be traced."""
    with ExitStack() as stack:
        traces = "tensorwright.builder" in sys.modules
        if traces and _place(request.path, TRACING_ITSELF) is None:
            stack.enter_context(known_traces(folder_of_traces()))
        yield


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command that runs in the test's process, such as `serve`, sets up the logging of the whole process."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in [each for each in root.handlers if each not in handlers]:
        root.removeHandler(handler)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub on this machine, and an empty cache of downloads."""
    made = FakeHub()
    with running(made) as address:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        point_at(monkeypatch, address)
        yield made


@pytest.fixture(scope="session")
def pico_model() -> Path:
    """The bundled checkpoint: a trained Llama of 16 M parameters, bfloat16."""
    return ROOT / "models" / "pico"


@pytest.fixture(scope="session")
def pico_engine(pico_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of pico as it is stored, in bfloat16."""
    return _engine_once(tmp_path_factory, pico_model, "bfloat16")


@pytest.fixture(scope="session")
def pico_engine_float32(pico_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _engine_once(tmp_path_factory, pico_model, "float32")


@pytest.fixture(scope="session")
def pico_draft_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of the smaller checkpoint with the same tokenizer, in bfloat16."""
    return _engine_once(tmp_path_factory, ROOT / "models" / "pico-draft", "bfloat16")


@pytest.fixture(scope="session")
def pico_heads_engine(pico_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of pico with its EAGLE-3 heads, in bfloat16."""
    return _engine_once(tmp_path_factory, pico_model, "bfloat16", heads=ROOT / "models" / "pico-eagle3")


@pytest.fixture(scope="session")
def pico_engine_int8_kv(pico_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bfloat16 with an int8 KV cache."""
    return _engine_once(tmp_path_factory, pico_model, "bfloat16", "int8")


@pytest.fixture(scope="session")
def pico_engine_int4_kv(pico_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bfloat16 with an int4 KV cache; its config.json says what that costs."""
    return _engine_once(tmp_path_factory, pico_model, "bfloat16", "int4", accuracy="quick")


@pytest.fixture(scope="session")
def pico_engine_onnx(pico_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """float32, of target onnx."""
    return _engine_once(tmp_path_factory, pico_model, "float32", target="onnx")


@pytest.fixture(scope="session")
def engine_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a function from a variant of tiny_models to its engine in bfloat16, which is built once."""
    made: dict[str, Path] = {}

    def get(variant: str) -> Path:
        from support.tiny_models import make_variant
        from tensorwright import build

        if variant not in made:
            folder = tmp_path_factory.mktemp(variant)
            sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 512}
            model = make_variant(folder / "model", variant, seed=5, **sizes)
            made[variant] = build(model, folder / "engine", dtype="bfloat16", accuracy="none").path
        return made[variant]

    return get


def _engine_once(
    factory: pytest.TempPathFactory,
    model: Path,
    dtype: str,
    kv: str = "auto",
    target: str = "cpu",
    accuracy: str = "none",
    heads: Path | None = None,
) -> Path:
    """Built once per run, whichever of xdist's workers comes first. TENSORWRIGHT_TEST_ENGINES: a folder of engines that
    were built before, for an environment that cannot build."""
    from tensorwright import build

    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    shared = Path(os.environ.get("TENSORWRIGHT_TEST_ENGINES", shared))
    engine = shared / f"{model.name}-{dtype}-{kv}-{target}{'' if heads is None else '-heads'}"
    with (shared / f"{engine.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not engine.exists():
            build(model, engine, target=target, dtype=dtype, kv_cache_dtype=kv, accuracy=accuracy, heads=heads)
    return engine


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Kernels that this processor lacks are skipped by their tests; say so where everybody looks."""
    skipped = terminalreporter.stats.get("skipped", [])
    servers = [report for report in skipped if "serving/tritonserver/" in report.nodeid]
    if servers:
        terminalreporter.write_line(f"not covered here, the real tritonserver: {servers[0].longrepr[2]}")
    try:
        from tensorwright.runtime import _runtime
    except ImportError:
        return
    # A build has the kernels of one kind of processor, so nothing is missing of the other's.
    arm = platform.machine() == "aarch64"
    features = _runtime.cpu_features().items()
    missing = [name for name, present in features if not present and name.startswith("neon") == arm]
    if missing:
        terminalreporter.write_line(f"not covered here, the processor lacks: {', '.join(missing)}")

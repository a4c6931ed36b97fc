"""Who may import whom, in Python and in C++; and that every pass and every plugin has its test.

The tables are those of ARCHITECTURE.md. A new C++ file of runtime/core must be put into LAYERS below.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("engine_format", "options", "models", "ir", "plugins", "passes", "builder", "runtime", "insight")
BUILD_PACKAGES = {"torch", "transformers", "onnx"}

LEAVES = (
    "durable", "errors", "gguf_names", "hub", "installing", "interrupts", "json_text", "new_file", "number_checks",
    "sizes",
    "durations",
)  # fmt: skip
"""Files of tensorwright/ that import nothing but Python's own and each other; every room may import them."""
OF_LEAVES = ("huggingface_hub",)
"""The packages that a leaf imports when it is called: hub.py downloads with this one."""
ABOVE_ALL = ("__init__", "__main__", "click_command", "click_options", "command", "entry", "triton_model")
"""The other files of tensorwright/: the public names, and where commands and Triton begin."""
# What a room may import beside itself, `tensorwright` (the version) and LEAVES.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "engine_format": (),
    "options": ("engine_format",),
    "models": ("engine_format", "ir.weights"),
    "ir": ("engine_format",),
    "plugins": ("engine_format", "ir"),
    "passes": ("engine_format", "ir", "plugins"),
    "builder": ("engine_format", "options", "models", "ir", "plugins", "passes", "command"),
    "runtime": ("engine_format", "options"),
    "insight": ("engine_format", "options", "models", "ir", "plugins", "passes", "builder", "runtime"),
}
# The rooms of runtime/, from the lowest to the highest: a room may import those before it. Those of one line may not
# import each other.
RUNTIME_LAYERS = (
    ("base", "routing"),
    ("text",),
    ("chat_formats",),
    ("engine",),
    ("guided",),
    ("requests",),
    ("api", "c_interface"),
    ("transfer",),
    ("tools", "serving/server", "serving/triton", "serving/load_test"),
    ("serving/ray",),
    ("serving/router",),
    ("commands", "triton"),
)
# Files that may import more, and why.
EXCEPTIONS = {
    "builder/measure/accuracy.py": ("runtime",),  # measures the finished engine
    # A tokenizer is compared as an engine reads it.
    "builder/emit/text_side.py": ("runtime.text.special_tokens", "runtime.text.tokenizer"),
    "builder/measure/rank_threads.py": ("runtime._runtime",),  # runs the ranks of the finished engine
    "builder/emit/pack_rows.py": ("runtime._runtime",),  # the packer is C++: in numpy it takes minutes
    # TensorRT's engines run with the plugins' own launches.
    "runtime/engine/tensorrt/plugins.py": ("plugins.gpu",),
    # An adapter is a checkpoint that is read while the engine runs; merge-lora reads it in models/.
    "runtime/engine/adapters.py": ("models.peft_adapter",),
    "runtime/api/model_cache.py": ("builder",),  # LLM(model_dir) builds on first use
    "runtime/commands/cli.py": ("builder", "insight"),  # `tensorwright build`, `estimate` and the like
}
# The only places outside builder/ that see torch or transformers.
MAY_IMPORT_TORCH = {
    "models/train_pico.py", "models/distill.py", "models/eagle3.py", "models/train_eagle3.py", "models/medusa.py",
    "models/train_medusa.py", "models/train_pooled_heads.py",
}  # fmt: skip
# Compiling and interpreting GPU kernels; nothing at run time imports Triton.
MAY_IMPORT_TRITON = re.compile(
    r"plugins/\w+/gpu\w*\.py|plugins/gpu/(compile|inner_loops|interpret_child|sequences|unpack)\.py"
)


def python_files(room: str) -> list[Path]:
    folder = ROOT / ("src/tensorwright/options" if room == "options" else room)
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, at import time) of every import in a file. "from a import b" counts as a.b and, for "a.b" may be an
    attribute, is judged as such."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy = {id(inner) for node in ast.walk(tree) for inner in _lazy_part(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) not in lazy
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write it as tensorwright...."
            for alias in node.names:
                yield f"{node.module}.{alias.name}", id(node) not in lazy


def _lazy_part(node: ast.AST) -> Iterator[ast.AST]:
    """What runs only when a function is called, or never (TYPE_CHECKING)."""
    is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    if is_typing or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield from ast.walk(node)


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    faults = []
    for path in python_files(room):
        name = path.relative_to(ROOT).as_posix()
        allowed = (*LEAVES, room, *MAY_IMPORT[room], *EXCEPTIONS.get(name, ()))
        for module, _ in imports(path):
            inner = module.removeprefix("tensorwright.")
            if inner != module and inner.split(".")[0] in (*ROOMS, *LEAVES):
                if not any(within(inner, package) for package in allowed):
                    faults.append(f"{name} imports {module}")
            elif module.split(".")[0] in ROOMS:
                faults.append(f"{name} imports {module}; write tensorwright.{module}")
    assert not faults, "\n".join(faults)


def runtime_layer(name: str) -> tuple[int, str] | None:
    """The layer of a file or module of runtime/, given by its path from the root, and its room; None for others."""
    for index, rooms in enumerate(RUNTIME_LAYERS):
        for room in rooms:
            if name.startswith(f"runtime/{room}/"):
                return index, room
    return None


def test_rooms_of_the_runtime_import_downwards_only() -> None:
    faults = []
    for path in python_files("runtime"):
        name = path.relative_to(ROOT).as_posix()
        own = runtime_layer(name)
        if own is None:
            assert path.name == "__init__.py", f"{name}: in no room of RUNTIME_LAYERS"
            continue
        for module, _ in imports(path):
            other = runtime_layer(module.removeprefix("tensorwright.").replace(".", "/"))
            if other is not None and other[1] != own[1] and other[0] >= own[0]:
                faults.append(f"{name} imports {module}")
    assert not faults, "\n".join(faults)


def import_graph() -> dict[str, set[str]]:
    """Every module of the rooms and of src/tensorwright, and which others it imports, wherever the import stands."""
    paths = {path.relative_to(ROOT): path for room in ROOMS if room != "options" for path in python_files(room)}
    package = ROOT / "src/tensorwright"
    paths |= {path.relative_to(package): path for path in package.rglob("*.py") if "__pycache__" not in path.parts}
    modules = {".".join(name.with_suffix("").parts).removesuffix(".__init__"): path for name, path in paths.items()}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = {name.removeprefix("tensorwright.") for name, _ in imports(path)}
        named = names | {name.rpartition(".")[0] for name in names}  # of "from a import b": a too, which runs first
        graph[module] = {name for name in named if name in modules and name != module}
    return graph


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules in which each reaches each other one."""

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for other in graph[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        return seen

    reached = {module: reach(module) for module in graph}
    found = [{other for other in reached[module] if module in reached[other]} for module in graph]
    return [circle for index, circle in enumerate(found) if circle and circle not in found[:index]]


def test_no_circle_of_files() -> None:
    """Imports inside functions and for types count: a circle of them is a circle of ideas too."""
    found = [sorted(circle) for circle in circles(import_graph())]
    assert not found, f"files that import each other: {found}"


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert circles(graph) == [{"a", "b", "c"}]
    assert "interrupts" in import_graph()["entry"], "imports of src/tensorwright are not seen"


@pytest.mark.parametrize("room", ["models", "plugins", "runtime"])
def test_only_the_builder_sees_torch(room: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in python_files(room)
        for module, _ in imports(path)
        if module.split(".")[0] in BUILD_PACKAGES and path.relative_to(ROOT).as_posix() not in MAY_IMPORT_TORCH
    ]
    assert not faults, "\n".join(faults)


def test_only_gpu_kernels_see_triton() -> None:
    seen = {
        path.relative_to(ROOT).as_posix(): at_once
        for room in ROOMS
        for path in python_files(room)
        for module, at_once in imports(path)
        if within(module, "triton")
    }
    assert not [name for name in seen if not MAY_IMPORT_TRITON.fullmatch(name)]
    assert seen["plugins/gpu/compile.py"] is False, "the runtime imports it: Triton must be imported when it is called"


def test_mypy_reads_what_is_imported() -> None:
    """What pyproject.toml lets mypy skip would have the type Any, and mypy would not say so."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]["overrides"]
    patterns = {name: each["follow_imports"] for each in settings for name in each["module"]}

    def follows(module: str) -> str:
        """The full name comes first, then the longest name with a star, as for mypy."""
        longest = max((name for name in patterns if within(module, name.removesuffix(".*"))), key=len, default="")
        return patterns.get(module) or patterns.get(longest, "normal")

    imported = {module for room in ROOMS for path in python_files(room) for module, _ in imports(path)}
    assert not [module for module in imported if follows(module) != "normal"]
    assert [follows(f"transformers.models.{name}.X") for name in ("llama", "bert")] == ["normal", "skip"]
    assert [follows(f"torch._dynamo.{name}") for name in ("config", "utils")] == ["normal", "skip"]


def test_the_runtime_imports_the_builder_only_when_called() -> None:
    eager = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in python_files("runtime")
        for module, at_once in imports(path)
        if at_once and within(module, "tensorwright.builder")
    ]
    assert not eager, "\n".join(eager)


def test_the_public_package_holds_only_names_leaves_and_the_command() -> None:
    names = {path.name for path in (ROOT / "src/tensorwright").glob("*.py")}
    assert names == {f"{name}.py" for name in (*ABOVE_ALL, *LEAVES)}
    modules = {module for leaf in LEAVES for module, _ in imports(ROOT / f"src/tensorwright/{leaf}.py")}
    others = {module for module in modules if not any(within(module, f"tensorwright.{leaf}") for leaf in LEAVES)}
    assert {module.split(".")[0] for module in others} <= {*sys.stdlib_module_names, *OF_LEAVES}


def test_the_check_itself_sees_every_form(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "import torch.nn\nfrom tensorwright import runtime\n"
        "if TYPE_CHECKING:\n    import numpy\n"
        "def f():\n    from tensorwright.builder.build import build\n"
    )
    assert dict(imports(path)) == {
        "torch.nn": True,
        "tensorwright.runtime": True,
        "numpy": False,
        "tensorwright.builder.build.build": False,
    }


def passes() -> list[str]:
    """Every file of passes/ but the two lists of passes; what they share lies in passes/rewriting."""
    lists = ("__init__", "pipeline", "recognition")
    return sorted(path.stem for path in (ROOT / "passes").glob("*.py") if path.stem not in lists)


def test_a_file_of_passes_is_one_function_of_its_name_that_the_pipeline_runs() -> None:
    run = {module for name in ("pipeline", "recognition") for module, _ in imports(ROOT / f"passes/{name}.py")}
    missing = [name for name in passes() if f"tensorwright.passes.{name}.{name}" not in run]
    assert not missing, f"passes that the pipeline does not take from a file of their name: {', '.join(missing)}"


def test_every_pass_has_its_test() -> None:
    assert passes(), "no passes found: the check is broken"
    missing = [name for name in passes() if not (ROOT / f"tests/passes/test_{name}.py").exists()]
    assert not missing, f"passes without tests/passes/test_<pass>.py: {', '.join(missing)}"


def test_every_plugin_has_its_test() -> None:
    plugins = [path.parent.name for path in sorted((ROOT / "plugins").glob("*/op.py"))]
    assert plugins, "no plugins found: the check is broken"
    missing = [name for name in plugins if not (ROOT / f"tests/plugins/test_{name}.py").exists()]
    assert not missing, f"plugins without tests/plugins/test_<plugin>.py: {', '.join(missing)}"


# C++. A folder is a layer. Each layer may include the layers listed for it, and itself.
_BASE = {"runtime/core/base", "runtime/core/interface"}
MAY_INCLUDE: dict[str, set[str]] = {
    "runtime/core/base": set(),
    "kernels": {"runtime/core/base"},
    "runtime/core/interface": {"runtime/core/base"},
    "runtime/core/rows": {"kernels", "runtime/core/base"},
    "runtime/core/plan": {"kernels", *_BASE},
    "runtime/core/ops": {"kernels", *_BASE, "runtime/core/plan"},
    "instructions": {"kernels", *_BASE, "runtime/core/plan", "runtime/core/ops"},
    "runtime/core/executor": {"kernels", *_BASE, "runtime/core/plan", "runtime/core/ops", "runtime/core/rows"},
    "runtime/core/cuda": {*_BASE, "runtime/core/ops"},
    # What follows knows of tensors only what interface/executor.h says.
    "runtime/core/ranks": _BASE,
    "runtime/core/cache": _BASE,
    "runtime/core/tiers": {*_BASE, "runtime/core/cache"},
    "runtime/core/scheduler": {*_BASE, "runtime/core/cache"},
    "runtime/core/sampling": {*_BASE, "runtime/core/rows", "runtime/core/scheduler"},
    "runtime/core/speculation": {
        *_BASE, "runtime/core/rows", "runtime/core/cache", "runtime/core/scheduler", "runtime/core/sampling",
    },
    "runtime/core/engine": {
        *_BASE, "runtime/core/rows", "runtime/core/cache", "runtime/core/scheduler", "runtime/core/sampling",
        "runtime/core/speculation", "runtime/core/tiers",
    },
    "runtime/core/simulation": {
        *_BASE, "runtime/core/cache", "runtime/core/scheduler", "runtime/core/engine", "runtime/core/tiers",
    },
    "runtime/c_interface/include": set(),
    "runtime/c_interface/triton": set(),  # a program of the interface, whose headers it finds as others do
    "runtime/c_interface": {
        *_BASE, "runtime/c_interface/include", "runtime/core/executor", "runtime/core/scheduler", "runtime/core/engine",
        "runtime/core/speculation",
    },
}  # fmt: skip
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
C_HEADERS = {"arm_neon.h", "float.h", "immintrin.h", "math.h", "stdbool.h", "stddef.h", "stdint.h", "string.h"}
ISA_FILES = sorted(path for path in (ROOT / "plugins").glob("*/*.cc") if re.match(r"scalar|x86_|arm_", path.stem))


def cpp_files() -> list[Path]:
    return sorted(
        path for room in ("runtime", "plugins") for path in (ROOT / room).rglob("*") if path.suffix in (".h", ".cc")
    )


def includes(path: Path) -> list[tuple[str, str]]:
    """("<" or '"', header) of every #include."""
    return INCLUDE.findall(path.read_text(encoding="utf-8"))


def layer(path: str) -> str:
    """The layer of a file given by its path from the root."""
    folder, _, name = path.rpartition("/")
    if folder.startswith("plugins/"):
        return "instructions" if name.startswith(("instruction.", "instruction_")) else "kernels"
    return folder


def is_binding(name: str) -> bool:
    """Whether a file belongs to a Python module. A plugin's bindings.cc shows its kernels to tests."""
    return name.startswith("runtime/bindings/") or name.endswith(("/bindings.cc", "/bindings.h"))


def test_cpp_layers_include_downwards_only() -> None:
    faults = []
    for path in cpp_files():
        name = path.relative_to(ROOT).as_posix()
        own = layer(name)
        if is_binding(name):
            continue  # they are above everything
        for mark, header in includes(path):
            if mark == '"' and layer(header) not in (own, *MAY_INCLUDE[own]):
                faults.append(f"{name} includes {header}")
    assert not faults, "\n".join(faults)


def test_quoted_includes_start_at_the_root() -> None:
    faults = [
        f"{path.relative_to(ROOT)} includes {header}"
        for path in cpp_files()
        for mark, header in includes(path)
        if mark == '"' and not (ROOT / header).is_file()
    ]
    assert not faults, "\n".join(faults)


# The headers of names that some standard library's other headers bring along, and others' do not: GCC 13 and later took
# <cstdint> out of many.
HEADERS_OF = {
    r"\bu?int(8|16|32|64)_t\b": {"cstdint", "stdint.h"},
    r"\b(memcpy|memset|memcmp|strlen)\(": {"cstring", "string.h"},
    r"\bstd::(unique_ptr|shared_ptr|make_unique|make_shared)\b": {"memory"},
    r"\bstd::(sort|stable_sort|nth_element|min_element|max_element|find_if|fill|any_of|all_of)\b": {"algorithm"},
    r"\bstd::(function)\b": {"functional"},
    r"\bstd::(optional|nullopt)\b": {"optional"},
    r"\bstd::(numeric_limits)\b": {"limits"},
    r"\bstd::(runtime_error|logic_error|invalid_argument)\b": {"stdexcept"},
    r"\bstd::(mutex|lock_guard|unique_lock)\b": {"mutex"},
    r"\bstd::(atomic)\b": {"atomic"},
    r"\bstd::(chrono)\b": {"chrono"},
    r"\bstd::(array)\b": {"array"},
}
COMMENT = re.compile(r"//[^\n]*")


def headers_seen(path: Path, seen: set[Path]) -> set[str]:
    """Returns the library headers that a file includes, itself or by the project's own headers."""
    if path in seen:
        return set()
    seen.add(path)
    found = {header for mark, header in includes(path) if mark == "<"}
    for mark, header in includes(path):
        if mark == '"':
            found |= headers_seen(ROOT / header, seen)
    return found


def test_cpp_files_include_the_headers_of_what_they_name() -> None:
    faults = []
    for path in [*cpp_files(), *(ROOT / "tests/cpp").glob("*.*")]:
        code, seen = COMMENT.sub("", path.read_text(encoding="utf-8")), headers_seen(path, set())
        for name, headers in HEADERS_OF.items():
            if (used := re.search(name, code)) and not headers & seen:
                faults.append(f"{path.relative_to(ROOT)} uses {used[0]} without {' or '.join(sorted(headers))}")
    assert not faults, "\n".join(faults)


def test_only_the_bindings_know_python() -> None:
    python = re.compile(r"nanobind/|Python\.h|pybind11/|torch/|ATen/|c10/")
    faults = [
        f"{path.relative_to(ROOT)} includes {header}"
        for path in cpp_files()
        if not is_binding(path.relative_to(ROOT).as_posix())
        for _, header in includes(path)
        if python.match(header)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("path", ISA_FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_instruction_set_files_see_only_c_headers(path: Path) -> None:
    """Directly or through headers of ours: a C++ header could leak weak symbols compiled for the wrong processor."""
    seen: set[str] = set()
    todo = [path.relative_to(ROOT).as_posix()]
    while todo:
        name = todo.pop()
        for mark, header in includes(ROOT / name):
            if mark == "<":
                assert header in C_HEADERS, f"{name} includes <{header}>"
            elif header not in seen:
                seen.add(header)
                todo.append(header)

"""Opens an engine's folder, and checks every file against checksums.txt before it is used."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from tensorwright.engine_format.checksums import (
    REMEDY,
    FileMark,
    FileSum,
    check_unchanged,
    read_checksums,
    read_whole,
    verify_file,
    verify_files,
)
from tensorwright.engine_format.engine_config import EngineConfig, check_format, checked_token_ids
from tensorwright.engine_format.file_names import CHECKSUMS, CONFIG, GENERATION_CONFIG
from tensorwright.engine_format.strict_json import read_object
from tensorwright.errors import EngineError


@dataclass(frozen=True)
class EngineFolder:
    """A checked engine. It keeps what it read when it was opened, so that its folder may be replaced meanwhile."""

    path: Path
    config: EngineConfig
    files: dict[str, FileSum] = field(repr=False)
    """The files that checksums.txt lists, by relative path."""
    texts: dict[str, bytes] = field(repr=False)
    """The bytes of the text files, by relative path."""
    marks: dict[str, FileMark] = field(repr=False)
    """The marks of all other files, for `check_unchanged`."""
    created: int = 0
    """Unix time in seconds at which config.json was written or copied."""
    rank: int | None = None
    """The rank whose files were checked; None if those of all ranks were."""

    @classmethod
    def open(cls, path: str | Path, meanwhile: Callable[[Self], None] | None = None, rank: int | None = None) -> Self:
        """Checks format, version, target, sizes and checksums. Raises EngineError, which names the file and the remedy.

        meanwhile: called with the engine while the largest file is hashed; all others are checked by then. rank: of a
        parallel engine, the one whose files must be there and are checked; those of others may be missing.
        """
        root = _require_folder(path)
        config_path = root / CONFIG
        created, data = int(config_path.stat().st_mtime), read_whole(config_path)
        values = read_object(config_path, data)
        # The version comes before the checksums: another version may check itself in another way.
        check_format(config_path, values)
        files = read_checksums(root)
        if CONFIG not in files:
            raise EngineError(f"{root / CHECKSUMS}: does not list {CONFIG}; {REMEDY}")
        texts = {CONFIG: data}
        marks: dict[str, FileMark] = {}
        verify_file(root, CONFIG, files[CONFIG], texts, marks)
        engine = cls(root, EngineConfig.from_dict(values, config_path), files, texts, marks, created, rank)
        if engine.config.ranks == 1:
            engine = replace(engine, rank=None)
        elif rank is not None and not 0 <= rank < engine.config.ranks:
            raise EngineError(f"{root}: the engine has {engine.config.ranks} ranks, and none of number {rank}")
        work = None if meanwhile is None else partial(meanwhile, engine)
        needed = engine.config.run_files(engine.rank)
        others = {name: file for name, file in files.items() if name != CONFIG and not engine.is_of_another_rank(name)}
        verify_files(root, others, needed[0], texts, marks, work)
        for name in needed:
            engine.file(name)
        engine.read_eos_token_ids()  # This raises if the ids are no token ids.
        return engine

    def is_of_another_rank(self, name: str) -> bool:
        """Returns whether a file belongs to a rank whose files are not asked for."""
        return self.rank is not None and name.startswith("rank") and not name.startswith(f"rank{self.rank}/")

    def file(self, name: str) -> Path:
        """Returns the path of a file that was checked. Raises EngineError if the engine has no file of that name."""
        if name not in self.files:
            raise EngineError(f"{self.path / name}: an engine of target {self.target!r} must have it; {REMEDY}")
        return self.path / name

    def read_json(self, name: str) -> dict[str, Any]:
        """Reads a JSON file as it was when the engine was opened. Returns {} if the engine has none of that name."""
        return read_object(self.path / name, self.text(name)) if name in self.files else {}

    def text(self, name: str) -> bytes:
        """Returns a text file as it was when the engine was opened. Raises EngineError if there is none."""
        self.file(name)
        return self.texts[name]

    def check_unchanged(self) -> None:
        """Raises EngineError if a file that the target runs is not the file that was checked.

        Call it once the files are mapped or read: a mapped file stays as it is, whatever happens to the folder.
        """
        names = [name for name in self.config.run_files(self.rank) if name in self.marks]
        check_unchanged(self.path, names, self.marks)

    @property
    def target(self) -> str:
        return self.config.target

    def read_eos_token_ids(self) -> list[int]:
        """Returns the tokens that end a text: those of generation_config.json if it names any, else of config.json.

        Chat models end a turn with a token that config.json lacks. Ids beyond the vocabulary, which cut-down models
        inherit, are left out: they are never sampled. Raises EngineError for what is no token id.
        """
        listed = self.read_json(GENERATION_CONFIG).get("eos_token_id")
        ids = self.config.model.eos_token_ids or []
        if listed is not None:
            ids = checked_token_ids(self.path / GENERATION_CONFIG, listed)
        return [token for token in ids if token < self.config.model.vocab_size]


def _require_folder(path: str | Path) -> Path:
    if not str(path).strip():
        raise EngineError("an engine directory must be named, not an empty text")
    root = Path(path)
    if not os.path.exists(root):  # os.path.exists is False for a name that no file can have.
        raise EngineError(f"{root}: no such engine directory; build one with: build-engine MODEL {root}")
    if not root.is_dir():
        raise EngineError(f"{root}: an engine is a directory, this is a file")
    if not os.path.exists(root / CONFIG):
        raise EngineError(f"{root}: not an engine, it has no config.json; build one with: build-engine MODEL OUT")
    return root

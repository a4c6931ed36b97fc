"""Models of the hub: which files are taken, once; revisions, broken lines, wrong names and no network."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from support.fake_hub import FakeHub, point_at
from tensorwright.errors import CheckpointError, InvalidOptionError
from tensorwright.hub import check_revision, choose_files, download_config, download_model
from tensorwright.models.checkpoint import ADDED_TOKENS, OLDER_TOKENIZERS

TEXTS = ("config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja", "merges.txt")
OTHERS = (
    "README.md", "pytorch_model.bin", "consolidated.safetensors", "original/consolidated.00.pth",
    "original/params.json", "onnx/model.onnx", "model.gguf", "extra-00001-of-00002.safetensors",
)  # fmt: skip


def make_model(folder: Path, weights: dict[str, int], others: tuple[str, ...] = OTHERS) -> Path:
    for name in (*TEXTS, "additional_chat_templates/tool.jinja", *others):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{{}} of {folder.name}, {name}")
    for name, size in weights.items():
        (folder / name).write_bytes((bytes(range(251)) * (size // 251 + 1))[:size])
    if "model.safetensors" not in weights:
        index = {"weight_map": {f"w{i}": name for i, name in enumerate(weights)}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_only_what_a_build_reads_is_downloaded_and_only_once(hub: FakeHub, tmp_path: Path) -> None:
    shards = {"model-00001-of-00002.safetensors": 900, "model-00002-of-00002.safetensors": 800}
    model = make_model(tmp_path / "model", shards)
    hub.add("org/tiny", model)
    taken = download_model("org/tiny")
    wanted = {*TEXTS, "additional_chat_templates/tool.jinja", "model.safetensors.index.json", *shards}
    assert files(taken) == wanted
    assert all((taken / name).read_bytes() == (model / name).read_bytes() for name in wanted)
    assert sorted(hub.asked) == sorted(wanted)
    hub.asked.clear()
    assert download_model("org/tiny") == taken
    assert hub.asked == []


def test_one_file_of_weights_wins_over_an_index(hub: FakeHub, tmp_path: Path) -> None:
    hub.add("org/tiny", make_model(tmp_path / "model", {"model.safetensors": 10}))
    assert "model.safetensors" in files(download_model("org/tiny"))


def test_a_revision_is_another_copy(hub: FakeHub, tmp_path: Path) -> None:
    hub.add("org/tiny", make_model(tmp_path / "new", {"model.safetensors": 10}))
    commit = hub.add("org/tiny", make_model(tmp_path / "old", {"model.safetensors": 11}), "v1")
    main, old = download_model("org/tiny"), download_model("org/tiny", "v1")
    assert (main / "model.safetensors").stat().st_size == 10
    assert (old / "model.safetensors").stat().st_size == 11
    assert download_model("org/tiny", commit) == old


def test_a_download_goes_on_where_the_line_broke(hub: FakeHub, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", {"model.safetensors": 24 << 20})  # the library writes 10 MB at a time
    hub.add("org/tiny", model)
    hub.cut_after = 22 << 20
    try:
        taken = download_model("org/tiny")
    except CheckpointError:
        taken = download_model("org/tiny")
    assert (taken / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    again = [ask for ask in hub.asked if ask.startswith("model.safetensors from ")]
    assert again, "the rest is asked for, not the whole file"


def test_wrong_names_end_in_one_sentence(hub: FakeHub, tmp_path: Path) -> None:
    hub.add("org/tiny", make_model(tmp_path / "model", {"model.safetensors": 10}))
    for name, revision in (("org/absent", None), ("org/tiny", "v9")):
        with pytest.raises(CheckpointError, match="the hub has no such model or revision; check the name") as error:
            download_model(name, revision)
        assert "\n" not in str(error.value)


def test_files_that_cannot_be_had_end_in_one_sentence(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = {"model-00001-of-00002.safetensors": 900, "model-00002-of-00002.safetensors": 800}
    for name, weights in (("org/one", {"model.safetensors": 10}), ("org/shards", shards)):
        hub.add(name, make_model(tmp_path / name, weights))
        hub.gated.add(name)
        with pytest.raises(CheckpointError, match=f"^{name}: its owners must grant access; ask for it") as error:
            download_model(name)
        assert "\n" not in str(error.value)
    hub.gated.clear()

    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("huggingface_hub.snapshot_download", full)
        with pytest.raises(CheckpointError, match=r"could not be downloaded \(.*No space left on device\); check"):
            download_model("org/one")
    assert "model.safetensors" in files(download_model("org/one"))


def test_without_a_network_a_config_is_not_waited_for(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The library tries a download again and again, each time later. So it is asked for copies alone."""
    hub.add("org/tiny", make_model(tmp_path / "model", {"model.safetensors": 10}))
    taken = download_config("org/tiny")
    assert taken.read_bytes() == (tmp_path / "model" / "config.json").read_bytes()
    assert hub.asked == ["config.json"]
    point_at(monkeypatch, "http://127.0.0.1:9")
    asked: list[bool] = []
    library = huggingface_hub.hf_hub_download

    def watched(*arguments: str, **options: Any) -> str:
        asked.append(options.get("local_files_only", False))
        return library(*arguments, **options)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", watched)
    assert download_config("org/tiny") == taken
    assert [text for text in caplog.messages if text.startswith("org/tiny: the hub could not be reached (")]
    with pytest.raises(CheckpointError, match=r"its config\.json was not downloaded before, and the hub could"):
        download_config("org/other")
    assert asked == [True, True]


def test_every_file_of_an_older_tokenizer_is_downloaded() -> None:
    names = [*OLDER_TOKENIZERS, ADDED_TOKENS]
    assert choose_files("org/old", [*names, "model.safetensors"]) == [*names, "model.safetensors"]


def test_without_a_network_the_copy_serves(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hub.add("org/tiny", make_model(tmp_path / "model", {"model.safetensors": 10}))
    taken = download_model("org/tiny")
    point_at(monkeypatch, "http://127.0.0.1:9")
    assert not [text for text in caplog.messages if text.startswith("org/tiny:")]
    assert download_model("org/tiny") == taken
    assert [text for text in caplog.messages if text.startswith("org/tiny: the hub could not be reached (")]
    with pytest.raises(CheckpointError, match="org/other: is no local directory, was not downloaded") as error:
        download_model("org/other")
    assert "\n" not in str(error.value)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert download_model("org/tiny") == taken
    (taken / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="org/tiny: is no local directory, was not downloaded as a"):
        download_model("org/tiny")


GGUF = (
    "tiny-Q4_0.gguf", "tiny-UD-Q4_K_M.gguf", "tiny-Q4_K_M.gguf", "big/tiny-F16-00001-of-00002.gguf",
    "big/tiny-F16-00002-of-00002.gguf", "mmproj-F32.gguf", "lost-Q8_0-00001-of-00002.gguf", "README.md",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "taken", "downloaded"),
    [
        ("org/ggufs:q4_0", "tiny-Q4_0.gguf", {"tiny-Q4_0.gguf"}),
        ("org/ggufs:F16", "big/tiny-F16-00001-of-00002.gguf", {*GGUF[3:5]}),
        ("org/ggufs/tiny-Q4_K_M.gguf", "tiny-Q4_K_M.gguf", {"tiny-Q4_K_M.gguf"}),
        ("org/one", "tiny-Q8_0.gguf", {"tiny-Q8_0.gguf"}),
    ],
)
def test_gguf_files_are_named_by_form_or_file(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, taken: str, downloaded: set[str]
) -> None:
    for model, of_model in (("ggufs", GGUF), ("one", ("tiny-Q8_0.gguf", "mmproj-F32.gguf", "README.md"))):
        for file in of_model:
            (tmp_path / model / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / model / file).write_text(file)
        hub.add(f"org/{model}", tmp_path / model)
    found = download_model(name)
    assert found.read_text() == taken
    assert found.as_posix().endswith(f"/{taken}")
    assert {*hub.asked} == downloaded
    point_at(monkeypatch, "http://127.0.0.1:9")
    assert download_model(name) == found
    with pytest.raises(CheckpointError, match="was not downloaded as a whole before"):
        download_model("org/ggufs:Q5_0")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org/ggufs", "has 5 GGUF files; name one as org/ggufs/FILE: big/tiny-F16-00001-of-00002.gguf, lost-Q8_0"),
        ("org/ggufs:Q4_K_M", r"has 2 GGUF files of the form Q4_K_M; name one as .*: tiny-Q4_K_M.gguf, tiny-UD-Q4_K_M"),
        ("org/ggufs:4_0", "has no GGUF files of the form 4_0; name one as org/ggufs/FILE: big"),
        ("org/ggufs:Q8_0", "lacks lost-Q8_0-00002-of-00002.gguf, a part of lost-Q8_0-00001"),
        ("org/ggufs/other.gguf", "has no file other.gguf; name one as org/ggufs/FILE: big"),
        ("org/old:Q4_0", "has no GGUF files of the form Q4_0; take another model"),
    ],
)
def test_a_gguf_file_that_is_not_there_is_refused(hub: FakeHub, tmp_path: Path, name: str, said: str) -> None:
    for model, of_model in (("ggufs", GGUF), ("old", ("pytorch_model.bin",))):
        for file in of_model:
            (tmp_path / model / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / model / file).write_text(file)
        hub.add(f"org/{model}", tmp_path / model)
    with pytest.raises(CheckpointError, match=said):
        download_model(name)


def test_a_model_without_safetensors_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"has no model.safetensors .*, but pytorch_model.bin; give a model"):
        choose_files("org/old", ["config.json", "pytorch_model.bin"])


@pytest.mark.parametrize("model", [".", "./model", "/absent"])
def test_a_revision_of_a_path_is_refused(model: str) -> None:
    with pytest.raises(InvalidOptionError, match="revision='v1' is for a model of the hub"):
        check_revision(model, "v1")
    with pytest.raises(InvalidOptionError, match="must be a branch"):
        check_revision("org/tiny", " ")
    check_revision(model, None)

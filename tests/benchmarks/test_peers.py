"""benchmarks/peers without the peers: order of the jobs, idle check, protocol with a made-up peer, the page.

What needs the real peers is tried by `run.py --setup-only` and by the run itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.waiting import PATIENCE, wait_until

FOLDER = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "peers"
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

import cases  # noqa: E402
import environments  # noqa: E402
import idle  # noqa: E402
import measure  # noqa: E402
import plot  # noqa: E402
import protocol  # noqa: E402
import report as pages  # noqa: E402
from environments import Cache, Side, parse_sides  # noqa: E402
from worker import PeerError, Worker  # noqa: E402

FAKE = """
    import os, sys, time
    sys.path.insert(0, {folder!r})
    import protocol
    class Fake:
        def run(self, prompts, steps):
            print("a library that prints")
            os.system("echo a child that prints")
            if steps == 13: raise RuntimeError("thirteen")
            if steps == 14: os._exit(7)
            if steps == 15: time.sleep(600)
            return protocol.Timing(len(prompts[0]) / 100, steps / 10, [p[0] for p in prompts])
    def load(folder, form, threads):
        if form == "broken": raise OSError("no such form")
        return Fake()
    def convert(checkpoint, folder, form):
        print("noise")
        if form == "broken": sys.exit("cannot convert")
        folder.mkdir(parents=True); (folder / "model").write_bytes(b"x" * 100)
    protocol.main(convert, load, lambda checkpoint, folder, form: 77, ["pytest", "no-such-package"])
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    path = tmp_path / "peer_fake.py"
    path.write_text(textwrap.dedent(FAKE).format(folder=str(FOLDER)))
    return path


@pytest.fixture
def worker(fake: Path, tmp_path: Path) -> Iterator[Worker]:
    made = Worker([sys.executable, str(fake), "serve", "folder", "form", "2"], tmp_path / "log", PATIENCE)
    yield made
    made.close()


def test_sides_take_turns() -> None:
    selected = cases.QUICK[:2]
    order = [(r, c.name, s) for r, c, s in cases.interleaved(2, selected, ["A", "B", "C"])]
    assert [s for *_, s in order] == ["A", "B", "C"] * 4
    assert [c for _, c, _ in order[:6]] == [selected[0].name] * 3 + [selected[1].name] * 3
    assert [r for r, *_ in order] == [0] * 6 + [1] * 6


def test_prompts_are_the_same_for_all_and_new_in_every_round_and_case() -> None:
    seeds = {cases.seed_of(r, c) for r in range(5) for c in cases.FULL}
    assert len(seeds) == 5 * len(cases.FULL)
    job = cases.FULL[4].job(3)
    assert protocol.prompts(job) == protocol.prompts(dict(job))
    assert protocol.prompts(job) != protocol.prompts(job | {"seed": 4})
    assert [len(p) for p in protocol.prompts(job)] == [128] * 4


def test_rates_are_those_of_the_case() -> None:
    answer = {"prefill_seconds": 2.0, "decode_seconds": 0.5}
    assert cases.Case("p", 512).tokens_per_second(answer) == 256
    assert cases.Case("d", 128, 4, 16).tokens_per_second(answer) == 128


def test_others_are_what_the_workers_did_not_use() -> None:
    before = idle.busy_seconds("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3", 100)
    after = idle.busy_seconds("cpu  200 0 50 900 50 0 0 100 0 0\ncpu0 1 2 3", 100)
    assert before == (1.5, 10.0)
    assert after == (3.5, 13.0)  # a second of work, and a second that another guest took
    assert idle.others_fraction(before, after, 1.0) == pytest.approx(1 / 3)
    assert idle.others_fraction(before, after, 5.0) == 0.0
    assert idle.Idleness(0.04, 9.0).idle
    assert not idle.Idleness(0.06, 0.0).idle


def test_waiting_ends_with_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([idle.Idleness(0.9, 1.0), idle.Idleness(0.0, 1.0)])
    monkeypatch.setattr(idle, "look", lambda seconds: next(looks))
    assert idle.wait_until_idle(100.0).busy == 0.0
    monkeypatch.setattr(idle, "look", lambda seconds: idle.Idleness(0.9, 1.0))
    assert idle.wait_until_idle(0.0).busy == 0.9


def test_a_worker_answers_while_its_libraries_print(worker: Worker) -> None:
    assert worker.ready["versions"]["no-such-package"] == "not installed as a package"
    job = cases.Case("d", 8, 2, 5).job(1)
    firsts = [p[0] for p in protocol.prompts(job)]
    assert worker.ask(job) == {"prefill_seconds": 0.08, "decode_seconds": 0.5, "tokens": firsts}
    assert worker.ask({"job": "memory"})["peak_bytes"] > 1 << 20
    assert "a child that prints" in worker.log.read_text()


def test_a_job_that_fails_is_an_answer(worker: Worker) -> None:
    with pytest.raises(PeerError, match="RuntimeError: thirteen"):
        worker.ask(cases.Case("d", 8, 1, 13).job(1))
    with pytest.raises(PeerError, match="job must be run or memory, not 'sing'"):
        worker.ask({"job": "sing"})
    assert worker.ask(cases.Case("d", 8, 1, 1).job(1))["decode_seconds"] == 0.1


def test_a_worker_that_dies_or_hangs_is_reported(fake: Path, worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="ended with code 7"):
        worker.ask(cases.Case("d", 8, 1, 14).job(1))
    with pytest.raises(PeerError, match="ended with code 7"):
        worker.ask({"job": "memory"})
    slow = Worker([sys.executable, str(fake), "serve", "folder", "form", "2"], tmp_path / "log2", PATIENCE)
    slow.timeout = 0.3
    with pytest.raises(PeerError, match="no answer within"):
        slow.ask(cases.Case("d", 8, 1, 15).job(1))
    slow.process.kill()
    slow.close()
    with pytest.raises(PeerError, match="OSError: no such form"):
        Worker([sys.executable, str(fake), "serve", "folder", "broken", "2"], tmp_path / "log3", PATIENCE)


def test_a_stopped_worker_does_nothing(worker: Worker) -> None:
    worker.pause()
    worker.timeout = 0.3
    with pytest.raises(PeerError, match="no answer"):
        worker.ask({"job": "memory"})
    worker.resume()
    worker.timeout = PATIENCE
    assert worker._read()["peak_bytes"]


def test_a_stopped_worker_ends_with_the_tool(fake: Path, tmp_path: Path) -> None:
    script = f"""
import os, sys, time
from pathlib import Path
sys.path.insert(0, {str(FOLDER)!r})
from worker import Worker
command = [sys.executable, {str(fake)!r}, "serve", "folder", "form", "2"]
worker = Worker(command, Path({str(tmp_path / "log")!r}), {PATIENCE})
worker.pause()
print(worker.process.pid, os.getpgid(worker.process.pid) == os.getpgid(0), flush=True)
os._exit(0)
"""
    pid, same_group = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout.split()
    assert same_group == "False"
    wait_until(lambda: not alive(int(pid)), "the end of the worker")


def alive(pid: int) -> bool:
    """A zombie that nobody has waited for is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_rounds_go_on_without_a_side_that_fails(fake: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(fake), "serve", "folder", "form", "2"]
    workers = {name: Worker(command, tmp_path / f"log{name}", PATIENCE) for name in "AB"}
    assert len(measure.wake(workers["A"])) == cases.CHECK.batch
    asked: list[str] = []
    plain = workers["B"].ask

    def dies_on_decode(job: dict[str, Any]) -> dict[str, Any]:
        asked.append(job["job"])
        return plain(job | {"steps": 14} if job["steps"] else job)

    workers["B"].ask = dies_on_decode  # type: ignore[method-assign]
    rounds: list[int] = []
    selected = (cases.Case("prefill", 50), cases.Case("decode", 50, 2, 4))
    results = measure.run_rounds(workers, selected, 2, lambda r: rounds.append(1), lambda text: None)
    assert results.rows == {"prefill": {"A": [100.0] * 2, "B": [100.0]}, "decode": {"A": [20.0] * 2}}
    assert list(results.failed) == ["B"]
    assert results.failed["B"].startswith("decode: its process ended with code 7")
    assert len(rounds) == 2
    assert list(measure.finish(workers, results.failed)) == ["A"]
    assert all(w.process.poll() is not None for w in workers.values())


def test_a_conversion_is_kept_and_a_failed_one_is_not(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cache, "command", lambda self, side, *words: [sys.executable, str(fake), *words])
    cache = Cache(tmp_path / "cache", "shape")
    first = cache.convert(Side("tensorwright", "int4:g64,lm_head=int8"), tmp_path, again=False)
    assert (first["bytes_per_token"], first["file_bytes"], first["earlier"]) == (77, 100, False)
    again = cache.convert(Side("tensorwright", "int4:g64,lm_head=int8"), tmp_path, again=False)
    assert again == first | {"earlier": True}
    assert not cache.convert(Side("tensorwright", "int4:g64,lm_head=int8"), tmp_path, again=True)["earlier"]
    with pytest.raises(PeerError, match=r"conversion ended with code 1: noise . cannot convert"):
        cache.convert(Side("tensorwright", "broken"), tmp_path, again=False)
    assert not (cache.models / "tensorwright-broken.json").exists()


def test_sides_are_chosen_by_name() -> None:
    everything = {str(s) for s in parse_sides(None)}
    assert everything >= {"llama.cpp Q4_0", "llama.cpp F16", "openvino-genai int8", "tensorwright int4"}
    assert [str(s) for s in parse_sides(["tensorwright=w8a8", "llama.cpp=Q8_0"])] == [
        "tensorwright w8a8",
        "llama.cpp Q8_0",
    ]
    ours = ["tensorwright=w8a8", "tensorwright=int4:g64", "tensorwright=uint3:g128", "tensorwright=bf16"]
    assert [s.bits for s in parse_sides([*ours, "llama.cpp=Q3_K_M", "transformers"])] == [8, 4, 3, 16, 3, 16]
    with pytest.raises(SystemExit, match="a side must be one of"):
        parse_sides(["vllm"])
    with pytest.raises(SystemExit, match="forms Q2_K, Q3_K_M, Q4_0, Q4_K_M, MXFP4, Q8_0, F16, not 'Q3'"):
        parse_sides(["llama.cpp=Q3"])


def test_lookups_are_not_read_at_each_token() -> None:
    users = {
        "table": [("Convert", "wide")],
        "wide": [("Gather", "rows")],
        "tied": [("Gather", "rows"), ("MatMul", "y")],
        "weight": [("MatMul", "y")],
    }
    sizes = {"table": 1, "tied": 10, "weight": 100, "unused": 1000}
    assert protocol.read_at_each_token(sizes, users, {"Convert"}) == 1110


def test_llama_names_and_rows() -> None:
    import gguf_file
    import numpy as np

    llama = gguf_file.ARCHITECTURES["llama"]
    assert gguf_file.gguf_name("model.layers.3.mlp.up_proj.weight", llama) == "blk.3.ffn_up.weight"
    assert gguf_file.gguf_name("model.embed_tokens.weight", llama) == "token_embd.weight"
    rows = gguf_file.halves_to_pairs(np.arange(8)[:, None], heads=2)
    assert rows[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    rope = {
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    factors = gguf_file.rope_factors(rope, 64)
    assert (factors[0], factors[-1]) == (1.0, 32.0)
    assert (np.diff(factors) >= 0).all()


def test_llama_gets_keys_and_values_of_latent_rows_apart() -> None:
    import gguf_file
    import numpy as np

    config = {"num_attention_heads": 2, "qk_nope_head_dim": 3, "v_head_dim": 4, "kv_lora_rank": 5}
    rng = np.random.default_rng(3)
    weight, latent = rng.standard_normal((2 * 7, 5)), rng.standard_normal(5)
    keys, values = gguf_file.keys_and_values(weight, config)
    made = (weight @ latent).reshape(2, 7)
    np.testing.assert_allclose(np.einsum("hrk,r->hk", keys, latent), made[:, :3])
    np.testing.assert_allclose(np.einsum("hvr,r->hv", values, latent), made[:, 3:])
    facts = gguf_file.latent_facts({**config, "qk_rope_head_dim": 2})
    assert (facts["attention.key_length"], facts["attention.key_length_mla"]) == (7, 5)


@pytest.fixture
def report() -> dict[str, Any]:
    def facts(peer: str, bits: int) -> dict[str, Any]:
        return {"peer": peer, "form": "f", "bits": bits, "convert_seconds": 1.234, "converted_earlier": bits == 4,
                "load_seconds": 0.5, "file_bytes": 3e8, "bytes_per_token": 250_000_000, "peak_bytes": None,
                "agreement": "3/8"}  # fmt: skip

    return {
        "shape": "s", "threads": 2, "rounds": 3, "date": "2026-01-01", "forced": False,
        "machine": {"cpu": "C<P>U", "cores": 2},
        "idleness": [{"busy": 0.01, "load": 0.1}],
        "ceilings": [{"read GB/s": 50.0}], "ceilings_one_thread": {"read GB/s": 30.0},
        "sides": {"tensorwright int4": facts("tensorwright", 4), "llama.cpp Q4_0": facts("llama.cpp", 4),
                  "transformers bf16": facts("transformers", 16)},
        "refused": {"openvino-genai int8": "pip ended with code 1"}, "failed": {},
        "rows": {"decode, batch 1": {"tensorwright int4": [100.0, 10.0, 120.0], "llama.cpp Q4_0": [50.0, 10.0, 40.0],
                                     "transformers bf16": [9.876, 9.0, 12.0]}},
        "others": {"decode, batch 1": {"tensorwright int4": [0.0, 0.02, 0.01]}},
    }  # fmt: skip


def test_the_page_says_medians_paired_ratios_and_reasons(report: dict[str, Any]) -> None:
    page = pages.markdown(report)
    assert "| tensorwright int4 | 100 |" in page
    assert "| transformers bf16 | 9.88 |" in page
    assert "| tensorwright int4 / llama.cpp Q4_0 | 2.00 |" in page  # the median of 2, 1 and 3
    assert "tensorwright int4 / transformers" not in page
    assert "| tensorwright int4 | 1.23 (earlier) | 0.5 | 300 | 250 | 50% | - | 3/8 |" in page
    assert "* openvino-genai int8: pip ended with code 1" in page
    assert "read GB/s 50 (one thread: read GB/s 30)" in page
    assert "most that others took during a job: 2.0%" in page
    assert "not for quoting" not in page
    assert "not for quoting" in pages.markdown(report | {"forced": True})


def test_the_plot_has_a_bar_for_each_side(report: dict[str, Any]) -> None:
    root = ElementTree.fromstring(plot.svg(report))
    space = "{http://www.w3.org/2000/svg}"
    bars = [r for r in root.iter(f"{space}rect") if r.get("x")]
    widths = [float(r.get("width", "0")) for r in bars]
    assert len(bars) == 3
    assert widths[0] == max(widths)
    assert widths[1] == pytest.approx(widths[0] * 40 / 100)
    assert any("C<P>U" in (t.text or "") for t in root.iter(f"{space}text"))


def test_agreement_counts_equal_tokens() -> None:
    assert pages.agreement([1, 2, 3], [1, 5, 3]) == "2/3"
    assert json.loads(json.dumps(protocol.versions(["pytest"])))["pytest"] == pytest.__version__
    assert set(environments.MODULES) == {Side(p, "").module.NAME for p in environments.MODULES}

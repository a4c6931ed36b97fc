"""Writes docs/families.md and the record it is made from, docs/families.json, by trying a tiny model of every family.

python docs/make_families.py                tries all of them, two at a time (about ten minutes on two cores)
python docs/make_families.py opt phi        tries these again, and keeps the record of the others
python docs/make_families.py --try opt phi  tries these, prints the whole of what comes of them, and writes nothing
python docs/make_families.py --page         only the page, from the record

Every type is tried in a process of its own, for LIMIT seconds: one that crashes or hangs is a fault, and ends nothing.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

RECORD, PAGE = ROOT / "docs" / "families.json", ROOT / "docs" / "families.md"
LIMIT = 300
PROCESSES = get_context("forkserver")
UNTOLD = ("canonicalise_", "fold_", "merge_", "eliminate_", "widen_", "lower_", "plan_")
"""Passes whose counts say how much there was to clean up, not what was recognised."""

COHERE = ("recognise_interleaved_rotary", "permute_rotary_rows", "recognise_layer_norm")

TEXT = (ROOT / "docs" / "families.in.md").read_text(encoding="utf-8")


def try_one(name: str, out: Path, whole: bool) -> None:
    """Runs in a process of its own. Writes the outcome to `out`; whole: with all of the message and the counts."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from support.survey import try_family

    torch.set_num_threads(1)
    disable_progress_bar()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        outcome = try_family(name, Path(folder), bfloat16=True)
    out.write_text(json.dumps(dataclasses.asdict(outcome) if whole else summary(outcome)), encoding="utf-8")


def outcome_of(name: str, whole: bool = False) -> tuple[str, dict[str, Any]]:
    """Tries one model, and waits for it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outcome.json"
        process = PROCESSES.Process(target=try_one, args=(name, out, whole))
        process.start()
        process.join(LIMIT)
        if process.exitcode is None:
            process.kill()
            process.join()
            return name, fault("TimeLimit", f"not done after {LIMIT} seconds")
        if not out.exists():
            return name, fault("Crash", f"the process ended with {process.exitcode}")
        return name, json.loads(out.read_text(encoding="utf-8"))


def fault(error: str, message: str) -> dict[str, Any]:
    return {"status": "untyped", "error": error, "message": message, "counts": {}, "bfloat16": ""}


def outcomes_of(names: Iterable[str], whole: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Tries all of these, two at a time."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    PROCESSES.set_forkserver_preload(["torch", "transformers", "support.survey"])
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(outcome_of, name, whole) for name in names]
        for done in as_completed(waiting):
            yield done.result()


def summary(outcome: Any) -> dict[str, Any]:
    """What the record keeps of an Outcome: nothing that changes when an unrelated pass does."""
    kept = dataclasses.asdict(outcome)
    told = {k: v for k, v in outcome.counts.items() if not k.startswith(UNTOLD) and k != "insert_kv_cache"}
    return {**kept, "message": first_sentence(outcome.message), "counts": told}


def survey(names: list[str]) -> dict[str, Any]:
    """The record: of these models tried now, or of all; how the types divide; which transformers."""
    import transformers

    from support.survey import surveyed
    from support.survey_types import HELD_OUT, field

    known = json.loads(RECORD.read_text(encoding="utf-8"))["families"] if names else {}
    outcomes = {}
    for name, outcome in outcomes_of(names or surveyed()):
        outcomes[name] = outcome
        print(f"{len(outcomes)} of {len(names or surveyed())}: {name} {outcome['status']}", file=sys.stderr, flush=True)
    families = {name: outcome for name, outcome in sorted({**known, **outcomes}.items()) if name in surveyed()}
    return {
        "transformers": transformers.__version__,
        "types": list(field().tried),
        "held_out": sorted(HELD_OUT),
        "same": field().same,
        "left_out": field().left_out,
        "families": families,
    }


def page(record: dict[str, Any]) -> str:
    """The whole page."""
    outcomes = record["families"]
    works = {name: o for name, o in outcomes.items() if o["status"] == "works"}
    refused = {name: o for name, o in outcomes.items() if o["status"] == "refused"}
    faults = {name: o for name, o in outcomes.items() if name not in works and name not in refused}
    tables = {
        "TRANSFORMERS": record["transformers"],
        "ALL": str(sum(len(record[part]) for part in ("types", "same", "left_out", "held_out"))),
        "COUNTS": count_sentences(record),
        "SAME": same_rows(record["same"]),
        "LEFT_OUT": "\n".join(
            f"* {', '.join(f'`{n}`' for n in ns)}: {what}" for what, ns in turned(record["left_out"])
        ),
        "REGISTERED": registry_rows(),
        "COHERE_LINES": str(sum(len((ROOT / f"passes/{p}.py").read_text().splitlines()) for p in COHERE)),
        "WORKS": "\n".join(work_row(name, o) for name, o in works.items()),
        "REFUSED": "\n".join(
            f"| `{n}` | `{o['error']}` | {o['message'].replace('|', '/')} |" for n, o in refused.items()
        ),
        "FAULTS": "\n".join(f"* `{name}`: {o['status']}, {o['message']}" for name, o in faults.items()) or "None.",
    }
    text = TEXT
    for name, table in tables.items():
        text = text.replace(f"@{name}@", table)
    return text


def turned(by_name: dict[str, str]) -> list[tuple[str, list[str]]]:
    """Returns each value with the names that have it, sorted by the value."""
    return [(value, [n for n, v in by_name.items() if v == value]) for value in sorted(set(by_name.values()))]


def quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def same_rows(same: dict[str, str]) -> str:
    return "\n".join(f"* `{tried}` for {quoted(names)}" for tried, names in turned(same))


def count_sentences(record: dict[str, Any]) -> str:
    """Says how the types divide, and how many of those that were tried work."""
    tried = record["types"]
    outcomes = [record["families"][name] for name in tried]
    works = [o for o in outcomes if o["status"] == "works"]
    refused = sum(o["status"] == "refused" for o in outcomes)
    unmade = sum(o["status"] == "unmade" for o in outcomes)
    covered = len(works) + sum(record["families"][name]["status"] == "works" for name in record["same"].values())
    faults = len(outcomes) - len(works) - refused - unmade
    return (
        f"Of these, {len(record['left_out'])} are no decoders, {len(record['held_out'])} were held out "
        f"({quoted(record['held_out'])}), and {len(record['same'])} share the text model of another. "
        f"**Of the {len(tried)} that are left, {len(works)} work in float32 ({len(works) / len(tried):.0%})**, and "
        f"{sum(o['bfloat16'] == 'works' for o in works)} of those in bfloat16 too; {refused} are refused by name, of "
        f"{unmade} no tiny model could be made, and {faults} are faults. With the types that share a text model, "
        f"{covered} of {len(tried) + len(record['same'])} have one that works."
    )


def registry_rows() -> str:
    """One row per family of models/families/: what its tiny models exercise, and its counts."""
    from support.tiny_configs import COMMON
    from support.tiny_families import VARIANTS, family_options
    from tensorwright.models.registry import expectations, registered

    rows = []
    for family, expected_of in sorted(registered().items()):
        variants = [name for name, (of, _) in VARIANTS.items() if of == family]
        options = family_options(family)
        counts = expectations({**COMMON, "model_type": family, **options})
        summary = " ".join((expected_of.__doc__ or "").split("\n\n")[0].split())
        tried = ", ".join(f"`{name}`" for name in variants) or "-"
        told = ", ".join(f"{name} {count_text(e)}" for name, e in counts.items() if e.per_layer or e.constant)
        rows.append(f"| `{family}` | {summary} {option_text(options)} | {tried} | {told} |")
    return "\n".join(rows)


def option_text(options: dict[str, Any]) -> str:
    plain = {k: v for k, v in options.items() if not k.endswith("_token_id") and not isinstance(v, dict)}
    return "".join(f"`{k}` {v}, " for k, v in plain.items()).removesuffix(", ")


def count_text(expected: Any) -> str:
    parts = ([f"{expected.per_layer} a layer"] if expected.per_layer else []) + (
        [f"{expected.constant}"] if expected.constant else []
    )
    return " + ".join(parts)


def work_row(name: str, outcome: dict[str, Any]) -> str:
    counts = ", ".join(f"{k} {v}" for k, v in outcome["counts"].items())
    return f"| `{name}` | {counts} | {outcome['bfloat16']} |"


def first_sentence(message: str) -> str:
    """The message without its graph listing, the passes that ran before, and numbers of values."""
    line = message.partition("\n")[0]
    line = re.sub(r"pass \w+ \(number \d+, after [^)]*\) failed: ", "", line)
    line = re.sub(r"(%[\w.]*?)[._]?\d+(?= )", r"\1", line)
    return line.replace("<model>/", "")


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sys.argv[1:2] == ["--try"]:
        for name, outcome in outcomes_of(sys.argv[2:], whole=True):
            print(f"{name}: {outcome['status']} {outcome['error']} bfloat16 {outcome['bfloat16'] or '-'}")
            print("\n".join(filter(None, [outcome["message"], work_row(name, outcome) if outcome["counts"] else ""])))
        return
    if sys.argv[1:] != ["--page"]:
        RECORD.write_text(json.dumps(survey(sys.argv[1:]), indent=1) + "\n", encoding="utf-8")
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    PAGE.write_text(page(record), encoding="utf-8")


if __name__ == "__main__":
    main()

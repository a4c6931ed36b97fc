"""Writes docs/families.md and the record it is made from, docs/families.json, by trying a tiny model of every family.

python docs/make_families.py            tries all of them (about two minutes on two cores)
python docs/make_families.py opt phi    tries these again, and keeps the record of the others
python docs/make_families.py --page     only the page, from the record
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import tempfile
import warnings
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

RECORD, PAGE = ROOT / "docs" / "families.json", ROOT / "docs" / "families.md"
UNTOLD = ("canonicalise_", "fold_", "merge_", "eliminate_", "widen_", "lower_", "plan_")
"""Passes whose counts say how much there was to clean up, not what was recognised."""

COHERE = ("recognise_interleaved_rotary", "permute_rotary_rows", "recognise_layer_norm")

TEXT = (ROOT / "docs" / "families.in.md").read_text(encoding="utf-8")


def survey_one(model_type: str) -> tuple[str, dict[str, Any]]:
    import torch

    from support.survey import try_family

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        return model_type, summary(try_family(model_type, Path(folder), bfloat16=True))


def summary(outcome: Any) -> dict[str, Any]:
    """What the record keeps of an Outcome: nothing that changes when an unrelated pass does."""
    kept = dataclasses.asdict(outcome)
    told = {k: v for k, v in outcome.counts.items() if not k.startswith(UNTOLD) and k != "insert_kv_cache"}
    return {**kept, "message": first_sentence(outcome.message), "counts": told}


def survey(names: list[str]) -> dict[str, Any]:
    """model_type -> outcome, for these or all of support.survey.SURVEY; two at a time."""
    import transformers

    from support.survey import SURVEY

    known = json.loads(RECORD.read_text(encoding="utf-8"))["families"] if names else {}
    with get_context("spawn").Pool(2) as pool:
        outcomes = dict(pool.imap_unordered(survey_one, names or sorted(SURVEY)))
    families = {name: outcome for name, outcome in sorted({**known, **outcomes}.items()) if name in SURVEY}
    return {"transformers": transformers.__version__, "families": families}


def page(record: dict[str, Any]) -> str:
    """The whole page."""
    outcomes = record["families"]
    works = {name: o for name, o in outcomes.items() if o["status"] == "works"}
    refused = {name: o for name, o in outcomes.items() if o["status"] == "refused"}
    faults = {name: o for name, o in outcomes.items() if name not in works and name not in refused}
    tables = {
        "TRANSFORMERS": record["transformers"],
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


def registry_rows() -> str:
    """One row per family of models/registry.py: what its tiny models exercise, and its counts."""
    from support.tiny_models import COMMON, VARIANTS, family_options
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
    if sys.argv[1:] != ["--page"]:
        RECORD.write_text(json.dumps(survey(sys.argv[1:]), indent=1) + "\n", encoding="utf-8")
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    PAGE.write_text(page(record), encoding="utf-8")


if __name__ == "__main__":
    main()

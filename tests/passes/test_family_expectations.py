"""Every family of the registry: each rewrite fires as often as expected there, and none of them changes the numbers."""

from __future__ import annotations

import pytest

from support.tiny_models import VARIANTS
from tensorwright.builder.ir.interpret import checkpoint_weights
from tensorwright.errors import PassError
from tensorwright.models.registry import _FAMILIES, expected_counts
from tensorwright.passes.pipeline import run_pipeline

KNOWN = [variant for variant, (family, _) in VARIANTS.items() if family in _FAMILIES]


def test_every_family_of_the_registry_has_a_variant():
    assert {VARIANTS[variant][0] for variant in KNOWN} == set(_FAMILIES)


@pytest.mark.parametrize("variant", KNOWN)
def test_counts_and_numbers(rewritten, variant):
    model = rewritten(variant)
    expected = expected_counts(model.checkpoint.config)
    report = run_pipeline(
        model.traced, verify=True, weights=checkpoint_weights(model.checkpoint), expectations=expected
    )
    assert {name: report.counts[name] for name in expected} == expected


@pytest.mark.parametrize("variant", ["gemma2"])
def test_a_miss_is_named(rewritten, variant):
    model = rewritten(variant)
    expected = expected_counts(model.checkpoint.config)
    for name, count in expected.items():
        with pytest.raises(PassError, match=f"pass {name} must rewrite {count + 1} times in this model"):
            run_pipeline(model.traced, expectations={name: count + 1})

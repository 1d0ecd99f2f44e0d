"""The proof page names every stage that a proved plan can contain, and nothing that is gone."""

import numpy as np
import pytest

from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.settings import PrivacyTarget
from support.code_names import ROOT, misplaced_names, unknown_names, unknown_paths

PAGE = ROOT / "docs" / "privacy-proof.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TARGET = PrivacyTarget(50.0, 1e-5)
FACTS = Federation(4, np.full(5, 200))
CHOICES = [
    {"update": update, "refine_rounds": refine, "subspace": subspace}
    for update in ("gradient", "sums-and-gram")
    for refine in (0, 3)
    for subspace in (None, 2)
]


def proved_classes():
    """Return the classes of all stages of both proved methods' plans."""
    plans = [method_named("dp-fedc").plan({"n_clusters": 3, **c}, FACTS, TARGET) for c in CHOICES]
    merged = {"n_clusters": "auto", "k_range": (2, 6)}
    plans.append(method_named("dp-fedc").plan(merged, FACTS, TARGET))
    plans.append(method_named("dp-fedc").plan({"n_clusters": 3, "quality": True}, FACTS, TARGET))
    plans.append(method_named("dp-lloyd").plan({"n_clusters": 3, "n_rounds": 4}, FACTS, TARGET))
    return {type(stage).__name__ for plan in plans for stage in plan.stages}


@pytest.mark.parametrize("section", ["## 3.", "## 8."])
def test_every_proved_stage_has_a_row_in_each_table(section):
    text = PAGE.read_text(encoding="utf-8").split(section)[1].split("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    found = proved_classes()
    known = {"SumsAndGram", "LloydSums", "Subspace", "Centers", "Lengths", "Cells"}
    known |= {"Neighbors", "Quality"}
    assert known <= found
    assert not {name for name in found if not any(f"`{name}`" in row for row in rows)}


def test_every_name_on_the_page_is_in_the_package():
    page = PAGE.read_text(encoding="utf-8")
    assert not unknown_names(page)
    assert not misplaced_names(page)


def test_names_that_went_are_found():
    there = "`Gate.release` (privacy/gate.py), `clip_weights`, `epsilon=None`, `privacy/test_*.py`"
    assert not unknown_names(there)
    assert not misplaced_names(there)
    gone = "`RecordSum`, `Gate.deal`, `dealt_by_coins`, `test_no_such_thing`, (privacy/door.py)"
    assert unknown_names(gone) == {
        "RecordSum", "Gate.deal", "dealt_by_coins", "test_no_such_thing", "privacy/door.py",
    }  # fmt: skip
    assert misplaced_names("`clip_weights` (privacy/gate.py)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_in_the_docs_is_there(page):
    assert not unknown_paths(page.read_text(encoding="utf-8"), page.parent)

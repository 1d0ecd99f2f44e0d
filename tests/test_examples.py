"""The example does what the docs say, also with far fewer records; so do the docs' commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.metrics import adjusted_rand_score

from dpfedc import DPFedC, stack_sites
from dpfedc.errors import BudgetWarning, NotFound, UtilityWarning
from support.code_names import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
CONCEPTS = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-\d+)?")
CENTERS = np.array([(25, 115), (50, 160), (80, 130)], dtype=float)
RANGES = [(18, 100), (80, 220)]


def shown_after(command: str) -> str:
    """Return the block of text that follows a command in the README."""
    after = README.partition(f"    {command}\n")[2]
    return re.search(r"^```text\n(.*?)^```$", after, re.MULTILINE | re.DOTALL)[1]


def output_of(words: list[str], cache: str) -> str:
    """Return what a command prints, with nothing in its way that was rehearsed before."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_CACHE_HOME": cache},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def assert_alike(printed: str, shown: str) -> None:
    """Compare words exactly, and numbers to 2 %: machines round in different ways."""
    words = [" ".join(NUMBER.sub("#", text).split()) for text in (printed, shown)]
    assert words[0] == words[1]
    found, expected = ([float(n.replace(",", "")) for n in NUMBER.findall(text)] for text in
                       (printed, shown))  # fmt: skip
    assert found == pytest.approx(expected, rel=0.02, abs=0.02)


def test_the_example_prints_what_the_readme_shows(tmp_path):
    command = "python examples/clustering_sites.py"
    printed = output_of(["-W", "error", "examples/clustering_sites.py"], str(tmp_path))
    assert_alike(printed, shown_after(command))
    assert "Verdict: usable" in printed


def test_the_plan_reads_as_the_readme_shows(tmp_path):
    command = re.search(r"^    (dpfedc plan .*)$", README, re.MULTILINE)[1]
    shown = shown_after(command).removesuffix("...\n")
    printed = output_of(["-m", *command.split()], str(tmp_path))
    assert_alike("\n".join(printed.splitlines()[: shown.count("\n")]), shown)
    assert re.search("^Verdict +usable", shown, re.MULTILINE)


def few_records(seed):
    """Return the example's groups with a tenth of its records: 195."""
    rng = np.random.default_rng(seed)
    young, middle, old = CENTERS
    X, sites = stack_sites(
        [
            rng.normal([young] * 60 + [old] * 10, scale=4),
            rng.normal([young] * 20 + [middle] * 50, scale=4),
            rng.normal([middle] * 15 + [old] * 40, scale=4),
        ]
    )
    return X, sites, np.repeat([0, 2, 0, 1, 1, 2], [60, 10, 20, 50, 15, 40])


def test_few_records_are_clustered_right_if_ranges_are_declared():
    held, wrong, doubted = [], [], []
    for seed in range(60):
        X, sites, groups = few_records(seed)
        model = DPFedC(3, epsilon=8.0, feature_ranges=RANGES, random_state=seed)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("ignore", BudgetWarning)
            warnings.simplefilter("always", UtilityWarning)
            model.fit(X, sites=sites)
        if said:
            doubted.append(seed)
        if adjusted_rand_score(groups, model.labels_) < 0.9:
            wrong.append(seed)
            continue
        for cluster in model.summary().clusters:
            group = np.bincount(groups[model.labels_ == cluster.number]).argmax()
            for column, true in zip(cluster.columns, CENTERS[group], strict=True):
                held.append(column.values[0].low <= true <= column.values[0].high)
    assert len(wrong) <= 2
    assert doubted == wrong
    # That so few intervals of 95 % hold the truth has a chance of 1 in 1,000.
    assert sum(held) >= binom.ppf(0.001, len(held), 0.95)
    shown = re.search(r"(\d+) of 60 runs.*?(\d+) of their (\d+) error bars", CONCEPTS, re.DOTALL)
    assert [int(n) for n in shown.groups()] == [60 - len(wrong), sum(held), len(held)]


def test_the_concepts_example_of_number_shape_and_quality_runs():
    code = re.search(r"^```python\n(.*?)^```$", CONCEPTS, re.MULTILINE | re.DOTALL)[1]
    X = np.random.default_rng(0).normal(np.tile(CENTERS, (2000, 1)), scale=4)
    found = {"X": X, "sites": np.arange(len(X)) % 5}
    exec(code, found)
    model = found["model"]
    assert len(model.cluster_centers_) == model.choose_k_.n_clusters == 3
    low, high = model.quality_.silhouette.interval
    assert low < model.quality_.silhouette.value < high


def test_few_records_without_ranges_are_refused():
    X, sites, _ = few_records(0)
    with pytest.raises(NotFound, match="feature_ranges"):
        DPFedC(3, epsilon=1.0, random_state=0).fit(X, sites=sites)


def test_every_picture_is_shown_with_words_for_those_who_cannot_see_it():
    shown = dict(re.findall(r"^!\[(.*?)\]\(pictures/(.*?)\)$", CONCEPTS, re.MULTILINE))
    files = {file.name: file for file in (ROOT / "docs" / "pictures").glob("*.svg")}
    assert set(shown.values()) == set(files)
    assert all(len(words) > 40 for words in shown)
    assert all(file.stat().st_size < 60_000 for file in files.values())

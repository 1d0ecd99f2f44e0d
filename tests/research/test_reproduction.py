"""The page about reproduction: its verdicts by hand, and the page from real runs."""

import math
from dataclasses import replace

import pytest

from dpfedc.research.experiments.claims import HELD, NOT_HELD, UNDECIDED, Judgement
from dpfedc.research.experiments.experiment_spec import named_experiment
from dpfedc.research.experiments.reproduction_page import write_reproduction
from dpfedc.research.experiments.reproduction_readings import BOUNDS, CHOICES
from dpfedc.research.experiments.reproduction_verdicts import (
    CLOSE,
    NOT_REPRODUCED,
    NOT_TESTABLE,
    REPRODUCED,
    TABLE_ROWS,
    Claim,
    Runs,
    all_claims,
    number_verdict,
    ranking,
)
from dpfedc.research.experiments.results import Result
from dpfedc.research.experiments.runner import run_experiment


@pytest.mark.parametrize(
    ("accuracies", "paper", "verdict"),
    [
        # Mean 50.33, standard error .333 here and .258 there: twice both is .843.
        ([50.0, 51.0, 50.0], 51.17, REPRODUCED),
        ([50.0, 51.0, 50.0], 51.19, CLOSE),
        ([50.0, 51.0, 50.0], 55.5, NOT_REPRODUCED),
        # However much runs differ, more than two points are not the same.
        ([30.0, 70.0, 50.0], 51.9, REPRODUCED),
        ([30.0, 70.0, 50.0], 52.1, CLOSE),
        # One run has no standard error.
        ([50.0], 50.0, CLOSE),
    ],
)
def test_the_verdict_on_a_number(accuracies, paper, verdict):
    assert number_verdict(accuracies, paper) == verdict


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([], NOT_TESTABLE),
        ([HELD, HELD], REPRODUCED),
        ([HELD, UNDECIDED], CLOSE),
        ([UNDECIDED], NOT_REPRODUCED),
        ([HELD, NOT_HELD], NOT_REPRODUCED),
        ([NOT_HELD], NOT_REPRODUCED),
    ],
)
def test_the_verdict_on_a_claim(found, verdict):
    judged = tuple(Judgement("", "", v, 0.0, 0.0, 2) for v in found)
    assert Claim("Table I", "", "", judged).verdict == verdict


def results(accuracy_of, *, variants, epsilons=(None, 20.0), partition="iid", count=30):
    """Return made-up runs of two seeds, which differ by a point."""
    return [
        Result(
            method, "mnist", partition, epsilon, "", variant, count, seed,
            accuracy_of(method, epsilon) + seed / 100, 0, 0, 0,
        )
        for method, variant in variants
        for epsilon in epsilons
        for seed in (5, 6)
    ]  # fmt: skip


def as_in_table_1():
    """Return runs that have the paper's own order of methods, in every reading."""
    rank = {row.paper_method: i for i, row in enumerate(TABLE_ROWS)}
    wanted = {"DP-FedC": 50, "FZKM": 47, "DKM": 43.3, "FKM": 43.2, "DK++": 42.6}
    at_20 = {"DP-FedC": 43, "FZKM": 36, "FKM": 31, "DK++": 27, "DKM": 26}
    assert len(rank) == len(wanted)
    found = []
    for row in TABLE_ROWS:
        name = row.title.split(",")[0]
        exact = [(row.method, row.exact_variant)]
        noisy = [(row.method, row.variant)]
        found += results(lambda *_, n=name: wanted[n] / 100, variants=exact, epsilons=(None,))
        found += results(lambda *_, n=name: at_20[n] / 100, variants=noisy, epsilons=(20.0,))
    return Runs(found, {}, 20.0, 30)


def test_claims_of_table_1_are_found_where_they_hold():
    runs = as_in_table_1()
    found = {(c.words, c.reading): c for c in all_claims(runs) if c.source == "Table I"}
    for (words, _), claim in found.items():
        expected = NOT_TESTABLE if "TCGA" in words else REPRODUCED
        assert claim.verdict == expected, words
    assert ranking(runs, None)[1:] == (8, 8)  # two readings each of DP-FedC, FKM and DK++
    assert ranking(runs, 20.0)[1:] == (8, 8)
    worse = [
        replace(r, accuracy=r.accuracy - 0.1) if r.method == "dp-fedc" else r for r in runs.results
    ]
    runs = replace(runs, results=worse)
    assert ranking(runs, None)[1:] == (0, 8)
    best = [c for c in all_claims(runs) if c.words == "DP-FedC is the most accurate without noise"]
    assert {c.verdict for c in best} == {NOT_REPRODUCED}


def test_claims_of_the_figures_follow_objective_accuracy_and_speed():
    found, logs = [], {}
    for epsilon, objective in ((None, 1.0), (20.0, 2.0), (2.0, 4.0)):
        for partition, more in (("iid", 1.0), ("non-iid", 1.5)):
            for r in results(
                lambda *_, o=objective, m=more: 0.9 / (o * m), epsilons=(epsilon,),
                variants=[("dp-fedc", "closest-falling-steps"), ("dp-fedc", "closest")],
                partition=partition,
            ):  # fmt: skip
                cell = f"{r.variant}{epsilon}{partition}{r.seed}"
                found.append(replace(r, objective=objective * more, cell=cell))
                logs[cell] = math.log(objective * more)
    claims = [c for c in all_claims(Runs(found, logs, 20.0, 30)) if c.source == "Fig. 3"]
    verdicts = {(c.words, c.reading): c.verdict for c in claims}
    held = [v for (words, _), v in verdicts.items() if "TCGA" not in words and "gap" not in words]
    assert held == [REPRODUCED] * 10
    turned = [replace(r, objective=1 / r.objective) for r in found]
    claims = all_claims(Runs(turned, {k: -v for k, v in logs.items()}, 20.0, 30))
    for claim in claims:
        turned = "a smaller objective" in claim.words or "faster" in claim.words
        if claim.source == "Fig. 3" and turned:
            assert claim.verdict == NOT_REPRODUCED, claim.words


def test_every_row_that_the_page_names_is_run():
    cells = named_experiment("reproduction").cells
    rows = {(c.method, c.variant, c.epsilon is None) for c in cells}
    for row in TABLE_ROWS:
        assert (row.method, row.exact_variant, True) in rows
        assert (row.method, row.variant, False) in rows
    variants = {c.variant for c in cells}
    assert {v for choice in CHOICES for v in (choice.undone, choice.done)} <= variants
    assert {variant for _, variant in BOUNDS} <= variants


def test_seeds_are_fresh_and_enough():
    by_row = {}
    for c in named_experiment("reproduction").cells:
        key = (c.method, c.variant, c.epsilon, c.partition, c.sites_per_round)
        by_row.setdefault(key, set()).add(c.seed)
    assert all(len(seeds) >= 10 for seeds in by_row.values())
    assert min(seed for seeds in by_row.values() for seed in seeds) == 5
    assert by_row["dp-fedc", "closest", None, "iid", 30] == set(range(5, 20))


def test_the_page_is_made_from_runs(tmp_path):
    whole = named_experiment("reproduction")
    wanted = {"closest", "closest-bound-assumed", "defaults", "defaults-sum", "no-lloyd-rounds"}
    cells = [
        replace(
            c, settings=tuple((k, 2 if (k, v) == ("n_rounds", 20) else v) for k, v in c.settings)
        )
        for c in whole.quick_cells
        if c.variant in wanted and c.epsilon != 2.0 and c.partition == "iid" and c.seed == 5
    ]
    run_experiment(
        replace(whole, quick_cells=tuple(cells)), tmp_path, quick=True, command="made so"
    )
    page = write_reproduction(tmp_path).read_text(encoding="utf-8")
    assert "made so" in page
    assert "quick run on small data" in page
    tables = [line for line in page.splitlines() if line.startswith("| ")]
    numbers = [line for line in tables if line.startswith(("| DP-FedC, ", "| *DK++, without"))]
    assert all("50.5" in line or "42.6" in line for line in numbers)
    assert sum(NOT_TESTABLE in line for line in tables) >= 5 + 4
    assumed = next(line for line in tables if line.startswith("| assumed only"))
    assert assumed.count("infinite") == 3
    closest = next(line for line in tables if line.startswith("| on each record, G = 4e4"))
    assert all(float(cell) > 0 for cell in closest.split("|")[4:7])
    assert "| on each record, G = 4e3 | not run |" in page

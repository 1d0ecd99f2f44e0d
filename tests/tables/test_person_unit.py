"""A person is what is protected: all rows of one person gone, by the very path of a site."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.clustering.stage import Public, SiteBatch, contributed
from dpfedc.errors import NotFound
from dpfedc.kernels.column_view import RANGE, seen
from dpfedc.privacy.exact_sums import SENSITIVITY, Upload, exact_sum
from dpfedc.privacy.gate import Gate, ReleaseEvent, received
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.privacy.sums import kept, summed
from dpfedc.randomness import Randomness
from dpfedc.settings import PrivacyTarget
from dpfedc.tables import persons as persons_module
from dpfedc.tables.encode import encoded_table
from dpfedc.tables.schema import Schema
from dpfedc.tables.stored import column_table
from support.exact_checks import as_integers, squared_distance

RULES = ("mean", "first", "last")
PERSONS = tuple("abcdefgh")
COLUMNS = [
    {"name": "age", "kind": "number", "range": [0, 100]},
    {
        "name": "lab",
        "kind": "number",
        "range": [1, 100],
        "transform": "log",
        "missing": "indicator",
    },
    {"name": "pulse", "kind": "number", "range": "auto"},
    {"name": "sex", "kind": "category", "values": ["F", "M"]},
]
RNG = Randomness(5)
CELLS = st.one_of(
    st.none(), st.sampled_from(["", "NA", "x", "nan", "inf", "-1e308", "1e308"]),
    st.floats(-50, 200, width=16).map(str),
)  # fmt: skip
ROWS = st.tuples(
    st.sampled_from(PERSONS), CELLS, CELLS, CELLS, st.sampled_from(["F", "M", "x", "", None]),
    st.sampled_from(["", "2024-01-01", "2023-06-01", "7"]),
)  # fmt: skip
TABLES = st.lists(ROWS, min_size=4, max_size=30)


def schema_of(rule):
    dated = {} if rule == "mean" else {"date": "day"}
    return Schema.of({"person": "who", "rows": rule, "column": COLUMNS, **dated})


def records_of(rows, rule):
    """Return the records of the declared persons, as a site makes them."""
    names = ("who", "age", "lab", "pulse", "sex", "day")
    columns = {name: [row[j] for row in rows] for j, name in enumerate(names)}
    return encoded_table(column_table("visits", columns), schema_of(rule), persons=PERSONS)


def blanked(rows, person):
    """Return the table with all cells of a person's rows gone, the id too."""
    return [(None,) * 6 if row[0] == person else row for row in rows]


@cache
def plan_of(method):
    schema = schema_of("mean")
    facts = Federation(len(schema.features), np.array([len(PERSONS)]), schema.layout)
    # So little noise that eight persons can stand out from it.
    target = PrivacyTarget(500.0, 1e-3, unit="person")
    return method_named(method).plan({"n_clusters": 2}, facts, target), facts


@pytest.mark.parametrize("rule", RULES)
@given(rows=TABLES, person=st.sampled_from(PERSONS))
def test_a_person_gone_changes_no_other_record(rule, rows, person):
    others = np.array([other != person for other in PERSONS])
    before = records_of(rows, rule)
    taken_out = [row for row in rows if row[0] != person]
    for after in (records_of(blanked(rows, person), rule), records_of(taken_out, rule)):
        np.testing.assert_array_equal(before.X[others], after.X[others])
        np.testing.assert_array_equal(before.present[others], after.present[others])
        assert not after.present[~others].any()


@pytest.mark.parametrize("method", ["dp-fedc", "dp-lloyd"])
@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=25)
@given(rows=TABLES, person=st.sampled_from(PERSONS))
def test_a_person_gone_moves_every_release_by_at_most_its_sensitivity(method, rule, rows, person):
    """In the float path up to rounding, in the exact path to the last integer."""
    plan, facts = plan_of(method)
    public = Public(facts.n_features, facts.records_per_site, np.asarray)
    tables = [records_of(rows, rule), records_of(blanked(rows, person), rule)]
    declared = method_named(method).declared({"n_clusters": 2}, facts)
    state = {"origin": np.zeros(facts.n_features), **declared}
    for stage in plan.stages:
        state = stage.start(state, public, RNG)
        for t in range(1, min(stage.n_rounds, 3) + 1):
            bound = stage.sensitivity(state, t)
            with np.errstate(all="ignore"):
                parts = [part(stage, state, t, plan, records) for records in tables]
                sums = [summed(one, bound) for one in parts]
                exact = [integers(one, bound) for one in parts]
            assert np.isfinite(sums).all()
            assert np.linalg.norm(sums[0] - sums[1]) <= bound * (1 + 1e-9)
            assert squared_distance(*exact) <= SENSITIVITY**2
            event = ReleaseEvent(stage.name, t, 1, len(PERSONS))
            state = after(stage, state, received([Upload(sums[0])], event), t)


def after(stage, state, released, t):
    """Return the next state; a range that was not found is given, so that no stage is left out."""
    try:
        return stage.combine(state, released, t)
    except NotFound:
        m = len(schema_of("mean").features)
        return {**state, **dict(zip(RANGE, (np.zeros(m), np.full(m, 100.0)), strict=True))}


def part(stage, state, t, plan, records):
    """Return what the site contributes."""
    gate = Gate(plan.privacy, SimulatedNoise(RNG), RNG)
    X = np.where(records.present[:, None], records.X, 0.0)
    batch = SiteBatch(seen(X, state), np.array([0, len(X)]), np.array([0]), records.present)
    batch.memory = stage.prepare(batch, state, RNG)
    return contributed(stage, batch, state, t, gate, RNG)


def integers(one, bound):
    contribution, batch, sample = one
    keep = kept(batch, sample, contribution.like)
    return as_integers(exact_sum(contribution, keep, bound), symmetric=contribution.symmetric)


def test_a_mean_over_all_persons_is_found_out(monkeypatch):
    """Planted: gaps filled with the mean over the site's persons, before anything is released."""
    rows = [(p, str(10 * i), "20" if i > 1 else "", "70", "F", "") for i, p in enumerate(PERSONS)]
    rows[0] = ("a", "", "50", "80", "F", "")

    def leaky(X, *more):
        out = per_person(X, *more)
        return np.where(np.isnan(out), np.nansum(out, axis=0) / len(out), out)

    per_person = persons_module.per_person
    monkeypatch.setattr("dpfedc.tables.encode.per_person", leaky)
    others = np.arange(1, 8)
    before, after = (records_of(r, "mean").X[others] for r in (rows, blanked(rows, "a")))
    assert not np.array_equal(before, after, equal_nan=True)

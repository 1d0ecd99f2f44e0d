"""The plan: immutable, in JSON of its own, and explicit about whose noise protects a record."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedc.errors import InvalidInput
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.settings import UNITS
from support.noise_checks import gate_of, noise_of, plan_of

TRUST = ("local", "secure-aggregation", "trusted-server")


@st.composite
def plans(draw):
    n_sites = draw(st.integers(1, 40))
    names = draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5, unique=True))
    releases = []
    for name in names:
        rounds, per_round = draw(st.integers(1, 99)), draw(st.integers(1, n_sites))
        per_site = draw(st.integers(1, rounds))
        z, q = draw(st.floats(1e-3, 1e6)), draw(st.just(1.0) | st.floats(1e-9, 1))
        releases.append(PlannedRelease(name, rounds, per_round, per_site, z, q))
    delta = draw(st.floats(1e-12, 0.5))
    trust, assumed = draw(st.sampled_from(TRUST)), {}
    if trust == "secure-aggregation":
        fewest = min(r.sites_per_round for r in releases)
        assumed["colluding_sites"] = draw(st.integers(0, fewest - 1))
        least = assumed["colluding_sites"] + 1
        assumed["min_survivors"] = draw(st.none() | st.integers(least, n_sites))
    spare = draw(st.sampled_from([0.0, delta / 100]))
    assumed["unit"] = draw(st.sampled_from(UNITS))
    whole = spare == 0 and all(release.sampling_probability == 1 for release in releases)
    if assumed["unit"] == "person" and whole:
        assumed["sites_per_person"] = draw(st.integers(1, n_sites))
    return PrivacyPlan(tuple(releases), delta, trust, n_sites, spare_delta=spare, **assumed)


@given(plans())
def test_a_plan_comes_back_from_json_as_it_was(plan):
    text = plan.to_json()
    assert PrivacyPlan.from_json(text) == plan
    content = json.loads(text)
    assert (content["unit"], content["relation"]) == (plan.unit, "zero-out")


def tampered(**changes):
    """Return the JSON of a plan with some values changed; `release` changes its first release."""
    content = json.loads(plan_of("secure-aggregation").to_json())
    content["releases"][0].update(changes.pop("release", {}))
    for name in changes.pop("without", ()):
        del content[name]
    return json.dumps({**content, **changes})


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[" * 100_000, "null", "[]", "7", '"plan"', "{}",
        tampered(epsilon=1.0),
        tampered(unit="visit"), tampered(unit=None), tampered(sites_per_person=2),
        tampered(relation="replace-one"), tampered(without=["unit"]),
        tampered(delta=math.nan), tampered(delta=0), tampered(delta=1), tampered(delta="1e-5"),
        tampered(delta=-1e-5), tampered(without=["delta"]),
        tampered(spare_delta=1e-5), tampered(spare_delta=-1e-9),
        tampered(trust="nobody"), tampered(trust=None), tampered(trust=["local"]),
        tampered(n_sites=0), tampered(n_sites=2.5), tampered(n_sites=True), tampered(n_sites=3),
        tampered(min_survivors=0), tampered(min_survivors=9), tampered(colluding_sites=-1),
        tampered(colluding_sites=8), tampered(min_survivors=2, colluding_sites=2),
        tampered(releases=None), tampered(releases={"mean": 1}), tampered(releases=["mean"]),
        tampered(releases="mean"),
        tampered(release={"noise_multiplier": math.nan}),
        tampered(release={"noise_multiplier": math.inf}),
        tampered(release={"noise_multiplier": -1.0}), tampered(release={"noise_multiplier": 0}),
        tampered(release={"noise_multiplier": "5"}), tampered(release={"noise_multiplier": None}),
        tampered(release={"sampling_probability": 0}),
        tampered(release={"sampling_probability": 1.1}),
        tampered(release={"n_rounds": 0}), tampered(release={"n_rounds": 1.5}),
        tampered(release={"rounds_per_site": 1001}), tampered(release={"rounds_per_site": 0}),
        tampered(release={"sites_per_round": 9}), tampered(release={"sites_per_round": 0}),
        tampered(release={"event": "GaussianDpEvent"}),
        tampered(release={"stage": "mean"}),  # planned twice
        tampered(release={"stage": 7}), tampered(release={"stage": ["bound"]}),
        tampered(release={"stage": {"module": "os"}}), tampered(release={"stage": ""}),
        tampered(release={"stage": None}),
    ],
)  # fmt: skip
def test_json_that_is_not_a_plan_is_refused(text):
    assert PrivacyPlan.from_json(tampered()) == plan_of("secure-aggregation")
    with pytest.raises(InvalidInput):
        PrivacyPlan.from_json(text)


def test_a_plan_cannot_be_changed():
    plan = plan_of()
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.delta = 0.1
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.releases[0].noise_multiplier = 0.1
    assert isinstance(PrivacyPlan.from_json(plan.to_json()).releases, tuple)


@given(plans(), st.data())
def test_noise_of_a_sum_is_that_of_its_trust_model(plan, data):
    release = data.draw(st.sampled_from(plan.releases))
    least = plan.colluding_sites + 1 if plan.trust == "secure-aggregation" else 1
    n = data.draw(st.integers(least, plan.n_sites))
    z, noise = release.noise_multiplier, plan.noise_of_sum(release.stage, n)
    if plan.trust == "trusted-server":
        assert noise == z
        return
    if plan.trust == "local":
        assert noise == pytest.approx(z * math.sqrt(n))
        return
    survivors = n if plan.min_survivors is None else min(n, plan.min_survivors)
    assert plan.honest_shares(n) == survivors - plan.colluding_sites
    share = z / math.sqrt(survivors - plan.colluding_sites)
    assert noise == pytest.approx(share * math.sqrt(n))
    # What protects a record is what the honest survivors add: never less than z.
    assert share * math.sqrt(survivors - plan.colluding_sites) >= z * (1 - 1e-12)


@pytest.mark.parametrize("n", [1, 2])
def test_a_round_of_colluders_only_is_refused(n):
    plan = plan_of("secure-aggregation", colluding_sites=2)
    with pytest.raises(InvalidInput, match="more survivors than colluding_sites=2, got"):
        plan.honest_shares(n)
    with pytest.raises(InvalidInput, match="more survivors than colluding_sites=2, got"):
        noise_of(gate_of(plan), 3, sites=np.arange(n))


def test_a_stage_that_too_few_sites_take_part_in_is_refused_when_planned():
    """Not in its first round, when other stages have spent their budget."""
    small = PlannedRelease("rounds", 5, 2, 2, 1.0)
    with pytest.raises(InvalidInput, match="more survivors than colluding_sites=2, got 2"):
        PrivacyPlan((small,), 1e-5, "secure-aggregation", 10, colluding_sites=2)
    assert PrivacyPlan((small,), 1e-5, "local", 10, colluding_sites=2).n_sites == 10

"""The checks of noise and of spending find the bugs that privacy software is known for.

Every test first runs a check on the product, where it passes, then plants a bug and sees the very
same check fail.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from dpfedc.errors import InvalidInput, Refused
from dpfedc.privacy import gate as gate_module
from dpfedc.privacy.accountant import plan_epsilon, releases_epsilon
from dpfedc.privacy.charges import due_release
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.randomness import Randomness
from support.noise_checks import (
    NOISE,
    entries_are_unrelated,
    gate_of,
    has_std,
    noise_of,
    plan_of,
    rounds_are_unrelated,
    sites_are_unrelated,
    stages_are_unrelated,
    symmetric_noise_is_as_stated,
)
from support.planting import plant


@pytest.mark.parametrize("bug", ["two draws a pair", "diagonal", "no smaller off the diagonal"])
def test_symmetric_noise_that_is_wrong(bug, monkeypatch):
    std = NOISE["subspace"]
    assert symmetric_noise_is_as_stated(gate_of(plan_of()), std)

    def planted(value, noise, *, symmetric=False):
        upper = np.triu(noise, 1) / math.sqrt(2)
        if bug == "two draws a pair":
            return value + upper + np.tril(noise, -1) / math.sqrt(2) + np.diag(np.diag(noise))
        if bug == "diagonal":
            return value + upper + upper.T + np.diag(np.diag(noise)) / math.sqrt(2)
        return value + np.triu(noise, 1) + np.triu(noise, 1).T + np.diag(np.diag(noise))

    monkeypatch.setattr(gate_module, "with_noise", planted)
    assert not symmetric_noise_is_as_stated(gate_of(plan_of()), std)


@pytest.mark.parametrize(
    "bug",
    [
        lambda self, n: n,  # those who drop out or collude take their noise with them
        lambda self, n: n**2,  # 1/K of the noise in place of 1/sqrt(K)
        lambda self, n: self.n_sites,  # all sites counted, where only some take part
    ],
)
def test_a_share_of_the_noise_that_is_too_small(bug, monkeypatch):
    def noise():
        plan = plan_of("secure-aggregation", n_sites=50, min_survivors=10, colluding_sites=4)
        return noise_of(gate_of(plan), 4000, sites=np.arange(12))

    std = NOISE["mean"] * math.sqrt(12 / 6)
    assert has_std(noise(), std)
    monkeypatch.setattr(PrivacyPlan, "honest_shares", bug)
    assert not has_std(noise(), std)


class Planted(SimulatedNoise):
    """Noise with a key, or columns, missing."""

    def __init__(self, missing):
        super().__init__(Randomness(0))
        object.__setattr__(self, "missing", missing)

    def gaussian(self, shape, std, **keys):
        fixed = {"t": 1, "sites": np.array([0, 1]), "stage": "mean"}
        if self.missing in fixed:
            keys[self.missing] = fixed[self.missing]
        noise = super().gaussian(shape, std, **keys)
        return noise[:, :1] + 0 * noise if self.missing == "columns" else noise


@pytest.mark.parametrize(
    ("missing", "check"),
    [
        ("t", rounds_are_unrelated),
        ("sites", sites_are_unrelated),
        ("stage", stages_are_unrelated),
        ("columns", entries_are_unrelated),
    ],
)
def test_noise_that_is_used_twice(missing, check):
    """The same in every round, at every site, in every stage; the same for sums and counts."""
    assert check(gate_of(plan_of()))
    gate = gate_of(plan_of())
    gate.noise = Planted(missing)
    assert not check(gate)


def spent(gate):
    """Return the epsilon of what the gate's log says was released, by its own noise and count."""
    logged = {}
    for event in gate.events:
        logged.setdefault(event.stage, []).append(event)
    releases = tuple(
        replace(
            gate.plan.releases[0],
            stage=stage,
            n_rounds=len(events),
            rounds_per_site=len(events),
            noise_multiplier=min(e.noise_std / e.sensitivity for e in events),
        )
        for stage, events in logged.items()
    )
    return releases_epsilon(releases, gate.plan.delta)


def small_plan(**change_mean):
    """Return a plan of one release of `mean` and two of `scale`."""
    plan = plan_of(rounds=2)
    mean, scale = plan.of_stage("mean"), plan.of_stage("scale")
    mean = replace(mean, n_rounds=1, rounds_per_site=1, **change_mean)
    return replace(plan, releases=(mean, replace(scale, noise_multiplier=20.0)))


def run_of(gate, n_scale=2):
    noise_of(gate, 3, stage="mean")
    for t in range(1, n_scale + 1):
        noise_of(gate, 3, stage="scale", t=t)
    return gate


def test_a_budget_that_goes_to_the_wrong_stage(monkeypatch):
    plan = small_plan()
    promised = plan_epsilon(plan)
    assert spent(run_of(gate_of(plan))) == promised
    right = PrivacyPlan.of_stage
    monkeypatch.setattr(PrivacyPlan, "of_stage", lambda self, _: right(self, "mean"))
    gate = gate_of(plan)
    # The gate counts by the wrong row too, so the second round of `scale` is refused; what has
    # left by then is already more than was promised for both.
    with pytest.raises(Refused, match="planned for 1 releases"):
        run_of(gate)
    assert spent(gate) > 1.2 * promised


def forgets(right, *release, n_charged, last_round):
    """Plant: what has been charged is not counted."""
    return right(*release, n_charged=0, last_round=last_round)


def test_more_rounds_than_planned(monkeypatch):
    with pytest.raises(Refused, match="planned for 2 releases of a site, got one more"):
        run_of(gate_of(small_plan()), n_scale=3)
    plant(monkeypatch, due_release, forgets)
    gate = run_of(gate_of(small_plan(noise_multiplier=20.0)), n_scale=6)
    assert spent(gate) > 1.2 * plan_epsilon(gate.plan)


def test_a_stage_that_is_not_planned(monkeypatch):
    with pytest.raises(InvalidInput, match="'subspace' is not in the privacy plan"):
        noise_of(gate_of(small_plan()), 3, stage="subspace")
    right = PrivacyPlan.of_stage

    def lenient(self, stage):
        known = {release.stage for release in self.releases}
        return right(self, stage if stage in known else "scale")

    monkeypatch.setattr(PrivacyPlan, "of_stage", lenient)
    gate = run_of(gate_of(small_plan(noise_multiplier=20.0)))
    noise_of(gate, 3, stage="subspace")
    assert spent(gate) > 1.1 * plan_epsilon(gate.plan)

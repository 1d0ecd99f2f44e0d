"""Simulated and deployed runs are one program: what is changed in one place changes both alike.

Noise is made nothing here, so that runs can be compared number by number. Each bug is planted where
its rule is written. A second copy of the rule, in the simulation or at a site, would be left as it
was, and the runs would part.
"""

from dataclasses import replace

import numpy as np
import pytest

from dpfedc.clustering.registry import method_named
from dpfedc.deployment.round_calls import TooFewAnswers
from dpfedc.engine.rounds import run
from dpfedc.engine.simulated import SimulatedSites, Sites
from dpfedc.errors import Refused
from dpfedc.kernels.clipping import clip_weights
from dpfedc.kernels.row_views import Columns
from dpfedc.privacy import charges
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.ledger import GaussianCap, Ledger
from dpfedc.privacy.noise import SecureNoise, SimulatedNoise
from dpfedc.randomness import Randomness
from support.deployment import SIZES, MemoryTransport, agreed, records
from support.noise_checks import gate_of, noise_of, plan_of
from support.planting import plant

METHODS = {
    "dp-lloyd": {"norm_bound": 9.0},  # some records are longer
    "dp-fedc": {"n_rounds": 4, "sites_per_round": 2, "subspace": 2},
}
KINDS = ("simulated", "deployed", "deployed, exact")


@pytest.fixture(autouse=True)
def no_noise(monkeypatch):
    monkeypatch.setattr(SimulatedNoise, "gaussian", lambda self, shape, std, **_: np.zeros(shape))
    monkeypatch.setattr(
        SecureNoise, "integers", lambda self, shape, std: np.zeros(shape, dtype=np.int64)
    )


class Federation:
    """One small federation, run in each of the three ways."""

    def __init__(self, method, folder):
        self.agreement = agreed(method, epsilon=200.0, settings=METHODS[method])
        self.folder, self.n_runs = folder, 0

    def centers(self, kind):
        agreement = self.agreement
        if kind == "deployed, exact":
            agreement = replace(agreement, noise="secure")
        if kind != "simulated":
            self.n_runs += 1
            folder = self.folder / str(self.n_runs)
            folder.mkdir()
            return MemoryTransport(agreement, folder).coordinator().run().model.cluster_centers
        randomness, plan = Randomness(agreement.seed), agreement.plan
        gate = Gate(agreement.privacy, SimulatedNoise(randomness), randomness)
        sites = Sites.of(records(), np.repeat(np.arange(len(SIZES)), list(SIZES.values())))
        backend = SimulatedSites(sites, gate, randomness)
        last = run(plan.stages, backend, randomness=randomness, state=agreement.declared)
        method, about = method_named(agreement.method), {"feature_names": None, "about": {}}
        return method.model(agreement.settings, plan, last.state, **about).cluster_centers

    def alike(self):
        """Return the centres of all three runs, which must be the same but for the grid's step."""
        found = [self.centers(kind) for kind in KINDS]
        np.testing.assert_allclose(found[1], found[0], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(found[2], found[0], rtol=1e-5, atol=1e-5)
        return found[0]


def half_as_long(right, norms, bound, present=None, *, units=None):
    """Plant: records are clipped to half of what is stated."""
    return right(norms, bound / 2, present, units=None if units is None else units / 2)


def turned_round(right, cls, *parts):
    """Plant: what stands side by side stands the other way round; norms stay what they are."""
    return right(cls, *parts[::-1])


BUGS = {"clip": (clip_weights, half_as_long), "sum": (Columns.of.__func__, turned_round)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bug", BUGS)
def test_another_clip_or_sum_changes_all_runs_alike(bug, method, tmp_path, monkeypatch):
    federation = Federation(method, tmp_path)
    before = federation.alike()
    plant(monkeypatch, *BUGS[bug])
    assert np.abs(federation.alike() - before).max() > 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_another_charge_ends_all_runs_alike(kind, tmp_path, monkeypatch):
    """With one release fewer than planned, the last round is refused everywhere."""
    federation = Federation("dp-lloyd", tmp_path)
    assert np.isfinite(federation.centers(kind)).all()

    def fewer(right, *release, n_charged, **rest):
        return right(*release, n_charged=n_charged + 1, **rest)

    plant(monkeypatch, charges.due_release, fewer)
    message = "stage 'lloyd' is planned for 3 releases of a site, got one more"
    with pytest.raises((Refused, TooFewAnswers), match=message) as refused:
        federation.centers(kind)
    assert kind == "simulated" or "round 3 of stage 'lloyd'" in str(refused.value)


def test_one_release_more_than_planned_passes_gate_and_ledger_alike(tmp_path, monkeypatch):
    plan, path = plan_of("local", rounds=1), tmp_path / "ledger"
    gate = gate_of(plan)
    ledger = Ledger.create(path, holding="records", cap=GaussianCap(1000.0, 1e-3))

    def release(t):
        yield lambda: noise_of(gate, 3, t=t)
        yield lambda: ledger.charge("run", plan, "mean", t, f"r{t}", noise_multiplier=2.0)

    def more(right, *release, n_charged, **rest):
        return right(*release, n_charged=n_charged - 1, **rest)

    with ledger:
        for let_out in release(1):
            let_out()
        for let_out in release(2):
            with pytest.raises(Refused, match="planned for 1 releases of a site, got one more"):
                let_out()
        with monkeypatch.context() as patch:
            plant(patch, charges.due_release, more)
            for let_out in release(2):
                let_out()
        assert len(gate.events) == 2
    with pytest.raises(Refused):  # the right rule reads what was written, and finds it out
        Ledger.open(path).close()

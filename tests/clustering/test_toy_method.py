"""A stage and a method of one's own need no other file to be touched."""

from __future__ import annotations

import numpy as np
import pytest

from dpfedc.clustering import registry
from dpfedc.clustering.plan_text import plan_in_words
from dpfedc.deployment.messages import Request
from dpfedc.deployment.terms import terms
from dpfedc.errors import Refused
from dpfedc.report.folder import write_page
from support.deployment import MemoryTransport, agreed, by_site, node
from support.toy import HalvesClusterer, HalvesMethod


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_PLACES", dict(registry._PLACES))
    registry.register(HalvesMethod())


def near_truth(centers):
    """Return whether the first features of the two centres are about 0 and 9."""
    return np.abs(np.sort(np.asarray(centers)[:, 0]) - [0, 9]).max() < 1.5


def test_it_plans_with_words():
    agreement = agreed("halves", settings={"n_clusters": 2})
    words = " ".join(plan_in_words(agreement.plan, agreement.facts, agreement.target))
    assert "sums and counts on both sides of a threshold" in words
    assert "how long records are" in words
    assert [r.stage for r in agreement.privacy.releases] == ["bound", "halves"]


@pytest.mark.parametrize("epsilon", [None, 50.0])
def test_it_runs_simulated(epsilon):
    X = np.concatenate(list(by_site().values()))
    sites = np.repeat(np.arange(3), [len(x) for x in by_site().values()])
    bound = "auto" if epsilon else 30.0
    model = HalvesClusterer(epsilon=epsilon, random_state=0, norm_bound=bound).fit(X, sites=sites)
    assert near_truth(model.cluster_centers_)
    assert (model.privacy_ is None) == (epsilon is None)


@pytest.mark.parametrize("noise", ["simulated", "secure"])
def test_it_runs_deployed_and_is_reported(tmp_path, noise):
    agreement = agreed("halves", settings={"n_clusters": 2}, noise=noise)
    done = MemoryTransport(agreement, tmp_path).coordinator().run()
    assert near_truth(done.model.cluster_centers)
    page = write_page(tmp_path / "run").read_text(encoding="utf-8")
    assert "sums and counts on both sides of a threshold" in page


def test_operators_read_what_leaves_their_site():
    told = " ".join(terms(agreed("halves", settings={"n_clusters": 2})))
    assert "halves (sums and counts on both sides of a threshold)" in told
    assert "one noisy sum of 2 x 4 numbers" in told


@pytest.mark.parametrize(("threshold", "accepted"), [(0.5, True), (1e6, False)])
def test_a_site_checks_the_range_that_the_stage_states(tmp_path, threshold, accepted):
    agreement = agreed("halves", settings={"n_clusters": 2, "norm_bound": 20.0})
    transport = MemoryTransport(agreement, tmp_path)
    arrays = {
        "origin": np.zeros(3), "bound": np.asarray(20.0), "threshold": np.asarray(threshold),
    }  # fmt: skip
    request = Request(agreement.digest, "berlin", "halves", 1, arrays).to_bytes()
    with transport.ledger("berlin") as ledger:
        site = node(agreement, "berlin", ledger)
        if accepted:
            assert site.answer(request)
            return
        with pytest.raises(Refused, match="'threshold' must be in the range of its stage"):
            site.answer(request)
        assert not ledger.totals().stages  # nothing was charged


def test_settings_that_the_table_does_not_have_are_refused():
    with pytest.raises(ValueError, match="settings of halves must be among n_clusters"):
        agreed("halves", settings={"n_clusters": 2, "subspace": 3})
    with pytest.raises(ValueError, match="n_rounds must be >= 1, got 0"):
        HalvesClusterer(n_rounds=0).fit(np.random.default_rng(0).normal(size=(20, 2)))


def test_a_method_without_a_proof_is_not_deployed():
    unproved = HalvesMethod()
    unproved.proved = False
    registry.register(unproved)
    assert "halves" not in registry.proved_methods()
    with pytest.raises(ValueError, match="method must be one of dp-fedc"):
        agreed("halves", settings={"n_clusters": 2})

"""The noise in sums of deployed rounds with secure aggregation, measured and attacked.

Theorem 4 of docs/privacy-proof.md: whoever drops out, what honest sites add to a sum comes to the
planned noise. Real noise, real messages; each statistical check has a false-alarm rate of 1e-6, an
audit one of 1e-3.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from dpfedc.deployment.site_run import SiteRun
from dpfedc.privacy.accountant import plan_epsilon
from dpfedc.privacy.exact_sums import SENSITIVITY, exact_upload, noise_in_units
from dpfedc.privacy.noise import SecureNoise
from dpfedc.privacy.privacy_plan import PrivacyPlan
from support.audits import lower_bound
from support.masked_runs import MaskedTransport, OneRound, lloyd, masked, signing_key, study
from support.noise_checks import has_std, is_gaussian
from support.planting import plant

FEATURES = tuple(f"feature {i}" for i in range(200))
"""With 100 clusters a sum has 20,100 numbers: its variance is known to 1 %."""


@dataclass(frozen=True, eq=False)
class Noted(SecureNoise):
    """Real noise of a site that notes what it drew: it helps the server."""

    drawn: list = field(default_factory=list)

    def integers(self, shape, std):
        self.drawn.append(super().integers(shape, std))
        return self.drawn[-1]


def noises(folder, *, n_lost):
    """Play a round of four sites of different sizes, of which one or none is lost after sharing.

    Returns the agreement, the noise in the opened sum, the same less that of a colluding site, and
    how many sites are in it.
    """
    settings = (("n_clusters", 100), *lloyd(1))
    agreement = study(4, settings=settings, features=FEATURES, spare_rounds=0)
    rng = np.random.default_rng(0)
    transport = MaskedTransport(agreement, folder)
    transport.X = {s.name: rng.normal(size=(s.n_records, 200)) for s in agreement.sites}
    assert len({s.n_records for s in agreement.sites}) == 3
    colluder = transport.noise["geneva"] = Noted()
    play = OneRound(transport, folder / "server")
    names = list(play.prepared())
    play.uploaded(names[: len(names) - n_lost])
    values, summed = play.opened()
    noise = values - play.exact(summed)
    (known,) = colluder.drawn
    noise, honest = (n.view(np.int64).astype(float) for n in (noise, noise - known.view(np.uint64)))
    return agreement, noise, honest, summed


def planned_std(agreement):
    """Return the noise that a plan wants in a sum against whoever colludes, in grid units."""
    return agreement.privacy.of_stage("lloyd").noise_multiplier * SENSITIVITY


@pytest.mark.parametrize("n_lost", [0, 1])
def test_the_sum_has_the_planned_noise_whoever_drops_out(tmp_path, n_lost):
    """With K sites sqrt(K / h) times the plan's z; of the fewest, less the colluder's, just z."""
    agreement, noise, honest, summed = noises(tmp_path, n_lost=n_lost)
    assert noise.size > 20_000
    h = agreement.privacy.min_survivors - agreement.privacy.colluding_sites
    assert (len(summed), h) == (4 - n_lost, 2)
    std = planned_std(agreement)
    assert has_std(noise, std * math.sqrt(len(summed) / h))
    assert has_std(honest, std * math.sqrt((len(summed) - 1) / h))
    assert is_gaussian(honest, std * math.sqrt((len(summed) - 1) / h))
    assert has_std(honest, std) == (n_lost == 1), "and no more than that if one is lost"


def for_all_sites(_, plan, stage):
    """Plant: the noise is divided by all sites of a round, as if each were there and honest."""
    release = plan.of_stage(stage)
    return release.noise_multiplier / math.sqrt(release.sites_per_round)


def test_shares_for_all_sites_are_found_to_be_too_small(tmp_path, monkeypatch):
    plant(monkeypatch, PrivacyPlan.noise_of_site, for_all_sites)
    agreement, _, honest, summed = noises(tmp_path, n_lost=1)
    std = planned_std(agreement)
    assert not has_std(honest, std)
    assert has_std(honest, std * math.sqrt((len(summed) - 1) / 4)), "it is 0.7 of what it must be"


# Audits: an attacker who knows all records but one, and asks whether that one is there

N_RUNS = 200
CANARY = np.array([[1.0]])
"""A record as long as records may be; all others lie at the origin."""


def small(n_sites, epsilon, **more):
    """Return an agreement on one round of one cluster in one dimension: one release in all."""
    return masked(
        n_sites, epsilon=epsilon, delta=1e-3, features=("age",), spare_rounds=0,
        settings={"n_clusters": 1, "n_rounds": 1, "norm_bound": 1.0}, **more,
    )  # fmt: skip


def sites_with(folder, agreement, *, canary):
    """Return the sites, at the first of which the canary is the first record, or none is."""
    transport = MaskedTransport(agreement, folder)
    transport.X = {s.name: np.zeros((s.n_records, 1)) for s in agreement.sites}
    first = agreement.sites[0].name
    transport.X[first][:1] = CANARY if canary else np.nan  # a null record
    return transport


def uploads(transport, sites, n_runs):
    """Return the sum over these sites before their masks, in many runs of the same round.

    That the masks leave no trace in the sum, and that it is that of all survivors, is tested
    elsewhere to the last bit.
    """
    play = OneRound(transport, transport.folder / "server")
    total = []
    for site in sites:
        with transport.ledger(site) as ledger:
            here = SiteRun(
                transport.agreement, transport.agreement.digest, site, transport.X[site],
                np.ones(len(transport.X[site]), bool), ledger, sign=signing_key(site).sign,
            )  # fmt: skip
            total.append(
                [here._upload(play.exchange, play.arrays, 1).values for _ in range(n_runs)]
            )
    return np.sum(total, axis=0, dtype=np.uint64)


def evidence(found, worlds, std):
    """Return how much likelier each sum is with the canary than without it, as a logarithm."""
    with_it, without = ((found - world).view(np.int64) / std for world in worlds)
    return ((without**2 - with_it**2) / 2).sum(axis=(1, 2))


def worlds_of(folder, agreement, sites):
    """Return the sums over these sites without noise, with the canary and without it."""
    found = []
    for canary in (True, False):
        (folder / str(canary)).mkdir(parents=True, exist_ok=True)
        transport = sites_with(folder / str(canary), agreement, canary=canary)
        for name, X in transport.X.items():
            transport.X[name] = X[np.isfinite(X).all(axis=1)]
        found.append(OneRound(transport, folder / "exact").exact(sites))
    return found


def audited(folder, agreement):
    """Return the epsilon that is shown of the sum of the fewest sites, and what is claimed.

    Of K_min survivors c help the server: what is left is the sum of the others' uploads.
    """
    plan = agreement.privacy
    honest = [s.name for s in agreement.sites[: plan.min_survivors - plan.colluding_sites]]
    worlds = worlds_of(folder, agreement, honest)
    std, scores = planned_std(agreement), []
    for canary in (True, False):
        transport = sites_with(folder / str(canary), agreement, canary=canary)
        scores.append(evidence(uploads(transport, honest, N_RUNS), worlds, std))
    return lower_bound(*scores, delta=plan.delta), plan_epsilon(plan)


def test_a_canary_in_a_sum_of_the_fewest_is_as_well_hidden_as_is_claimed(tmp_path):
    found, claimed = audited(tmp_path, small(4, 2.0))
    assert claimed == pytest.approx(2.0, rel=1e-2)
    assert found <= claimed


def test_the_audit_finds_out_noise_that_is_forgotten(tmp_path, monkeypatch):
    """Plant: the shares of noise are a thousandth of what they must be."""
    plant(monkeypatch, PrivacyPlan.noise_of_site, lambda right, *a: right(*a) / 1000)
    found, claimed = audited(tmp_path, small(4, 2.0))
    assert found > claimed


def in_one_draw(folder, agreement, n_runs):
    """Audit as above, with all runs' noise drawn at once, by what a site's gate draws it with."""
    plan = agreement.privacy
    h = plan.min_survivors - plan.colluding_sites
    honest = [s.name for s in agreement.sites[:h]]
    worlds = worlds_of(folder, agreement, honest)
    scores = []
    for world in worlds:
        total = np.broadcast_to(world.view(np.int64), (n_runs, *world.shape))
        share = plan.noise_of_site("lloyd")
        found = exact_upload(total, 1.0, noise=SecureNoise(), multiplier=share)[0].values
        for _ in range(h - 1):
            more, _ = exact_upload(0 * total, 1.0, noise=SecureNoise(), multiplier=share)
            found = found + more.values
        std = noise_in_units(share) * math.sqrt(h)
        scores.append(evidence(found, worlds, std))
    return lower_bound(*scores, delta=plan.delta), plan_epsilon(plan)


def test_the_audit_finds_out_shares_for_all_sites(tmp_path, monkeypatch):
    """With many colluders that are reckoned with: of 20 sites only two are sure to add noise."""
    agreement = small(20, 1.0, colluding_sites=17)
    assert agreement.privacy.min_survivors == 19
    found, claimed = in_one_draw(tmp_path / "right", agreement, 2000)
    assert claimed == pytest.approx(1.0, rel=1e-2)
    assert found <= claimed
    plant(monkeypatch, PrivacyPlan.noise_of_site, for_all_sites)
    found, claimed = in_one_draw(tmp_path / "planted", agreement, 2000)
    assert found > 1.2 * claimed

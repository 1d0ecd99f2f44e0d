"""A deployed site: what it refuses, what it charges, and what its answers depend on."""

from dataclasses import replace

import numpy as np
import pytest

from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.clustering.stage import SiteBatch
from dpfedc.deployment.exchanges import exchanges
from dpfedc.deployment.keys import new_key, signed
from dpfedc.deployment.messages import Answer, Request, digest
from dpfedc.deployment.site_run import SiteRun
from dpfedc.errors import DPFedCError, InvalidInput, Refused
from dpfedc.privacy.exact_sums import SENSITIVITY
from dpfedc.privacy.ledger import GaussianCap, Head, Ledger
from dpfedc.privacy.sampling import RoundSample
from dpfedc.randomness import Randomness
from dpfedc.settings import PrivacyTarget
from support.deployment import KEY, SIZES, agreed, by_site, new_ledger, node
from support.exact_checks import terms

LLOYD = {"origin": np.zeros(3), "bound": np.array(12.0), "centers": np.eye(3)}
FACTORISATION = {
    "origin": np.zeros(3),
    "bound": np.array(12.0),
    "radius": np.array(12.0),
    "data_mean": np.array([2.0, 3.0, 1.0]),
    "scale": np.array(6.0),
    "W": np.eye(3),
}
CELLS = {
    "basis": np.eye(3)[:2],
}
"""And `centers` and `residual_bounds`, whose shapes are those of their stage."""


@pytest.fixture
def ledger(tmp_path):
    new_ledger(tmp_path, "berlin")
    with Ledger.open(tmp_path / "berlin.ledger") as ledger:
        yield ledger


def request(agreement, stage="lloyd", t=1, arrays=LLOYD, receipt=None, **changes):
    place = {"run": agreement.digest, "site": "berlin", "stage": stage, "t": t, **changes}
    return Request(**place, arrays=arrays, receipt=receipt).to_bytes()


def charged(ledger):
    return sum(stage.n_charged for stage in ledger.totals().stages)


def test_an_answer_is_charged_stored_and_about_the_request(ledger):
    agreement = agreed()
    data = request(agreement)
    answer = Answer.from_bytes(node(agreement, "berlin", ledger).answer(data))
    assert (answer.run, answer.site, answer.stage, answer.t) == (
        agreement.digest, "berlin", "lloyd", 1,
    )  # fmt: skip
    assert answer.request == digest(data)
    assert answer.upload.values.shape == (3, 4)
    assert charged(ledger) == 1
    ledger.require(answer.ledger)
    ledger.verify()


@pytest.mark.parametrize("noise", ["simulated", "secure"])
def test_the_same_request_gets_the_same_bytes_and_costs_nothing(ledger, noise):
    agreement = agreed(noise=noise)
    data = request(agreement)
    first = node(agreement, "berlin", ledger).answer(data)
    assert node(agreement, "berlin", ledger).answer(data) == first
    assert charged(ledger) == 1


def test_another_request_for_the_same_round_is_refused(ledger):
    agreement = agreed()
    site = node(agreement, "berlin", ledger)
    site.answer(request(agreement))
    with pytest.raises(Refused, match="another request"):
        site.answer(request(agreement, arrays={**LLOYD, "centers": 2 * np.eye(3)}))
    assert charged(ledger) == 1


def test_rounds_go_forward_only(ledger):
    agreement = agreed()
    site = node(agreement, "berlin", ledger)
    site.answer(request(agreement, t=2))
    for t in (1, 0, 4, 10**9):
        with pytest.raises(DPFedCError):
            site.answer(request(agreement, t=t))
    site.answer(request(agreement, t=3))
    assert charged(ledger) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "00" * 32},
        {"site": "geneva"},
        {"stage": "factorisation"},
        {"arrays": {}},
        {"arrays": {"origin": np.zeros(3), "bound": np.array(12.0)}},
        {"arrays": {**LLOYD, "more": np.zeros(3)}},
        {"arrays": {**LLOYD, "centers": np.eye(4)}},
        {"arrays": {**LLOYD, "centers": np.eye(3)[None]}},
        {"arrays": {**LLOYD, "centers": np.full((3, 3), np.nan)}},
        {"arrays": {**LLOYD, "centers": np.full((3, 3), np.inf)}},
        {"arrays": {**LLOYD, "centers": np.eye(3).astype(np.uint64)}},
        {"arrays": {**LLOYD, "origin": np.ones(3)}},
        {"arrays": {**LLOYD, "bound": np.array(0.0)}},
        {"arrays": {**LLOYD, "bound": np.array(-1.0)}},
        {"arrays": {**LLOYD, "bound": np.array(1e200)}},
        {"arrays": {**LLOYD, "bound": np.array(5e-324)}},
    ],
)
def test_a_wrong_request_is_refused_and_costs_nothing(ledger, changes):
    agreement = agreed()
    with pytest.raises(Refused):
        node(agreement, "berlin", ledger).answer(request(agreement, **changes))
    assert charged(ledger) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"W": 3 * np.eye(3)},
        {"W": np.eye(3)[:2]},
        {"data_mean": np.full(3, 1e13)},
        {"data_mean": np.full(3, 1e308)},
        {"scale": np.array(0.0)},
        {"scale": np.array(1e-9)},
        {"scale": np.array(1e9)},
        {"scale": np.array(np.nan)},
    ],
)
def test_broadcasts_out_of_range_are_refused(ledger, change):
    agreement = agreed("dp-fedc")
    site = node(agreement, "berlin", ledger)
    with pytest.raises(Refused):
        site.answer(request(agreement, "factorisation", arrays={**FACTORISATION, **change}))
    assert charged(ledger) == 0
    site.answer(request(agreement, "factorisation", arrays=FACTORISATION))


def test_declared_values_must_be_the_declared_ones(ledger):
    agreement = agreed(settings={"norm_bound": 12.0})
    site = node(agreement, "berlin", ledger)
    with pytest.raises(Refused, match="'bound' must be what was agreed"):
        site.answer(request(agreement, arrays={**LLOYD, "bound": np.array(12.5)}))
    site.answer(request(agreement))


def test_bytes_that_are_no_request(ledger):
    agreement = agreed()
    site = node(agreement, "berlin", ledger)
    for data in (b"", b"hello", request(agreement)[:-1], request(agreement) + b"\0" * 10**6):
        with pytest.raises(InvalidInput):
            site.answer(data)


def test_a_site_answers_in_its_own_rounds_only(ledger):
    agreement = agreed(settings={"n_rounds": 6, "sites_per_round": 1, "norm_bound": 12.0})
    site = node(agreement, "berlin", ledger)
    mine = [t for t in range(1, 7) if 0 in agreement.cohort("lloyd", t)]
    assert len(mine) == agreement.privacy.of_stage("lloyd").rounds_per_site == 2
    for t in range(1, 7):
        if t in mine:
            site.answer(request(agreement, t=t))
        else:
            with pytest.raises(Refused, match="is not in round"):
                site.answer(request(agreement, t=t))
    assert charged(ledger) == 2


def test_what_the_operator_did_not_accept_is_not_run(ledger):
    agreement = agreed()
    X, present = by_site()["berlin"], np.ones(SIZES["berlin"], bool)
    with pytest.raises(InvalidInput, match="accepted"):
        SiteRun(agreement, "00" * 32, "berlin", X, present, ledger, allow_simulated=True)
    with pytest.raises(InvalidInput, match="noise must be secure"):
        SiteRun(agreement, agreement.digest, "berlin", X, present, ledger)
    with pytest.raises(InvalidInput, match="site must be one of"):
        node(agreement, "rome", ledger, X)
    with pytest.raises(InvalidInput, match="declared shape"):
        node(agreement, "berlin", ledger, X[1:])
    weak = replace(
        agreement, privacy=replace(agreement.privacy, releases=agreement.privacy.releases[:1])
    )
    with pytest.raises(InvalidInput, match="privacy plan"):
        node(weak, "berlin", ledger)


def test_noise_that_the_site_would_not_have_planned_is_refused_before_the_first_charge(ledger):
    agreement = agreed()
    releases = tuple(replace(r, noise_multiplier=0.2) for r in agreement.privacy.releases)
    weak = replace(agreement, privacy=replace(agreement.privacy, releases=releases))
    with pytest.raises(Refused, match="must have noise multiplier"):
        node(weak, "berlin", ledger).answer(request(weak))
    assert charged(ledger) == 0


def test_the_lifetime_cap_is_kept(tmp_path):
    agreement = agreed()
    new_ledger(tmp_path, "berlin", cap=GaussianCap(1.0, 1e-6))
    with Ledger.open(tmp_path / "berlin.ledger") as ledger:
        with pytest.raises(Refused):
            node(agreement, "berlin", ledger).answer(request(agreement))
        assert charged(ledger) == 0


class TestReceipts:
    def test_a_signed_receipt_is_accepted(self, ledger):
        agreement = agreed()
        receipt = signed(KEY, agreement.digest, "berlin", ledger.head())
        node(agreement, "berlin", ledger).answer(request(agreement, receipt=receipt))

    def test_a_ledger_from_a_backup_is_revealed(self, tmp_path, ledger):
        agreement = agreed()
        answer = node(agreement, "berlin", ledger).answer(request(agreement))
        receipt = signed(KEY, agreement.digest, "berlin", Answer.from_bytes(answer).ledger)
        (tmp_path / "backup").mkdir()
        new_ledger(tmp_path / "backup", "berlin")
        with Ledger.open(tmp_path / "backup" / "berlin.ledger") as restored:
            with pytest.raises(Refused, match="restored") as refusal:
                node(agreement, "berlin", restored).answer(request(agreement, t=2, receipt=receipt))
            assert str(tmp_path) not in str(refusal.value)
            assert charged(restored) == 0

    def test_receipts_of_others_are_refused(self, ledger):
        agreement = agreed()
        run, head = agreement.digest, ledger.head()
        for receipt in (
            signed(new_key(), run, "berlin", head),
            signed(KEY, "00" * 32, "berlin", head),
            signed(KEY, run, "geneva", head),
            replace(signed(KEY, run, "berlin", head), head=Head(head.n_rows + 1, head.digest)),
        ):
            with pytest.raises(Refused, match="signed by the coordinator"):
                node(agreement, "berlin", ledger).answer(request(agreement, receipt=receipt))
        assert charged(ledger) == 0


class TestRecords:
    @pytest.mark.parametrize(
        ("method", "settings"),
        [
            ("dp-lloyd", {"n_rounds": 1}),
            ("dp-fedc", {"n_rounds": 1, "refine_rounds": 1}),
            ("dp-fedc", {"cells": 4, "subspace": 2, "refine_rounds": 2}),
        ],
        ids=["dp-lloyd", "dp-fedc", "dp-fedc by cells"],
    )
    @pytest.mark.parametrize("noise", ["simulated", "secure"])
    @pytest.mark.parametrize("worst", [np.nan, np.inf, 1e308, 1e-308, 1e160])
    def test_no_value_of_a_record_makes_a_difference_in_kind(
        self, ledger, tmp_path, method, settings, noise, worst
    ):
        """Every stage answers, with the same shapes, whatever the records hold."""
        agreement = agreed(method, noise=noise, settings=settings)
        X = by_site()["berlin"]
        X[3], X[5, 1] = worst, -worst
        site = node(agreement, "berlin", ledger, X)
        known = {**LLOYD, **FACTORISATION, **CELLS}
        for exchange in agreement.exchanges:
            arrays = {name: known.get(name) for name in exchange.broadcast}
            values = {"residual_bounds": 0.5, "centers": 0.1, "prototypes": 0.1, "places": 0.1}
            for name, value in (values | {"place_clusters": 1.0}).items():
                if name in arrays and (arrays[name] is None or "residual_bounds" in arrays):
                    arrays[name] = np.full(exchange.broadcast[name].shape, value)
            data = request(agreement, exchange.stage.name, arrays=arrays)
            upload = Answer.from_bytes(site.answer(data)).upload
            shape = exchange.form.shape
            if exchange.form.symmetric and noise == "secure":  # its triangle
                shape = (shape[0] * (shape[0] + 1) // 2,)
            assert upload.values.shape == shape
            assert np.isfinite(upload.values.astype(float)).all()

    def test_a_record_that_is_not_finite_counts_as_null(self, tmp_path, ledger):
        agreement = agreed()
        X = by_site()["berlin"]
        X[3, 1] = np.nan
        missing = np.ones(len(X), bool)
        missing[3] = False
        new_ledger(tmp_path, "other")
        with Ledger.open(tmp_path / "other.ledger") as other:
            nulled = SiteRun(
                agreement, agreement.digest, "berlin", by_site()["berlin"], missing, other, True
            )
            one = node(agreement, "berlin", ledger, X).answer(request(agreement))
            two = nulled.answer(request(agreement))
        values = [Answer.from_bytes(data).upload.values for data in (one, two)]
        np.testing.assert_array_equal(*values)

    def test_secure_noise_is_never_drawn_again(self, tmp_path):
        """Two ledgers, one request, one seed.

        Noise in grid units has a standard deviation above 2^35 here: one of twelve draws is the
        same twice with a chance of less than 1e-7.
        """
        agreement = agreed(noise="secure")
        uploads = []
        for name in ("one", "two"):
            new_ledger(tmp_path, name)
            with Ledger.open(tmp_path / f"{name}.ledger") as ledger:
                data = node(agreement, "berlin", ledger).answer(request(agreement))
                uploads.append(Answer.from_bytes(data).upload)
        assert uploads[0].values.dtype == np.uint64
        assert agreement.privacy.of_stage("lloyd").noise_multiplier * SENSITIVITY > 2**35
        assert not (uploads[0].values == uploads[1].values).any()


def test_work_that_fails_says_nothing_and_stays_charged(ledger, monkeypatch):
    from dpfedc.clustering.lloyd import LloydSums

    def broken(self, batch, *rest):
        raise InvalidInput(f"the first record is {batch.X[0]}")

    agreement = agreed()
    monkeypatch.setattr(LloydSums, "local", broken)
    with pytest.raises(Refused) as refusal:
        node(agreement, "berlin", ledger).answer(request(agreement))
    assert "record is" not in str(refusal.value)
    assert charged(ledger) == 1
    monkeypatch.undo()
    with pytest.raises(Refused, match="spent"):
        node(agreement, "berlin", ledger).answer(request(agreement))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("dp-lloyd", {}),
        ("dp-fedc", {}),
        ("dp-fedc", {"subspace": 2, "refine_rounds": 0, "quality": True}),
        ("dp-fedc", {"update": "sums-and-gram", "constant_feature": 0.5}),
        ("dp-fedc", {"center": False, "scale": False, "norm_bound": 12.0}),
        ("dp-fedc", {"scale": "columns"}),
    ],
)
def test_the_declared_forms_are_those_of_the_contributions(method, settings):
    """What stages say of their uploads against what they make of a public state."""
    agreement = agreed(method, settings=settings)
    rng = np.random.default_rng(0)
    for exchange in agreement.exchanges:
        state = {name: rng.random(e.shape) + 0.1 for name, e in exchange.broadcast.items()}
        stage, batch = exchange.stage, SiteBatch(np.zeros((1, 3)), np.array([0, 1]), np.array([0]))
        batch.memory = stage.prepare(batch, state, Randomness(0))
        made = stage.local(batch, state, 1, RoundSample(1.0, 1), Randomness(0))
        assert terms(made).shape[1:] == exchange.form.shape
        assert made.total(np.ones(1)).shape == exchange.form.shape
        assert made.symmetric == exchange.form.symmetric


def test_what_makes_no_exact_sum_cannot_be_deployed():
    facts = Federation(3, np.array([50, 50]))
    target = PrivacyTarget(5.0, 1e-5)
    plan = method_named("dp-fedc").plan({"n_clusters": 3, "extra_steps": 2}, facts, target)
    with pytest.raises(InvalidInput, match=r"'factorisation'.*extra_steps must be 0"):
        exchanges(plan.stages, {}, 3)
    exact = method_named("federated-k-means").plan({"n_clusters": 3}, facts, None)
    with pytest.raises(InvalidInput, match="'seeding' must release one exact sum"):
        exchanges(exact.stages, {}, 3)

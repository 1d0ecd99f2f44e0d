"""The gate: it charges before it releases, and lets nothing out that is not in the plan."""

import copy
import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedc.errors import DPFedCError, InvalidInput, Refused
from dpfedc.kernels.row_views import Columns
from dpfedc.privacy.accountant import plan_epsilon, releases_epsilon
from dpfedc.privacy.gate import Gate, Released, ReleaseEvent
from dpfedc.privacy.noise import SecureNoise, SimulatedNoise
from dpfedc.privacy.open_gate import OpenGate, SiteUploads
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.sampling import RoundSample, sampled_by_slot
from dpfedc.privacy.schedule import most_rounds_of_a_site, schedule
from dpfedc.privacy.sums import KernelSum, OuterSum, SiteValues
from dpfedc.randomness import Randomness
from support.noise_checks import (
    NOISE,
    STAGES,
    empty_batch,
    gate_of,
    let_out,
    logged_releases,
    noise_of,
    nothing,
    plan_of,
)


def test_a_stage_that_is_not_planned_is_refused():
    plan = plan_of()
    with pytest.raises(InvalidInput, match="'metrics' is not in the privacy plan, which has bound"):
        plan.of_stage("metrics")
    gate = gate_of(plan)
    with pytest.raises(InvalidInput, match="'metrics' is not in the privacy plan"):
        noise_of(gate, 3, stage="metrics")
    with pytest.raises(Refused, match="'metrics' is not in the privacy plan"):
        let_out(gate, ZERO, empty_batch([0]), RoundSample(1.0, 1), stage="metrics")
    assert gate.events == []


def test_one_release_more_than_planned_is_refused():
    gate = gate_of(plan_of(rounds=3))
    for t in (1, 2, 3):
        noise_of(gate, 3, sites=[1, 2], t=t)
    with pytest.raises(Refused, match="planned for 3 releases of a site, got one more"):
        noise_of(gate, 3, sites=[2, 3], t=4)
    noise_of(gate, 3, sites=[3, 4], t=4)  # these have taken part in fewer
    assert len(gate.events) == 4


def test_a_release_that_fails_has_been_charged():
    """The charge comes first: whatever happens after it, the round counts as spent."""
    gate = gate_of(plan_of(rounds=1))

    def broken(bound, keep):
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError):
        let_out(gate, KernelSum(broken, np.zeros(1)), empty_batch([0]))
    with pytest.raises(Refused, match="after round 1"):
        noise_of(gate, 3, t=1)
    with pytest.raises(Refused, match="got one more"):
        noise_of(gate, 3, t=2)


@pytest.mark.parametrize("again", [1, 2])
def test_a_round_is_released_once(again):
    """Its noise and its coins would be the same: the difference of two releases would have none."""
    gate = gate_of(plan_of())
    noise_of(gate, 3, sites=[0, 1], t=2)
    with pytest.raises(Refused, match=f"round {again} of stage 'mean' must come after"):
        noise_of(gate, 3, sites=[1, 2], t=again)
    noise_of(gate, 3, sites=[2, 3], t=again)
    noise_of(gate, 3, sites=[0, 1], t=1, stage="scale")


@pytest.mark.parametrize("sites", [[0, 0], [-1], [8], [3, 99]])
def test_sites_that_cannot_be_charged_are_refused(sites):
    with pytest.raises(InvalidInput, match="sites must be distinct numbers below 8"):
        noise_of(gate_of(plan_of()), 3, sites=sites)


ZERO, F = SiteValues(np.zeros((1, 3))), "factorisation"
REFUSED = r"'factorisation' must use the (coins that the gate drew|parts the gate dealt) for round "


class Uncharged(Gate):
    """A gate that charges nothing, so that rounds may be tried again: it looks at coins alone."""

    def _charge(self, stage, t, sites):
        return self.plan.of_stage(stage)


def uncharged(q):
    return Uncharged(plan_of(q=q), SimulatedNoise(Randomness(0)), Randomness(0))


def require_refused(gate, batch, sample, t=1):
    with pytest.raises(InvalidInput, match=REFUSED + f"{t}, once"):
        let_out(gate, ZERO, batch, sample, stage=F, t=t)


@pytest.mark.parametrize("q", [1.0, 0.25])
def test_records_sampled_otherwise_than_planned_are_refused(q):
    for wrong in (0.5, 0.1):
        sample = RoundSample(wrong, 1, np.zeros(1, dtype=np.int64))
        with pytest.raises(InvalidInput, match=f"with probability {q}, got {wrong}"):
            let_out(uncharged(q), ZERO, empty_batch([0]), sample, stage=F)


def batch_of_sizes(*sizes, first=0):
    """Return sites with these numbers of records."""
    sites = np.arange(len(sizes)) + first
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return dataclasses.replace(empty_batch(sites), X=np.zeros((sum(sizes), 1)), offsets=offsets)


def test_coins_that_the_gate_did_not_draw_are_refused():
    gate, batch = uncharged(0.25), empty_batch([0])
    own = RoundSample(0.25, 1, np.zeros(1, dtype=np.int64))  # says 0.25, and takes every record
    require_refused(gate, batch, own)
    sample = gate.sample(batch, stage=F, t=1)
    for forged in (own, copy.copy(sample)):  # a copy could be used again
        require_refused(gate, batch, forged)
    assert gate.events == []
    let_out(gate, ZERO, batch, sample, stage=F)


@pytest.mark.parametrize("dealt_anew", [False, True])
def test_coins_are_refused_in_a_later_round(dealt_anew):
    """Coins that are used in every round hide a record once, not in each of them."""
    gate, batch = uncharged(0.25), empty_batch([0])
    sample = gate.sample(batch, stage=F, t=1)
    if dealt_anew:
        gate.sample(batch, stage=F, t=2)
    require_refused(gate, batch, sample, t=2)  # although nobody has used them
    if dealt_anew:
        require_refused(gate, batch, sample)
        return
    let_out(gate, ZERO, batch, sample, stage=F)
    require_refused(gate, batch, sample, t=2)


def test_coins_are_refused_when_they_have_been_used_in_the_round():
    gate, batch = uncharged(0.25), empty_batch([0])
    sample = gate.sample(batch, stage=F, t=1)
    let_out(gate, ZERO, batch, sample, stage=F)
    require_refused(gate, batch, sample)
    twice = [(ZERO, batch, gate.sample(batch, stage=F, t=2))] * 2
    with pytest.raises(InvalidInput, match=REFUSED + "2, once"):
        gate.release(twice, np.array([0]), stage=F, t=2, sensitivity=1.0)


@pytest.mark.parametrize("noise", [SimulatedNoise(Randomness(0)), SecureNoise()])
def test_coins_are_drawn_once_a_round(noise):
    """Drawn again and again, they would be those that somebody likes best."""
    gate = Gate(plan_of(q=0.25), noise, Randomness(0))
    gate.sample(empty_batch([0]), stage=F, t=2)
    for t in (2, 1):
        with pytest.raises(InvalidInput, match="drawn once a round, in order"):
            gate.sample(empty_batch([0]), stage=F, t=t)
    gate.sample(empty_batch([0]), stage=F, t=3)


@pytest.mark.parametrize(
    "sites", [np.array([False, True]), np.array([], dtype=int), np.array([[0]]), np.array([0.0])]
)
def test_sites_that_are_no_numbers_are_refused_before_a_charge(sites):
    """A mask is charged to other sites than those that release."""
    gate = gate_of(plan_of())
    with pytest.raises(InvalidInput, match="sites must be distinct numbers"):
        gate.release([], sites, stage=F, t=1, sensitivity=1.0)
    with pytest.raises(InvalidInput, match="t must be a whole number"):
        gate.release([], np.array([0]), stage=F, t=True, sensitivity=1.0)
    assert not gate._charged.get(F, np.zeros(1)).any()


def test_more_sites_than_planned_are_refused():
    """Each of them would add a smaller share of the noise than was promised against the others."""
    plan = PrivacyPlan((PlannedRelease(F, 2, 1, 2, 5.0),), 1e-5, "secure-aggregation", 3)
    with pytest.raises(InvalidInput, match="planned for 1 sites, got 2"):
        gate_of(plan).release([], np.array([0, 1]), stage=F, t=1, sensitivity=1.0)


@pytest.mark.parametrize("rows", [1, 6])
def test_rows_that_are_not_the_batch_s_are_refused(rows):
    gate, batch = gate_of(plan_of()), batch_of_sizes(3)
    strangers = OuterSum(np.ones((rows, 1)), Columns.of(np.ones(rows)), np.ones(rows), shape=())
    with pytest.raises(InvalidInput, match="one row for each of 3 records"):
        let_out(gate, strangers, batch, stage=F)


def test_nothing_is_added_to_a_plan_later():
    plan = PrivacyPlan([PlannedRelease(F, 1, 1, 1, 5.0)], 1e-5, "local", 1)
    assert isinstance(plan.releases, tuple)


def test_an_attempt_with_other_coins_has_been_charged():
    gate, batch = gate_of(plan_of(q=0.25)), empty_batch([0])
    require_refused(gate, batch, RoundSample(0.25, 1, np.zeros(1, dtype=np.int64)))
    with pytest.raises(Refused, match="after round 1"):
        let_out(gate, ZERO, batch, stage=F)


@pytest.mark.parametrize(
    "other",
    [batch_of_sizes(4, first=1), batch_of_sizes(5), batch_of_sizes(3, 1), batch_of_sizes(1)],
)
def test_coins_of_other_sites_or_sizes_are_refused(other):
    """One coin for four records would be the same for all of them."""
    gate, batch = uncharged(0.25), batch_of_sizes(4)
    sample = gate.sample(other, stage=F, t=1)
    zero = OuterSum(np.ones((4, 1)), Columns.of(np.zeros(4)), np.zeros(4), shape=())
    with pytest.raises(InvalidInput, match=r"coins that the gate drew|one row for each of 4"):
        let_out(gate, zero, batch, sample, stage=F)
    assert gate.events == []


@pytest.mark.parametrize("q", [1.0, 0.25])
@pytest.mark.parametrize("n_parts", [1, 3])
def test_parts_of_a_round_use_what_was_dealt_to_each_once(q, n_parts):
    gate = gate_of(plan_of(q=q))
    batches = [batch_of_sizes(4, 5), batch_of_sizes(7, first=2)]
    for t in (1, 2):
        dealt = [gate.sample(batch, stage=F, t=t, n_parts=n_parts) for batch in batches]
        parts = [(ZERO, *pair) for pair in zip(batches, dealt, strict=True)]
        gate.release(iter(parts), np.arange(3), stage=F, t=t, sensitivity=1.0)
        assert len(gate._drawn) == 0
    assert [event.t for event in gate.events] == [1, 2]
    gate.sample(batches[0], stage=F, t=3)
    gate.sample(batches[0], stage=F, t=4)
    assert len(gate._drawn) == 1  # what is past is not kept


def test_a_slot_dealing_with_another_partition_is_refused():
    """A part with all records is larger than the step size allows for."""
    gate, batch = uncharged(1.0), batch_of_sizes(4, 5)
    right = gate.sample(batch, stage=F, t=1, n_parts=3)
    wrong = [
        RoundSample(1.0, 3, np.zeros(9, dtype=np.int64)),
        RoundSample(1.0, 3, np.roll(right.part, 1)),
        RoundSample(1.0, 3),
        RoundSample(1.0, 1),
        RoundSample(1.0, 2, right.part),
        sampled_by_slot(batch, 2),
        sampled_by_slot(batch_of_sizes(5, 4), 3),
    ]
    for sample in wrong:
        require_refused(gate, batch, sample)
    assert gate.events == []
    let_out(gate, ZERO, batch, sampled_by_slot(batch, 3), stage=F)
    for sample in (right, RoundSample(1.0, 1, np.zeros(9, dtype=np.int64))):
        require_refused(gate, batch, sample, t=2)  # nobody asked for parts
    let_out(gate, ZERO, batch, RoundSample(1.0, 1), stage=F, t=2)


def test_without_a_plan_any_dealing_is_let_through_and_noise_must_come_from_somewhere():
    gate, batch = OpenGate(), empty_batch([0])
    sample = RoundSample(0.5, 2, np.ones(1, dtype=np.int64))
    for t in (1, 1, 2):
        let_out(gate, ZERO, batch, sample, stage="x", t=t)
    for noisy in (SiteValues, SiteUploads):
        with pytest.raises(DPFedCError, match="needs noise, but the gate has no source of it"):
            let_out(gate, noisy(np.zeros((1, 3)), np.ones(1)), batch, stage="x")


@pytest.mark.parametrize("sensitivity", [math.inf, 0.0, -1.0, math.nan])
def test_a_release_without_a_sensitivity_is_refused(sensitivity):
    with pytest.raises(InvalidInput, match="must state a sensitivity"):
        let_out(gate_of(plan_of()), ZERO, empty_batch([0]), sensitivity=sensitivity)


def test_uploads_of_points_have_no_place_in_a_plan():
    gate, points = gate_of(plan_of()), SiteUploads(np.zeros((1, 3)), np.ones(1))
    with pytest.raises(DPFedCError, match="no sum over records that a gate could let out"):
        let_out(gate, points, empty_batch([0]))
    assert gate.events == []


def test_only_the_gate_makes_a_released_value():
    for made_by in (object(), None):
        with pytest.raises(DPFedCError, match=r"made by Gate\.release only"):
            Released(np.zeros(3), ReleaseEvent("mean", 1, 1, 1), made_by)
    released = let_out(gate_of(plan_of()), nothing(2, 3), empty_batch([0, 1]))
    assert (released.n_sites, released.n_records) == (2, 2.0)
    with pytest.raises((ValueError, TypeError, DPFedCError)):
        dataclasses.replace(released, value=np.ones(3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        copy.copy(released).value = np.ones(3)


def test_the_number_of_records_is_the_expected_one():
    """Never the realised one: it would tell how many coins came up."""
    gate = gate_of(plan_of(q=0.25))
    batch = empty_batch(np.arange(8))
    realised = set()
    for t in range(1, 9):
        sample = gate.sample(batch, stage=F, t=t)
        released = let_out(gate, nothing(8, 3), batch, sample, stage=F, t=t)
        assert released.n_records == 0.25 * 8
        realised.add(int(sample.in_round.sum()))
    assert len(realised) > 2


@settings(max_examples=40)
@given(st.data())
def test_no_site_takes_part_more_often_than_planned(data):
    """A whole schedule passes a gate that is planned for ceil(R K / N) rounds a site, just so."""
    n_sites, rounds = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 25))
    k = data.draw(st.integers(1, n_sites))
    most = most_rounds_of_a_site(n_sites, k, rounds)
    plan = PrivacyPlan((PlannedRelease("mean", rounds, k, most, 2.0),), 1e-5, "local", n_sites)
    gate = gate_of(plan)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    for t, cohort in enumerate(schedule(n_sites, k, rounds, rng=rng), start=1):
        noise_of(gate, 1, sites=cohort, t=t)
    assert logged_releases(gate) == plan.releases
    busiest = int(np.argmax(gate._charged["mean"]))
    with pytest.raises(Refused, match="got one more"):
        noise_of(gate, 1, sites=busiest, t=rounds + 1)


def test_what_was_realised_costs_what_was_planned():
    plan = plan_of("secure-aggregation", rounds=2, q=0.5)
    gate = gate_of(plan)
    for stage in STAGES:
        for t in (1, 2):
            noise_of(gate, 2, sites=np.arange(8), stage=stage, t=t)
            if (stage, t) == ("mean", 1):
                assert releases_epsilon(logged_releases(gate), 1e-5) < plan_epsilon(plan)
    assert logged_releases(gate) == plan.releases
    assert releases_epsilon(logged_releases(gate), 1e-5) == plan_epsilon(plan)
    logged = [(e.stage, e.t, e.n_sites, e.noise_multiplier) for e in gate.events]
    assert logged == [(s, t, 8, NOISE.get(s, 1.0)) for s in STAGES for t in (1, 2)]

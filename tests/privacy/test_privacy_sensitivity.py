"""No record moves a release by more than the release's stated sensitivity, whatever is broadcast.

A record is nulled by mask, never by deleting its row. Rounding is allowed for by `rounding`, which
is derived there and asserted to be small.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedc.errors import InvalidInput
from support.noise_checks import gate_of, plan_of
from support.sensitivity import (
    Case,
    batch_of,
    change,
    dealing_of,
    exact_release,
    memberships,
    movement,
    part_of,
    released_by,
    rounding,
)
from support.sensitivity_cases import (
    LEAST_REACHED,
    STAGES,
    cases,
    hostile_state,
    local_steps,
    plain_case,
    several_steps,
    stage_of,
    with_centers,
)

FEW = settings(max_examples=25)
MANY = settings(max_examples=80)


def require_bounded(case, j):
    """The property: nulling record j moves the release by at most what is stated."""
    slack = rounding(case)
    assert slack < 0.03  # or the test would prove little
    assert movement(case, j) <= 1 + slack


@pytest.mark.parametrize("stage", STAGES)
@MANY
@given(data=st.data())
def test_nulling_a_record_moves_a_release_by_at_most_its_sensitivity(stage, data):
    require_bounded(*data.draw(cases(stage)))


@pytest.mark.parametrize("q", [1.0, 0.5])
@pytest.mark.parametrize("n_parts", [2, 3, 4, 5])
@MANY
@given(data=st.data())
def test_several_local_steps_move_by_no_more(n_parts, q, data):
    require_bounded(*data.draw(several_steps(n_parts, q)))


@pytest.mark.parametrize("n_parts", [1, 3])
@FEW
@given(data=st.data())
def test_a_records_own_coin_moves_a_release_by_at_most_its_sensitivity(n_parts, data):
    """In or out, in one part or another against out: all other records' coins are the same."""
    case, j = data.draw(several_steps(n_parts, 0.5))
    slack = rounding(case)
    out = case.with_coin(j, 0.999)
    for part in range(n_parts):
        inside = case.with_coin(j, (part + 0.5) / n_parts * case.q)
        assert change(inside, out) <= 1 + slack


@pytest.mark.parametrize("stage", STAGES)
@FEW
@given(data=st.data())
def test_a_null_record_adds_nothing_whatever_stands_in_its_row(stage, data):
    case, j = data.draw(cases(stage))
    released = exact_release(case, [j])
    for x in (0.0, 1e6, np.finfo(case.X.dtype).max / 100):
        np.testing.assert_array_equal(exact_release(case.with_record(j, x), [j]), released)


@pytest.mark.parametrize("n_parts", [2, 5])
@FEW
@given(data=st.data())
def test_a_null_record_keeps_its_slot_and_adds_nothing_to_local_steps(n_parts, data):
    case, j = data.draw(several_steps(n_parts, data.draw(st.sampled_from([1.0, 0.5]))))
    released = exact_release(case, [j])
    for x in (0.0, 1e6, np.finfo(case.X.dtype).max / 100):
        np.testing.assert_array_equal(exact_release(case.with_record(j, x), [j]), released)
    one, other = dealing_of(case, batch_of(case)), dealing_of(case, batch_of(case, [j]))
    np.testing.assert_array_equal(one.part, other.part)


@pytest.mark.parametrize("stage", STAGES)
@FEW
@given(data=st.data())
def test_each_record_is_no_longer_than_the_norm_that_it_is_clipped_by(stage, data):
    """`OuterSum` states |phi_j| <= norms_j: the gate's clip is worth what that is worth."""
    case, j = data.draw(cases(stage))
    contribution, _, _ = part_of(case)
    alone = np.isfinite(contribution.norms) & (np.arange(case.n_records) == j)
    with np.errstate(all="ignore"):
        phi = contribution.total(alone.astype(case.X.dtype))
    length = np.sqrt((np.asarray(phi, dtype=np.float64) ** 2).sum())
    if np.isfinite(contribution.norms[j]):
        slack = rounding(case) * (case.bound + float(contribution.norms[j]))
        assert length <= float(contribution.norms[j]) * (1 + 1e-5) + slack
    else:
        assert length == 0


@FEW
@given(data=st.data())
def test_all_other_records_memberships_are_bitwise_the_same(data):
    """With record j null, with another record in its place, and for every shape of federation."""
    case, j = data.draw(cases("one step"))
    others = np.arange(case.n_records) != j
    H = memberships(case)
    np.testing.assert_array_equal(memberships(case, [j])[others], H[others])
    np.testing.assert_array_equal(memberships(case, [j])[j], H[j])
    for x in (0.0, 3.0, 1e20):
        np.testing.assert_array_equal(memberships(case.with_record(j, x))[others], H[others])


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_stated_is_what_a_long_record_does(stage):
    """The stated sensitivity is reached, so the properties above would notice a larger change."""
    case = plain_case(*stage_of(stage))
    reached = max(movement(case, j) for j in range(case.n_records))
    assert reached > LEAST_REACHED.get(stage, 0.999)


def test_records_that_drew_no_coin_add_nothing():
    case = plain_case(*stage_of("one step"), q=0.5)
    inside = dealing_of(case, batch_of(case)).in_round
    outside = np.flatnonzero(~inside)
    assert 0 < len(outside) < case.n_records
    released = exact_release(case)
    np.testing.assert_array_equal(exact_release(case, outside), released)
    assert movement(case, np.flatnonzero(inside)[0]) > 0.99


def test_rounding_at_a_large_site_is_no_share_of_a_record():
    """n_i (W_i - W) is a small difference times a large number: single precision would not do."""
    rng = np.random.default_rng(1)
    n = 30_000
    state = hostile_state(rng, 8, 3, bound=1.0, dtype=np.float32)
    state = with_centers(rng, state, 0.0, unit=True)
    X = rng.standard_normal((n, 8)).astype(np.float32)
    case = Case(local_steps(3, 3, (n,), q=1.0, clip=0.03), state, X, (n,))
    # No later step meets a record of the last part: what it moves is its own clipped gradient.
    assert movement(case, 2) == pytest.approx(1, abs=1e-6)
    assert max(movement(case, j) for j in (0, 1, 5)) <= 1 + 1e-6


BAD = {
    "origin": [np.nan, np.inf],
    "data_mean": [np.nan, np.inf, -np.inf],
    "scale": [np.nan, np.inf, 0.0, -1.0],
    "basis": [np.nan, np.inf],
    "W": [np.nan, np.inf, 1e3, -1e3],
}
READ = {
    "bound": ["origin"],
    "mean": ["origin"],
    "scale": ["data_mean"],
    "subspace": ["data_mean", "scale"],
    "one step": ["data_mean", "scale", "basis", "W"],
    "lengths": ["data_mean", "scale", "basis"],
    "clusters": ["data_mean", "scale", "basis"],
}


@pytest.mark.parametrize(("stage", "name"), [(s, n) for s, names in READ.items() for n in names])
def test_a_site_refuses_a_broadcast_that_no_honest_server_makes(stage, name):
    case = plain_case(*stage_of(stage), basis=name == "basis")
    assert np.isfinite(exact_release(case)).all()
    for value in BAD[name]:
        spoilt = np.array(case.state[name])
        spoilt[(0,) * spoilt.ndim] = value
        with pytest.raises(InvalidInput, match=f"the broadcast '{name}' must be finite"):
            part_of(replace(case, state={**case.state, name: spoilt}))


@pytest.mark.parametrize("stage", ["subspace", "one step", "sums and Gram", "lengths", "clusters"])
def test_a_site_refuses_a_place_that_moves_in_mid_stage(stage):
    """What a site remembers of its records was made for another centre, scale or basis."""
    case = plain_case(*stage_of(stage), basis=stage not in ("subspace", "clusters"))
    batch = batch_of(case)
    sample = dealing_of(case, batch)
    for name in ("data_mean", "scale", "basis"):
        if name in case.state:
            moved = {**case.state, name: case.state[name] + 0.5}
            with pytest.raises(InvalidInput, match="must be those that the stage began with"):
                case.stage.local(batch, moved, case.t, sample, case.coins)
    case.stage.local(batch, case.state, case.t, sample, case.coins)


@pytest.mark.parametrize("bound", [np.nan, np.inf, 0.0, -1.0, 1e-17])
def test_the_gate_refuses_a_bound_that_it_cannot_clip_to(bound):
    """Squares of norms as short as 1e-17 underflow in single precision."""
    case = plain_case(*stage_of("mean"), dtype=np.float32)
    case = replace(case, state={**case.state, "bound": np.float32(bound)})
    with pytest.raises(InvalidInput, match="must state a sensitivity > "):
        released_by(gate_of(plan_of("local", n_sites=5)), case)

"""Uploads: grid units modulo 2^64 that add up to the sum of one process, or are refused."""

from dataclasses import replace

import numpy as np
import pytest

from dpfedc.errors import InvalidInput
from dpfedc.privacy import exact_sums as exact
from dpfedc.privacy.exact_sums import SENSITIVITY, Upload
from dpfedc.privacy.gate import Gate, planned_event, received
from support.exact_checks import Fixed
from support.noise_checks import empty_batch, let_out, nothing, plan_of
from support.sensitivity import exact_release, part_of, released_by
from support.sensitivity_cases import plain_case, stage_of

PLAN = plan_of("local", n_sites=9)
EVENT = planned_event(PLAN, "mean", 1, n_sites=2, n_records=12, sensitivity=1.0)


def uploads_of_sites(case, noise, stage="mean"):
    """Return the upload of each site of the case, as its own process would make it."""
    made = []
    for i, (start, end) in enumerate(zip(case.offsets, case.offsets[1:], strict=False)):
        part = part_of(replace(case, X=case.X[start:end], sizes=(end - start,)))
        part[1].sites = np.array([i])
        place = {"stage": stage, "t": 1, "sensitivity": case.bound}
        made.append(Gate(PLAN, noise).upload([part], part[1].sites, **place))
    return made


@pytest.mark.parametrize("stage", ["bound", "mean", "scale", "subspace"])
def test_uploads_add_up_to_the_sum_of_one_process(stage):
    case = plain_case(*stage_of(stage))
    together = released_by(Gate(PLAN, Fixed()), case)
    apart = [
        Upload.from_arrays(upload.to_arrays())
        for upload in uploads_of_sites(case, Fixed(), stage=stage)
    ]
    total = received(apart, EVENT)
    np.testing.assert_array_equal(total.value, together.value)
    assert (total.n_sites, total.n_records) == (2, 12.0)
    assert total.value.shape == exact_release(case).shape
    cast = received(apart, EVENT, asarray=lambda sums: np.asarray(sums, dtype=np.float32))
    assert cast.value.dtype == np.float32


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 5])
def test_noise_is_added_modulo_two_to_the_64(value):
    """What wraps at one site comes back in the sum; what sticks at the end would be lost."""
    case = plain_case(*stage_of("mean"))
    quiet = uploads_of_sites(case, Fixed())
    for plain, noisy in zip(quiet, uploads_of_sites(case, Fixed(value=value)), strict=True):
        expected = [(int(u) + value) % 2**64 for u in plain.values]
        assert noisy.values.tolist() == expected
    back = Upload(np.full(3, (-2 * value) % 2**64, dtype=np.uint64), quiet[0].unit)
    noisy = uploads_of_sites(case, Fixed(value=value))
    np.testing.assert_array_equal(
        received([*noisy, back], EVENT).value, received(quiet, EVENT).value
    )
    stuck = [
        replace(u, values=np.array(saturated(u, value), dtype=np.int64).view(np.uint64))
        for u in quiet
    ]
    lost = received([*stuck, back], EVENT).value - received(quiet, EVENT).value
    assert (np.abs(lost).max() > 0) == (abs(value) > 5)


def saturated(upload, value):
    """Plant: integers that stick at the ends of their range."""
    signed = [int(u) for u in upload.values.view(np.int64)]
    return [min(max(u + value, -(2**63)), 2**63 - 1) for u in signed]


def test_uploads_of_different_kinds_are_refused():
    one = Upload(np.zeros(3, dtype=np.uint64), 0.5)
    others = [
        Upload(np.zeros(4, dtype=np.uint64), 0.5),
        Upload(np.zeros(3), 0.5),
        Upload(np.zeros(3, dtype=np.uint64), 0.25),
        Upload(np.zeros(3, dtype=np.uint64), 0.5, True),
    ]
    for other in others:
        with pytest.raises(InvalidInput, match="uploads must be of one kind"):
            received([one, other], EVENT)
    with pytest.raises(InvalidInput, match="at least one upload"):
        received([], EVENT)
    with pytest.raises(InvalidInput, match="1, 3, 6"):
        received([Upload(np.zeros(4, dtype=np.uint64), 0.5, True)], EVENT)
    floats = received([Upload(np.ones(3)), Upload(np.ones(3))], EVENT)
    assert floats.value.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": np.zeros(3, dtype=np.int64)}, "values must be uint64 or float64"),
        ({"values": np.array(["a"])}, "values must be uint64 or float64"),
        ({"unit": np.asarray(0.0)}, "unit must be"),
        ({"unit": np.asarray(np.inf)}, "unit must be"),
        ({"unit": np.asarray(np.nan)}, "unit must be"),
        ({"unit": np.ones(2)}, "unit must be"),
        ({"unit": np.asarray("1")}, "unit must be"),
        ({"symmetric": np.asarray(1)}, "symmetric must be true or false"),
        ({"symmetric": np.zeros(2, bool)}, "symmetric must be true or false"),
        ({"more": np.zeros(2)}, "an upload must be values, unit, symmetric"),
    ],
)
def test_arrays_that_are_not_an_upload_are_refused(change, message):
    arrays = Upload(np.zeros(3, dtype=np.uint64), 0.5).to_arrays()
    with pytest.raises(InvalidInput, match=message):
        Upload.from_arrays({**arrays, **change})


def test_a_sum_that_could_wrap_is_refused(monkeypatch):
    monkeypatch.setattr(exact, "LARGEST_SUM", 4 * SENSITIVITY)
    gate = Gate(PLAN, Fixed())
    assert let_out(gate, nothing(3, 2), empty_batch([0, 1, 2])).value.tolist() == [0, 0]
    with pytest.raises(InvalidInput, match="fewer than 4 records, got 4"):
        let_out(gate, nothing(4, 2), empty_batch([0, 1, 2, 3]), t=2)

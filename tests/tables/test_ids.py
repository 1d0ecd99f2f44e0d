"""Which columns are taken for ids: by their names, or by whole numbers that never repeat."""

import math

import numpy as np
import pytest

from dpfedc.tables.ids import MIN_ROWS, is_id_name, looks_like_id

FEW = np.array([3.0, 1.0, 2.0, 2.0])


@pytest.mark.parametrize(
    "name",
    [
        "id", "ID", "Id", "patient_id", "patientId", "PatientID", "patient-id", "patient id",
        "PATIENTID", "record", "row", "index", "uuid", "MRN", "ssn", "case_no", "case nr",
        "insurance number", "icd_code", "zip", "ZIP", "zipcode", "home.postcode", "PLZ", "phone",
        "customer", "client_number", "visit_ids",
    ],
)  # fmt: skip
def test_names_of_ids(name):
    assert is_id_name(name)
    assert looks_like_id(name, FEW)


@pytest.mark.parametrize(
    "name",
    [
        "age", "humidity", "acid", "lipid", "width", "n", "number_of_visits", "code_weight",
        "piano", "snr", "valid", "idea", "patient_age", "customers_served", "zip_density", "casino",
        "indexed", "year", "covid",
    ],
)  # fmt: skip
def test_names_that_are_none(name):
    assert not is_id_name(name)
    assert not looks_like_id(name, FEW)


def test_a_name_alone_is_not_enough():
    assert not looks_like_id("patient_id", np.array([1.5, 2.0]))
    assert not looks_like_id("patient_id", np.array([math.nan, math.inf]))
    assert not looks_like_id("patient_id", np.array([]))
    assert looks_like_id("patient_id", np.array([7.0, math.nan, math.inf]))  # gaps are no matter


def test_whole_numbers_that_never_repeat(rng):
    counted = rng.permutation(np.arange(50_000.0, 50_000 + MIN_ROWS))
    assert looks_like_id("x", counted)
    assert looks_like_id("x", np.append(counted, [math.nan] * 50))
    assert looks_like_id("x", rng.choice(5000, 500, replace=False).astype(float))
    assert not looks_like_id("x", counted[1:])  # too few to tell
    assert not looks_like_id("x", np.append(counted, counted[0]))
    assert not looks_like_id("x", counted + 0.5)
    # Few of many numbers differ by chance, as counts of molecules do.
    assert not looks_like_id("x", rng.choice(10**9, 500, replace=False).astype(float))


@pytest.mark.parametrize("n", [100, 1000])
def test_measurements_are_no_ids(rng, n):
    for values in (
        rng.integers(0, 100, n),  # ages
        rng.integers(1900, 2024, n),  # years
        rng.poisson(3, n),  # counts
        rng.integers(0, 2, n),
        np.full(n, 7),
        np.round(rng.normal(70, 12, n)),
        rng.normal(size=n),
    ):
        assert not looks_like_id("x", values.astype(float))

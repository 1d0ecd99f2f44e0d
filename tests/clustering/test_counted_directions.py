"""Rounds of the factorisation that count records, and directions of none that are moved."""

import math

import numpy as np
import pytest

from dpfedc.clustering.factorization import (
    COUNT_WEIGHT,
    FIRST_MOVE,
    LAST_MOVE,
    LEAST_HELD,
    Factorization,
)
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.kernels.objective import unit_rows
from dpfedc.kernels.relocation import REACH, revived_directions
from dpfedc.privacy.exact_sums import Upload
from dpfedc.privacy.gate import ReleaseEvent, received
from dpfedc.settings import PrivacyTarget
from support.sensitivity import exact_release, memberships
from support.sensitivity_cases import plain_case


def test_a_round_counts_every_clipped_record_alike():
    """The last column sums h_j / |h_j| with a weight, where gradients are clipped: all are here."""
    stage = Factorization(3, 4, clip_norm=1e-3, counted=True)
    case = plain_case(stage, 2, n=40)
    H = memberships(case)
    assert (np.linalg.norm(H, axis=1) > 0).all()
    expected = (H / np.linalg.norm(H, axis=1, keepdims=True)).sum(axis=0)
    one = 1e-3 * COUNT_WEIGHT / math.sqrt(1 + COUNT_WEIGHT**2)
    np.testing.assert_allclose(exact_release(case)[:, -1] / one, expected, rtol=1e-9)


def test_the_rest_is_the_gradient_of_before():
    plain, counted = (
        exact_release(plain_case(Factorization(3, 4, clip_norm=1e-3, counted=c), 2))
        for c in (False, True)
    )
    shorter = math.sqrt(1 + COUNT_WEIGHT**2)
    np.testing.assert_allclose(counted[:, :-1] * shorter, plain, rtol=1e-9)


def test_an_empty_direction_takes_half_of_the_widest():
    W = np.eye(4, 9)
    moved = revived_directions(W, np.array([900.0, 2.0, 200.0, 300.0]), 50.0, seeded())
    np.testing.assert_array_equal(moved[2:], W[2:])
    np.testing.assert_allclose((moved[0] + moved[1]) / 2, W[0], atol=1e-12)
    apart = (moved[1] - moved[0]) / 2
    assert np.linalg.norm(apart) == pytest.approx(REACH)
    # A mixture of directions that hold records: nothing of the empty one, nor of the rest.
    assert np.abs(apart[[0, 2, 3]]).min() > 1e-3
    np.testing.assert_allclose(apart[[1, 4, 5, 6, 7, 8]], 0, atol=1e-12)


def test_many_empty_directions_take_from_the_widest_left():
    held = np.array([800.0, 0.0, 300.0, 0.0, 0.0, 120.0])
    moved = revived_directions(np.eye(6), held, 50.0, seeded())
    changed = np.flatnonzero((moved != np.eye(6)).any(axis=1))
    # 800 parts into 400 and 400, one of which parts again, and then 400 or 300.
    assert {0, 1, 3, 4} <= set(changed)
    assert 5 not in changed


@pytest.mark.parametrize("held", [[90.0, 80.0, 0.0], [500.0, 1.0, 0.0], [500.0, 400.0, 300.0]])
def test_nothing_moves_where_nothing_can_be_gained(held):
    """What is too small to part stays, and so does a start of which one direction has all."""
    np.testing.assert_array_equal(
        revived_directions(np.eye(3), np.array(held), 50.0, seeded()), np.eye(3)
    )


@pytest.mark.parametrize("rows", [np.zeros((3, 4)), np.ones((3, 4)) / 2])
def test_directions_that_cannot_be_parted_stay(rows):
    """Rows that a clamp left nothing of, and rows that are all alike."""
    held = np.array([500.0, 400.0, 0.0])
    moved = revived_directions(rows, held, 50.0, seeded())
    assert np.isfinite(moved).all()
    lengths = np.linalg.norm(moved, axis=1)
    assert ((lengths > 1e-3) | (lengths == np.linalg.norm(rows, axis=1))).all()


def test_no_counts_where_a_round_sees_some_of_the_sites():
    facts = Federation(60, np.full(10, 200))
    given = {"n_clusters": 5, "cells": None, "shape": "round", "sites_per_round": 5}
    stages = method_named("dp-fedc").plan(given, facts, PrivacyTarget(2.0, 1e-5)).stages
    assert not any(getattr(stage, "counted", False) for stage in stages)


@pytest.mark.parametrize("t", range(1, 11))
def test_directions_move_in_the_middle_of_the_rounds(t):
    stage, noise = Factorization(3, 10, counted=True), 1e-4
    one = stage.clip_norm * COUNT_WEIGHT / math.sqrt(1 + COUNT_WEIGHT**2)
    value = np.zeros((3, 6))
    value[:, -1] = [one * 500, one * 400, 0.9 * LEAST_HELD * noise]
    event = ReleaseEvent("factorisation", t, 1, 900, noise_std=noise)
    W = unit_rows(np.random.default_rng(1).normal(size=(3, 5)))
    after = stage.combine({"W": W, "velocity": 0 * W}, received([Upload(value)], event), t)["W"]
    assert (np.abs(after[2] - W[2]).max() > 1e-3) == (FIRST_MOVE <= t / 10 <= LAST_MOVE)
    np.testing.assert_allclose(np.linalg.norm(after, axis=1), 1)


@pytest.mark.parametrize(
    ("n_features", "n_clusters", "epsilon", "expected"),
    [(200, 5, 2.0, True), (200, 2, 2.0, False), (200, 5, None, False), (199, 5, 2.0, False)],
)
def test_the_plan_counts_where_directions_are_all_there_is(
    n_features, n_clusters, epsilon, expected
):
    target = None if epsilon is None else PrivacyTarget(epsilon, 1e-5)
    facts = Federation(n_features, np.full(10, 200))
    given = {"n_clusters": n_clusters, "cells": None, "shape": "round"}
    stages = method_named("dp-fedc").plan(given, facts, target).stages
    found = {stage.name: stage for stage in stages}
    assert found["factorisation"].counted is expected


def seeded():
    return np.random.default_rng(0)

"""The same numbers from arrays that allow nothing beyond the array-API standard.

The second device of `array_api_strict` refuses to meet arrays of the first, as a GPU would.
"""

import array_api_strict
import numpy as np
import pytest

from dpfedc.clustering.bound import Bound
from dpfedc.clustering.centers import Centers, Lengths
from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.local_steps import LocalSteps
from dpfedc.clustering.mean_and_scale import Mean, Scale
from dpfedc.clustering.subspace import Subspace
from dpfedc.engine.simulated import Sites
from dpfedc.kernels import clipping, cluster_sums, objective, segments, site_steps
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.objective import membership_matrix
from dpfedc.kernels.row_views import Standardized, centered_norms
from dpfedc.kernels.stationarity import membership_stationarity
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.privacy.open_gate import OpenGate
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.sums import OuterSum
from dpfedc.randomness import Randomness
from dpfedc.research.published.algorithm import Published
from dpfedc.settings import Penalty
from support.runs import ran

CPU, OTHER = (array_api_strict.Device(name) for name in ("CPU_DEVICE", "device1"))
DTYPES = ["float32", "float64"]


def strict(array, device=CPU):
    return array_api_strict.asarray(array, device=device)


def back(array):
    """Return a strict array (of either device) or a NumPy array as NumPy."""
    return np.asarray(array.to_device(CPU) if hasattr(array, "to_device") else array)


def moment(view, weights):
    return OuterSum(view, view, view.squared_norms, symmetric=True).total(weights)


def kernel_calls(m, k, n):
    """Yield (name, call): each call takes its arrays from a dictionary."""
    weights = {"rho": 0.3, "mu_h": 0.1}
    offsets = np.array([0, 1, 4, n - 2, n])
    yield "record_losses", lambda a: objective.record_losses(a["X"], a["W"], a["H"], **weights)
    yield (
        "membership_penalties",
        lambda a: objective.membership_penalties(a["H"], **weights),
    )
    yield "membership_curvature", lambda a: objective.membership_curvature(a["W"], **weights)
    yield (
        "membership_gradient",
        lambda a: objective.membership_gradient(a["A"], a["H"], a["M"]),
    )
    yield (
        "centroid_gradient",
        lambda a: objective.centroid_gradient(a["X"], a["W"], a["H"], mu_w=0.2),
    )
    yield "largest_eigenvalue", lambda a: objective.largest_eigenvalue(a["M"])
    yield "membership_steps", lambda a: objective.membership_steps(a["A"], a["M"], 5)
    yield "warm steps", lambda a: objective.membership_steps(a["A"], a["M"], 5, a["H"])
    yield (
        "residual_norms",
        lambda a: objective.residual_norms(a["squares"], a["A"], a["H"], a["gram"]),
    )
    yield "unit_rows", lambda a: objective.unit_rows(a["W"])
    yield "clip_weights", lambda a: clipping.clip_weights(a["squares"], 0.5)
    yield "null", lambda a: clipping.clip_weights(a["squares"], 0.5, a["present"])
    yield "unbounded", lambda a: clipping.clip_weights(a["squares"], float("inf"), a["present"])
    yield "clipped_stack", lambda a: clipping.clipped_stack(a["stack"], a["bounds"])
    yield "segment_sum", lambda a: segments.segment_sum(a["squares"], offsets)
    yield "segment_products", lambda a: segments.segment_products(a["H"], a["X"], offsets)
    yield (
        "squared_distances",
        lambda a: cluster_sums.squared_distances(a["A"], a["squares"], a["W"]),
    )
    yield "one_hot", lambda a: cluster_sums.one_hot(a["labels"], k, a["X"])
    yield "centered_norms", lambda a: centered_norms(a["X"], a["center"])
    for bound in (0.3, float("inf")):
        yield (
            f"local_centroid_step {bound}",
            lambda a, bound=bound: site_steps.local_centroid_step(
                a["batches"], a["stack"], a["shares"], a["real"], weight=a["bounds"],
                eta=a["bounds"], mu_w=0.1, record_bound=bound, gradient_bound=bound,
            ),
        )  # fmt: skip
    kinds = (0.0, "scale", None), (0.5, "scale", None), (0.0, None, None), (0.0, "scale", "basis")
    for constant, scale, basis in kinds:

        def view(a, constant=constant, scale=scale, basis=basis):
            return Standardized.of(
                a["X"], center=a["center"], scale=scale and a[scale], constant=constant,
                basis=basis and a[basis],
            )  # fmt: skip

        kind = f"{constant} {scale} {basis}"
        wide = "wide" if constant else "narrow" if basis else "W"
        yield f"norms {kind}", lambda a, view=view: view(a).squared_norms
        yield f"products {kind}", lambda a, v=view, w=wide: v(a).products(a[w])
        yield f"sums {kind}", lambda a, view=view: view(a).weighted_sums(a["H"])
        yield f"rows {kind}", lambda a, view=view: view(a).rows(a["labels"])
        yield (
            f"membership_matrix {kind}",
            lambda a, v=view, w=wide: membership_matrix(v(a), a[w], penalty=Penalty(), steps=4),
        )
        if not constant and not basis:
            yield f"moment {kind}", lambda a, view=view: moment(view(a), a["squares"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", [CPU, OTHER], ids=["cpu", "other"])
def test_kernels_agree_with_numpy(rng, dtype, device):
    n, m, k = 11, 4, 3
    W = rng.standard_normal((k, m))
    arrays = {
        "X": rng.standard_normal((n, m)),
        "W": W,
        "wide": rng.standard_normal((k, m + 1)),
        "narrow": rng.standard_normal((k, 2)),
        "basis": np.linalg.qr(rng.standard_normal((m, 2)))[0].T.copy(),
        "H": np.abs(rng.standard_normal((n, k))),
        "M": objective.membership_curvature(W, rho=0.3, mu_h=0.1),
        "gram": W @ W.T,
        "center": rng.standard_normal(m),
        "scale": np.asarray(1.5),
        "stack": rng.standard_normal((2, k, m)),
        "bounds": np.array([0.5, 3.0]),
        "batches": rng.standard_normal((2, 5, m)),
        "shares": np.abs(rng.standard_normal((2, 5, k))),
    }
    arrays["A"], arrays["squares"] = arrays["X"] @ W.T, (arrays["X"] ** 2).sum(axis=1)
    arrays = {name: array.astype(dtype) for name, array in arrays.items()}
    arrays["present"] = np.arange(n) % 3 > 0
    arrays["real"] = np.arange(5) < np.array([[5], [2]])
    arrays["labels"] = rng.integers(k, size=n)
    same = {name: strict(array, device) for name, array in arrays.items()}
    room = 1e-5 if dtype == "float32" else 1e-12
    for name, call in kernel_calls(m, k, n):
        expected, got = call(arrays), call(same)
        assert str(got.dtype).endswith(dtype), name
        assert got.device == device, name
        np.testing.assert_allclose(back(got), expected, rtol=room, atol=room, err_msg=name)
    for name, array in same.items():
        brought = on_host(array)
        assert brought.dtype == np.float64, name
        np.testing.assert_array_equal(brought, arrays[name].astype(np.float64), err_msg=name)
        brought[...] = 0  # a copy: the array it came from is left alone
        np.testing.assert_array_equal(back(array), arrays[name], err_msg=name)
    assert objective.membership_step_size(same["M"]) == pytest.approx(
        objective.membership_step_size(arrays["M"]), rel=room
    )
    exact = [membership_stationarity(a["A"], a["H"], a["M"]) for a in (arrays, same)]
    assert exact[1] == pytest.approx(exact[0], rel=100 * room)


NORMALIZED = [Mean(), Scale()]
RUNS = {
    "plain": [
        *NORMALIZED,
        Factorization(3, 5, sites_per_round=4),
        Centers(3, n_rounds=5, refine=True),
    ],
    "several local steps": [
        *NORMALIZED,
        LocalSteps(
            3, 4, penalty=Penalty(centroid_ridge=0.1), extra_steps=4, momentum=0.5,
            constant=0.5, init=np.eye(3, 5), sites_per_round=4,
        ),
        Centers(3, constant=0.5),
    ],
    "counted": [*NORMALIZED, Factorization(3, 5, counted=True), Lengths(3)],
    "clamped, not standardised": [Factorization(3, 4, clamp=True)],
    "in a subspace": [
        Bound(2.0),
        *NORMALIZED,
        Subspace(3),
        Factorization(3, 4, init=np.eye(3, 5), sites_per_round=4),
        Lengths(3),
    ],
    "in a subspace, without a bound": [
        Subspace(2),
        LocalSteps(3, 4, extra_steps=2, sites_per_round=4),
        Centers(3),
    ],
    "lengths with a constant": [
        *NORMALIZED,
        Factorization(3, 4, constant=0.5, sites_per_round=4),
        Lengths(3, constant=0.5),
    ],
    "published": [
        Published(
            3, 4, penalty=Penalty(0.1, 0.05, 0.1), gradient_bound=3.0,
            noise_rule=lambda steps, q, eta: 0.01 * q / eta, sites_per_round=4,
        ),
        Centers(3),
    ],
}  # fmt: skip


def privacy_plan(stages, q, trust):
    """Return a plan with little noise for these stages; the rounds' records are sampled."""
    releases = []
    for stage in stages:
        name, rounds = stage.name, stage.n_rounds
        share = q if name == "factorisation" else 1.0
        releases.append(PlannedRelease(name, rounds, stage.taking_part(12), rounds, 0.3, share))
    return PrivacyPlan(tuple(releases), 1e-5, trust, 12, colluding_sites=1)


def final_state(X, ids, stages, plan=None):
    """Return the last state and all diagnostics of a run."""
    randomness, exact = Randomness(5), []

    noise = SimulatedNoise(randomness)
    state = ran(
        stages,
        Sites.of(X, ids),
        randomness,
        gate=OpenGate(noise) if plan is None else Gate(plan, noise, randomness),
        seen=lambda stage, batch, state: stage.diagnose(batch, state),
        on_round=lambda entry: exact.append(entry.diagnostics),
    )
    return state, exact


# With these the sums have a bound, so that noise can be added.
PRIVATE_RUNS = {
    "private": [
        Bound(8.0),
        *NORMALIZED,
        Factorization(3, 4, sites_per_round=4),
        Centers(3, n_rounds=5, refine=True, bounded=True, noise_std=0.4),
    ],
    "private, several local steps": [
        Bound(8.0),
        *NORMALIZED,
        LocalSteps(3, 3, extra_steps=3, batch_ratio=3.0, sites_per_round=4),
        Centers(3, bounded=True, noise_std=0.4),
    ],
    "private, in a subspace": RUNS["in a subspace"],
    "private, lengths with a constant": [Bound(8.0), *RUNS["lengths with a constant"]],
}
ALL_RUNS = {
    **{name: (stages, None) for name, stages in RUNS.items()},
    **{
        name: (stages, privacy_plan(stages, q, trust))
        for (name, stages), q, trust in zip(
            PRIVATE_RUNS.items(),
            (0.6, 0.6, 1.0, 0.6),
            ("local", "secure-aggregation", "trusted-server", "local"),
            strict=True,
        )
    },
}


@pytest.fixture
def shuffled(ragged, rng):
    """Return ragged records in no order, and the site of each."""
    X, offsets = ragged
    order = rng.permutation(len(X))
    return X[order], np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))[order]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALL_RUNS)
@pytest.mark.parametrize("device", [CPU, OTHER], ids=["cpu", "other"])
def test_runs_agree_with_numpy(shuffled, dtype, name, device):
    """Everything the server holds stays on the device of the data."""
    X, ids = shuffled
    X = X.astype(dtype)
    if name == "published":
        X = abs(X)  # a site without a single membership > 0 has no step constant
    expected, exact = final_state(X, ids, *ALL_RUNS[name])
    state, exact_too = final_state(strict(X, device), ids, *ALL_RUNS[name])
    assert state.keys() == expected.keys()
    room = 2e-3 if dtype == "float32" else 1e-9
    for key, value in expected.items():
        assert str(state[key].dtype) == f"array_api_strict.{dtype}"
        assert str(value.dtype) == dtype
        assert state[key].device == device
        np.testing.assert_allclose(back(state[key]), value, rtol=room, atol=room, err_msg=key)
    for one, other in zip(exact, exact_too, strict=True):
        assert other == pytest.approx(one, rel=50 * room, abs=50 * room)


@pytest.mark.parametrize("name", PRIVATE_RUNS)
def test_private_runs_have_noise(shuffled, name):
    X, ids = shuffled
    stages, plan = ALL_RUNS[name]
    noisy, _ = final_state(X, ids, stages, plan)
    quiet, _ = final_state(X, ids, stages)
    for key in ("data_mean", "scale", "W", "best_centers"):
        assert np.abs(noisy[key] - quiet[key]).max() > 1e-3, key

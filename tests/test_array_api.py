"""The same numbers from arrays that allow nothing beyond the array-API standard.

The second device of `array_api_strict` refuses to meet arrays of the first, as a GPU would.
"""

import array_api_strict
import numpy as np
import pytest

from dpfedc.federation.in_process import Sites, run
from dpfedc.kernels import clipping, factorization, lloyd, local_steps, segments
from dpfedc.kernels.standardized import Standardized, centered_norms
from dpfedc.methods.centres import Centres, membership_matrix
from dpfedc.methods.diagnostics import membership_stationarity
from dpfedc.methods.dp_fedc import Factorization
from dpfedc.methods.preprocessing import Mean, Scale
from dpfedc.methods.protocol import Stage
from dpfedc.methods.published import Published
from dpfedc.privacy.mechanism import Gate
from dpfedc.randomness import Randomness
from dpfedc.settings import Penalty

CPU, OTHER = (array_api_strict.Device(name) for name in ("CPU_DEVICE", "device1"))
DTYPES = ["float32", "float64"]


def strict(array, device=CPU):
    return array_api_strict.asarray(array, device=device)


def back(array):
    """Return a strict array (of either device) or a NumPy array as NumPy."""
    return np.asarray(array.to_device(CPU) if hasattr(array, "to_device") else array)


def kernel_calls(m, k, n):
    """Yield (name, call): each call takes its arrays from a dictionary."""
    weights = {"rho": 0.3, "mu_h": 0.1}
    offsets = np.array([0, 1, 4, n - 2, n])
    yield "record_losses", lambda a: factorization.record_losses(a["X"], a["W"], a["H"], **weights)
    yield (
        "membership_penalties",
        lambda a: factorization.membership_penalties(a["H"], **weights),
    )
    yield "membership_curvature", lambda a: factorization.membership_curvature(a["W"], **weights)
    yield (
        "membership_gradient",
        lambda a: factorization.membership_gradient(a["A"], a["H"], a["M"]),
    )
    yield (
        "centroid_gradient",
        lambda a: factorization.centroid_gradient(a["X"], a["W"], a["H"], mu_w=0.2),
    )
    yield "largest_eigenvalue", lambda a: factorization.largest_eigenvalue(a["M"])
    yield "membership_steps", lambda a: factorization.membership_steps(a["A"], a["M"], 5)
    yield "warm steps", lambda a: factorization.membership_steps(a["A"], a["M"], 5, a["H"])
    yield (
        "residual_norms",
        lambda a: factorization.residual_norms(a["squares"], a["A"], a["H"], a["gram"]),
    )
    yield "unit_rows", lambda a: factorization.unit_rows(a["W"])
    yield "clip_weights", lambda a: clipping.clip_weights(a["squares"], 0.5)
    yield "null", lambda a: clipping.clip_weights(a["squares"], 0.5, a["present"])
    yield "unbounded", lambda a: clipping.clip_weights(a["squares"], float("inf"), a["present"])
    yield "clipped_stack", lambda a: clipping.clipped_stack(a["stack"], a["bounds"])
    yield "segment_sum", lambda a: segments.segment_sum(a["squares"], offsets)
    yield "segment_products", lambda a: segments.segment_products(a["H"], a["X"], offsets)
    yield "squared_distances", lambda a: lloyd.squared_distances(a["A"], a["squares"], a["W"])
    yield "one_hot", lambda a: lloyd.one_hot(a["labels"], k, a["X"])
    yield "centered_norms", lambda a: centered_norms(a["X"], a["center"])
    for bound in (0.3, float("inf")):
        yield (
            f"local_centroid_step {bound}",
            lambda a, bound=bound: local_steps.local_centroid_step(
                a["batches"], a["stack"], a["shares"], a["real"], weight=a["bounds"],
                eta=a["bounds"], mu_w=0.1, record_bound=bound, gradient_bound=bound,
            ),
        )  # fmt: skip
    for constant, scale in ((0.0, "scale"), (0.5, "scale"), (0.0, None)):

        def view(a, constant=constant, scale=scale):
            return Standardized.of(
                a["X"], center=a["center"], scale=scale and a[scale], constant=constant
            )

        wide = "wide" if constant else "W"
        yield f"norms {constant} {scale}", lambda a, view=view: view(a).squared_norms
        yield f"products {constant} {scale}", lambda a, v=view, w=wide: v(a).products(a[w])
        yield f"sums {constant} {scale}", lambda a, view=view: view(a).weighted_sums(a["H"])
        yield f"rows {constant} {scale}", lambda a, view=view: view(a).rows(a["labels"])
        yield (
            f"membership_matrix {constant} {scale}",
            lambda a, v=view, w=wide: membership_matrix(v(a), a[w], penalty=Penalty(), steps=4),
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", [CPU, OTHER], ids=["cpu", "other"])
def test_kernels_agree_with_numpy(rng, dtype, device):
    n, m, k = 11, 4, 3
    W = rng.standard_normal((k, m))
    arrays = {
        "X": rng.standard_normal((n, m)),
        "W": W,
        "wide": rng.standard_normal((k, m + 1)),
        "H": np.abs(rng.standard_normal((n, k))),
        "M": factorization.membership_curvature(W, rho=0.3, mu_h=0.1),
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
    assert factorization.membership_step_size(same["M"]) == pytest.approx(
        factorization.membership_step_size(arrays["M"]), rel=room
    )
    exact = [membership_stationarity(a["A"], a["H"], a["M"]) for a in (arrays, same)]
    assert exact[1] == pytest.approx(exact[0], rel=100 * room)


NORMALIZED = [Stage(Mean()), Stage(Scale())]
RUNS = {
    "plain": [
        *NORMALIZED,
        Stage(Factorization(3, 5), 4),
        Stage(Centres(3, n_rounds=5, refine=True)),
    ],
    "several local steps": [
        *NORMALIZED,
        Stage(
            Factorization(
                3, 4, penalty=Penalty(centroid_ridge=0.1), extra_steps=4, momentum=0.5,
                constant=0.5, init=np.eye(3, 5),
            ),
            4,
        ),
        Stage(Centres(3, constant=0.5)),
    ],
    "clamped, not standardised": [Stage(Factorization(3, 4, clamp=True))],
    "published": [
        Stage(
            Published(
                3, 4, penalty=Penalty(0.1, 0.05, 0.1), gradient_bound=3.0,
                noise_rule=lambda steps, q, eta: 0.01 * q / eta,
            ),
            4,
        ),
        Stage(Centres(3)),
    ],
}  # fmt: skip


def final_state(X, ids, stages):
    """Return the last state and all diagnostics of a run."""
    randomness, exact = Randomness(5), []

    def diagnose(stage, batch, state):
        return stage.method.diagnose(batch, state)

    state = run(
        stages, Sites.of(X, ids), Gate(randomness, "test"), randomness=randomness,
        on_round=lambda entry: exact.append(entry.diagnostics), diagnose=diagnose,
    )  # fmt: skip
    return state, exact


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RUNS)
def test_runs_agree_with_numpy(ragged, rng, dtype, name):
    X, offsets = ragged
    order = rng.permutation(len(X))
    ids = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))[order]
    X = X[order].astype(dtype)
    if name == "published":
        X = abs(X)  # a site without a single membership > 0 has no step constant
    expected, exact = final_state(X, ids, RUNS[name])
    state, exact_too = final_state(strict(X), ids, RUNS[name])
    assert state.keys() == expected.keys()
    room = 2e-3 if dtype == "float32" else 1e-9
    for key, value in expected.items():
        assert str(state[key].dtype) == f"array_api_strict.{dtype}"
        np.testing.assert_allclose(back(state[key]), value, rtol=room, atol=room, err_msg=key)
    for one, other in zip(exact, exact_too, strict=True):
        assert other == pytest.approx(one, rel=50 * room, abs=50 * room)


@pytest.mark.parametrize("stages", [RUNS["plain"][:3], RUNS["several local steps"][:3],
                                    RUNS["clamped, not standardised"]])  # fmt: skip
def test_factorisation_stays_on_the_device_of_the_data(ragged, stages):
    X, offsets = ragged
    ids = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    expected, _ = final_state(X, ids, stages)
    state, _ = final_state(strict(X, OTHER), ids, stages)
    for key, value in expected.items():
        assert state[key].device == OTHER
        np.testing.assert_allclose(back(state[key]), value, rtol=1e-9, atol=1e-9, err_msg=key)

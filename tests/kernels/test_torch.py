"""Torch on the CPU gives what NumPy gives; the fused kernel, interpreted, what the plain path does.

Noise is drawn by Torch's own generators, so runs with noise are compared by law, not by number.
"""

import importlib
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from dpfedc import DPFedC
from dpfedc.clustering import factorization, stage
from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.local_steps import LocalSteps
from dpfedc.clustering.mean_and_scale import Mean, Scale
from dpfedc.clustering.sums_and_gram import SumsAndGram
from dpfedc.engine.simulated import Sites
from dpfedc.errors import InvalidInput, MissingExtra
from dpfedc.kernels import devices
from dpfedc.kernels.clipping import clip_weights
from dpfedc.kernels.objective import (
    membership_curvature,
    membership_step_size,
    membership_steps,
    residual_norms,
    unit_rows,
)
from dpfedc.kernels.row_views import Standardized
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SIMULATED
from dpfedc.privacy.open_gate import OpenGate
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.sums import KernelSum
from dpfedc.privacy.torch_noise import TorchNoise
from dpfedc.randomness import Randomness
from support.command_line import EXACT, HEAD, ROLES, outcome, patients, write_csv
from support.runs import ran

os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when Torch imports it
torch = pytest.importorskip("torch", reason="torch is not installed (make test-torch installs it)")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402


def many(rng, n=400, m=12, k=4, dtype=np.float64):
    """Return records around k centres, and their sites in no order."""
    centers = 4 * rng.standard_normal((k, m))
    X = centers[rng.integers(k, size=n)] + rng.standard_normal((n, m)) + 2
    return X.astype(dtype), rng.permutation(np.arange(n) % 9)


SETTINGS = {
    "default": {},
    "some sites a round": {"sites_per_round": 3, "momentum": 0.5},
    "a subspace": {"subspace": 3, "refine_rounds": 0},
    "a constant": {"constant_feature": 0.5, "center": False},
    "several local steps": {"extra_steps": 3},
    "sums and Gram": {"update": "sums-and-gram"},
    "published": {"variant": "published", "n_rounds": 5},
    "several starts": {"n_restarts": 3},
    "by membership": {"refine_rounds": 0},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_fit_is_the_same_as_with_numpy(rng, name):
    X, sites = many(rng)
    if name == "published":
        X = abs(X)
    settings = {"epsilon": None, "random_state": 1, **SETTINGS[name]}
    one = DPFedC(4, **settings).fit(X, sites=sites)
    other = DPFedC(4, device="cpu", **settings).fit(X, sites=sites)
    np.testing.assert_allclose(other.cluster_centers_, one.cluster_centers_, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(other.labels_, one.labels_)
    np.testing.assert_array_equal(other.predict(X), other.labels_)
    np.testing.assert_allclose(other.transform(X), one.transform(X), rtol=1e-5, atol=1e-6)
    for value in (other.cluster_centers_, other.labels_, other.transform(X), other.predict(X)):
        assert type(value) is np.ndarray
    assert other.labels_.dtype == one.labels_.dtype
    assert other.history_.settings["device"] == "cpu"


def test_single_precision_and_memory_that_cannot_be_written(rng):
    X, sites = many(rng, dtype=np.float32)
    X.flags.writeable = False
    one = DPFedC(4, epsilon=None, random_state=1).fit(X, sites=np.sort(sites))
    other = DPFedC(4, epsilon=None, random_state=1, device="cpu").fit(X, sites=np.sort(sites))
    assert other.cluster_centers_.dtype == np.float32
    np.testing.assert_allclose(other.cluster_centers_, one.cluster_centers_, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(other.labels_, one.labels_)


def test_diagnostics(rng):
    X, sites = many(rng)
    settings = {"epsilon": None, "random_state": 1, "diagnostics": True, "n_rounds": 4}
    y = np.arange(len(X)) % 4
    one, other = (DPFedC(4, device=d, **settings).fit(X, y, sites=sites) for d in (None, "cpu"))
    for a, b in zip(one.history_.rounds, other.history_.rounds, strict=True):
        assert b.diagnostics == pytest.approx(dict(a.diagnostics), rel=1e-6, abs=1e-9)


def test_a_run_with_noise_is_reproducible_and_stamped(rng):
    X, sites = many(rng)
    settings = {"epsilon": 8.0, "device": "cpu", "n_rounds": 5}
    one, same = (DPFedC(4, random_state=1, **settings).fit(X, sites=sites) for _ in range(2))
    np.testing.assert_array_equal(one.cluster_centers_, same.cluster_centers_)
    assert SIMULATED in one.history_.stamps
    assert one.privacy_.stamp == SIMULATED
    other = DPFedC(4, random_state=2, **settings).fit(X, sites=sites)
    quiet = DPFedC(4, random_state=1, **{**settings, "epsilon": None}).fit(X, sites=sites)
    for rest in (other, quiet):
        assert np.abs(rest.cluster_centers_ - one.cluster_centers_).max() > 1e-3
    plain = DPFedC(4, random_state=1, **{**settings, "device": None}).fit(X, sites=sites)
    for a, b in zip(one.history_.rounds, plain.history_.rounds, strict=True):
        assert a.release.keys() == b.release.keys()
        assert a.release["noise_multiplier"] == b.release["noise_multiplier"]


def drawn(noise, shape=(), std=1.0, **keys):
    keys = {"stage": "mean", "t": 1, "sites": np.array([3]), **keys}
    return noise.gaussian(shape, std, **keys)


def test_noise_has_the_stated_law_and_a_key_of_its_own():
    """Kolmogorov-Smirnov at 1e-6, on 20,000 draws: a noise off by 10 % fails."""
    noise = TorchNoise(Randomness(7))
    values = drawn(noise, (20_000,), 2.5)
    assert values.dtype == torch.float64
    values = values.numpy()
    assert stats.kstest(values, "norm", (0, 2.5)).pvalue > 1e-6
    for wrong in (2.5 / 1.1, 2.5 * 1.1):
        assert stats.kstest(values, "norm", (0, wrong)).pvalue < 1e-6
    np.testing.assert_array_equal(drawn(noise, (20_000,), 2.5).numpy(), values)
    keys = [
        {"stage": "scale"}, {"t": 2}, {"sites": np.array([4])}, {"sites": np.array([3, 4])},
        {"sites": np.array([4, 5])},
    ]  # fmt: skip
    others = [drawn(noise, (20_000,), 2.5, **key).numpy() for key in keys]
    others.append(drawn(TorchNoise(Randomness(8)), (20_000,), 2.5).numpy())
    table = np.corrcoef([values, *others])
    # |r| < 6 / sqrt(20,000): false alarms below 1e-7.
    assert np.abs(table - np.eye(len(table))).max() < 6 / math.sqrt(20_000)


def test_noise_of_a_symmetric_release():
    plan = PrivacyPlan((PlannedRelease("moment", 1, 1, 1, 1.0),), 1e-5, "local", 1)
    gate = Gate(plan, TorchNoise(Randomness(1)), Randomness(1))
    m = 120
    value, zeros = torch.zeros((m, m), dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    sums = KernelSum(lambda bound, keep: value, zeros, symmetric=True)
    batch = stage.SiteBatch(zeros[:, None], np.array([0, 1]), np.array([0]))
    sample = gate.sample(batch, stage="moment", t=1)
    parts = [(sums, batch, sample)]
    released = gate.release(parts, batch.sites, stage="moment", t=1, sensitivity=1.0)
    noise = released.value.numpy()
    np.testing.assert_array_equal(noise, noise.T)
    above = noise[np.triu_indices(m, 1)]
    # Standard deviations within 6 standard errors.
    assert above.std() == pytest.approx(math.sqrt(0.5), rel=6 / math.sqrt(2 * len(above)))
    assert np.diag(noise).std() == pytest.approx(1, rel=6 / math.sqrt(2 * m))


@pytest.mark.parametrize("name", ["gpu", "meta", "mps", "", "cuda:99", 0, True])
def test_a_device_that_is_not_there(rng, name):
    X, sites = many(rng, n=40)
    message = "device must be one that torch can use" if name == "cuda:99" else "device must be"
    with pytest.raises(InvalidInput, match=f"{message}.*got {name!r}"):
        DPFedC(2, epsilon=None, device=name).fit(X, sites=sites)


def test_a_missing_torch_is_told(rng, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        MissingExtra, match=r"device='cpu' needs torch: pip install 'dpfedc\[gpu\]'"
    ):
        devices.torch_device("cpu")


def test_torch_is_imported_where_it_is_used_alone():
    code = (
        "import sys, numpy as np, dpfedc, dpfedc.cli, dpfedc.cli.fit\n"
        "X = np.arange(40.0).reshape(20, 2) % 7\n"
        "dpfedc.DPFedC(2, epsilon=None, n_rounds=2).fit(X).predict(X)\n"
        "print({'torch', 'triton'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "set()"


def test_the_command_line(tmp_path, capsys):
    table = write_csv(tmp_path / "patients.csv", HEAD, patients())
    results = []
    words = ("fit", table, "--clusters", 3, *ROLES, *EXACT, "--output")
    for device in ((), ("--device", "cpu")):
        folder = tmp_path / f"results{len(results)}"
        code, _, err = outcome(capsys, (*words, folder, *device))
        assert code == 0, err
        results.append((folder / "labels.csv").read_text())
    assert results[0] == results[1]
    code, _, err = outcome(capsys, (*words, tmp_path / "none", "--device", "moon"))
    assert code != 0
    assert "device must be" in " ".join(err.split())


class Waits(TorchDispatchMode):
    """Counts what would keep a host waiting for an accelerator: numbers read from a tensor."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += "_local_scalar_dense" in str(func)
        return func(*args, **(kwargs or {}))


def test_a_round_waits_for_the_accelerator_three_times(rng, monkeypatch):
    """Once for what a site remembers, once for the centres, once for the step size."""
    X, sites = many(rng)
    copies = []

    def counted(x):
        copies.append(x.shape)
        return on_host(x)

    on_host = devices.on_host
    factorization = sys.modules["dpfedc.kernels.objective"]
    for module in (devices, factorization):
        monkeypatch.setattr(module, "on_host", counted)
    for module in (devices, stage, factorization):
        monkeypatch.setattr(module, "on_accelerator", lambda x: isinstance(x, torch.Tensor))
    federation, totals = Sites.of(torch.asarray(X), sites), {}
    for n_rounds in (5, 15):
        copies.clear()
        stages = (Mean(), Scale(), Factorization(4, n_rounds, sites_per_round=4))
        with Waits() as waits:
            ran(stages, federation, Randomness(0))
        totals[n_rounds] = np.array([waits.count, len(copies)])
    np.testing.assert_array_equal((totals[15] - totals[5]) / 10, [1, 2])


def test_a_tensor_is_brought_again_when_it_was_written_to(monkeypatch):
    monkeypatch.setattr(devices, "on_accelerator", lambda x: True)
    x = torch.arange(3.0)
    first = devices.on_host_once(x)
    assert devices.on_host_once(x) is first
    x += 1
    np.testing.assert_array_equal(devices.on_host_once(x), [1, 2, 3])
    key = id(x)
    assert key in devices._brought
    del x
    assert key not in devices._brought


@pytest.fixture(scope="module")
def fused():
    """Return the fused kernels, run by Triton's interpreter."""
    pytest.importorskip("triton", reason="triton is not installed (make test-torch installs it)")
    return importlib.import_module("dpfedc.kernels.fused")


class Problem:
    """Records, centres and a step, with the sum of clipped gradients by either way."""

    def __init__(self, n, m, k, *, rho=0.5, bound=0.03, steps=10, seed=0, far=0.0):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((n, m)) + 3 * rng.standard_normal((k, m))[rng.integers(k, size=n)]
        self.X = torch.asarray((X + far).astype(np.float32))
        self.center = torch.mean(self.X, dim=0)
        self.scale = 1.3 * torch.mean(torch.linalg.norm(self.X - self.center, dim=1))
        self.view = Standardized.of(self.X, center=self.center, scale=self.scale)
        self.W = torch.asarray(unit_rows(rng.standard_normal((k, m))).astype(np.float32))
        self.M = membership_curvature(self.W, rho=rho, mu_h=0.0)
        self.bound, self.steps = bound, steps

    def by_kernel(self, fused, keep=None, **more):
        view = self.view
        return fused.clipped_gradients(
            view.X, center=view.center, factors=view.factors,
            squares=fused.rounded_squares(view.X, view.center, view.factors), W=self.W,
            curvature=self.M.numpy(), gamma=membership_step_size(self.M), steps=self.steps,
            bound=self.bound, keep=keep, **more,
        )  # fmt: skip

    def rounded(self, keep=None):
        """Return the sum of what the kernel rounds to float16, in double precision otherwise."""
        double, view = torch.float64, self.view

        def half(x, scale):
            return (x * scale).to(torch.float16).to(double) / scale

        X = half((self.X - self.center) * (view.factors * 2.0**14)[:, None], 1.0) / 2.0**14
        W, M = self.W.to(double), self.M.to(double)
        gamma = membership_step_size(self.M)
        drive = 2 * X @ W.T / gamma
        H = half(drive.clamp(min=0), 16.0)
        for _ in range(self.steps - 1):
            H = half((H - H @ M / gamma + drive).clamp(min=0), 16.0)
        residuals = H @ W - X
        norms = 2 * torch.linalg.norm(residuals, dim=1) * torch.linalg.norm(H, dim=1)
        V = H * (2 * clip_weights(norms, self.bound, keep))[:, None]
        return V.T @ residuals

    def plain(self, keep=None):
        """Return the sum in double precision, record by record where it matters: by formula."""
        double = torch.float64
        W, M = self.W.to(double), self.M.to(double)
        view = Standardized(
            self.X.to(double), self.center.to(double), self.view.factors.to(double),
            self.view.squared_norms.to(double), 0.0,
        )  # fmt: skip
        A = view.products(W)
        H = membership_steps(A, M, self.steps)
        H = torch.where(torch.isfinite(torch.sum(H, dim=1, keepdim=True)), H, 0.0)
        norms = 2 * residual_norms(view.squared_norms, A, H, W @ W.T) * torch.linalg.norm(H, dim=1)
        V = H * (2 * clip_weights(norms, self.bound, keep))[:, None]
        return (V.T @ H) @ W - view.weighted_sums(V)


def difference(got, expected):
    return float(torch.max(torch.abs(got - expected)) / torch.max(torch.abs(expected)))


@pytest.mark.parametrize(
    ("n", "m", "k", "more"),
    [
        (64, 64, 16, {}),
        (700, 20, 10, {}),
        (333, 64, 20, {"rho": 0.0}),
        (90, 100, 3, {"bound": 5.0}),
        (130, 200, 40, {"steps": 1}),
        (70, 784, 10, {"rho": 1.0, "steps": 30}),
        (1, 3, 2, {"bound": 1.0}),
        (300, 5, 1, {"far": 100.0}),
    ],
)
def test_the_fused_kernel_is_the_plain_sum(fused, n, m, k, more):
    problem = Problem(n, m, k, **more)
    if n == 1:
        problem.center = problem.X[0] - problem.W[0] - 0.3
        problem.view = Standardized.of(problem.X, center=problem.center, scale=problem.scale + 1)
    expected = problem.rounded()
    assert difference(expected, problem.plain()) < 1e-3
    assert difference(problem.by_kernel(fused), expected) < 3e-5
    keep = torch.asarray(np.random.default_rng(1).random(n) < 0.6)
    keep[0] = True
    got = problem.by_kernel(fused, keep)
    assert difference(got, problem.rounded(keep)) < 3e-5
    assert got.dtype == torch.float32
    tiling = fused.Tiling(rows=32, programs_per_core=3)
    assert difference(problem.by_kernel(fused, tiling=tiling), expected) < 3e-5


def test_a_null_record_adds_nothing_whatever_stands_in_its_row(fused):
    problem = Problem(150, 70, 10)
    keep = torch.ones(150, dtype=torch.bool)
    keep[[3, 77, 149]] = False
    expected = problem.by_kernel(fused, keep)
    for value in (math.nan, math.inf, 1e30):
        problem.X[[3, 77, 149], 2] = value
        problem.view = Standardized.of(problem.X, center=problem.center, scale=problem.scale)
        finite = torch.isfinite(problem.view.squared_norms)
        np.testing.assert_array_equal(finite.numpy(), keep.numpy())
        for mask in (None, keep):
            assert torch.equal(problem.by_kernel(fused, mask), expected)


def test_no_record_of_the_fused_kernel_is_longer_than_the_bound(fused):
    """One record at a time; with the slack taken away, or the bound not applied, this fails."""
    n = 40
    problem = Problem(n, 30, 2, bound=1e-3, steps=30, rho=1.0)
    problem.W = torch.linalg.qr(problem.W.T).Q.T.contiguous()
    problem.M = membership_curvature(problem.W, rho=1.0, mu_h=0.0)
    # Records that the centres explain almost in full: in their norms all but rounding cancels.
    rng = np.random.default_rng(0)
    share, rest = rng.uniform(0.3, 0.9, (35, 1)), 10 ** rng.uniform(-3.5, -2.5, (35, 1))
    away = rest * unit_rows(rng.standard_normal((35, 30)))
    near = share * problem.W.numpy()[np.arange(35) % 2] + away
    problem.X[:35] = problem.center + problem.scale * torch.asarray(near.astype(np.float32))
    problem.X[-1] = problem.center
    problem.view = Standardized.of(problem.X, center=problem.center, scale=problem.scale)
    lengths = []
    for j in range(n):
        keep = torch.zeros(n, dtype=torch.bool)
        keep[j] = True
        lengths.append(float(torch.linalg.norm(problem.by_kernel(fused, keep).to(torch.float64))))
    assert max(lengths) <= problem.bound * (1 + 1e-4)
    assert sum(length > 0.9 * problem.bound for length in lengths) > 2
    assert lengths[-1] == 0


class Watched(OpenGate):
    """An open gate that keeps the events of what it lets out, as a gate with a plan does."""

    def __init__(self):
        super().__init__()
        self.events = []

    def release(self, *parts, **more):
        released = super().release(*parts, **more)
        self.events.append(released.event)
        return released


@pytest.mark.parametrize("plan", [False, True], ids=["without noise", "with noise and coins"])
def test_rounds_with_the_fused_kernel_pass_the_same_gate(fused, rng, monkeypatch, plan):
    X, sites = many(rng, n=500, m=12, k=4, dtype=np.float32)
    privacy = None
    if plan:
        names, chances = ("mean", "scale", "factorisation"), (1.0, 1.0, 0.7)
        privacy = PrivacyPlan(
            tuple(
                PlannedRelease(name, 4, 9, 4, 0.1, q)
                for name, q in zip(names, chances, strict=True)
            ),
            1e-5, "local", 9,
        )  # fmt: skip
    stages = (Mean(), Scale(), Factorization(4, 4, sites_per_round=5))
    calls, results = [], []
    kernel = fused.clipped_gradients

    def counted(*rest, **more):
        calls.append(more["keep"])
        return kernel(*rest, **more)

    monkeypatch.setattr(fused, "clipped_gradients", counted)
    monkeypatch.setattr(fused, "MIN_RECORDS", 1)
    for kernels in (None, fused):
        monkeypatch.setattr(factorization, "fused_kernels", lambda X, found=kernels: found)
        gate = Watched()
        if privacy is not None:
            gate = Gate(privacy, TorchNoise(Randomness(2)), Randomness(2))
        state = {"bound": torch.asarray(12.0)}
        federation = Sites.of(torch.asarray(X), sites)
        final = ran(stages, federation, Randomness(2), gate=gate, state=state)
        results.append((final["W"], gate.events))
    assert len(calls) == 4
    assert all((keep is not None) == plan for keep in calls)
    np.testing.assert_allclose(results[0][0].numpy(), results[1][0].numpy(), atol=5e-3)
    assert results[0][1] == results[1][1], "the same charges, noise and sensitivities"


@pytest.mark.parametrize(
    "stage",
    [
        Factorization(4, 1, constant=0.5),
        Factorization(4, 1, clip_norm=1e-5),
        Factorization(70, 1),
        LocalSteps(4, 1, extra_steps=3),
        SumsAndGram(4, 1),
    ],
    ids=["constant", "short bound", "many clusters", "local steps", "sums and Gram"],
)
def test_what_the_fused_kernel_is_not_made_for(fused, rng, monkeypatch, stage):
    monkeypatch.setattr(factorization, "fused_kernels", lambda X: fused)
    X = torch.asarray(many(rng, dtype=np.float32)[0])
    assert Factorization(4, 1).fused(X, {}) is fused
    assert Factorization(4, 1).memory_factor(X, {}) < 1
    assert stage.fused(X, {}) is None
    assert stage.memory_factor(X, {}) == 1
    assert Factorization(4, 1).fused(X.to(torch.float64), {}) is None
    assert Factorization(4, 1).fused(X, {"basis": X[:2]}) is None
    monkeypatch.undo()
    assert devices.fused_kernels(X) is None, "on the CPU there is none"
    assert devices.fused_kernels(X.numpy()) is None

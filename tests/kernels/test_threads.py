"""Rows are spread over threads; no result depends on how many there are."""

import contextlib
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from dpfedc import DPFedC
from dpfedc.kernels.rows import Runs, by_columns, weighted_rows
from dpfedc.kernels.threads import each, rows_over_threads

CAN_THREAD = any(
    library["user_api"] == "blas" and library["num_threads"]
    for library in ThreadpoolController().info()
)
needs_blas = pytest.mark.skipif(not CAN_THREAD, reason="threadpoolctl knows no BLAS here")


def blas_threads():
    return {
        library["num_threads"]
        for library in ThreadpoolController().info()
        if library["user_api"] == "blas"
    }


@needs_blas
@pytest.mark.parametrize("threads", [1, 3])
def test_blas_has_one_thread_within_and_the_rest_goes_to_each(threads):
    meet = threading.Barrier(threads, timeout=60)

    def work(item):
        meet.wait()  # passes only if as many are at work at a time
        assert blas_threads() == {1}
        return item**2, threading.get_ident()

    with threadpool_limits(limits=threads, user_api="blas"):
        with rows_over_threads():
            assert blas_threads() == {1}
            found = each(work, range(threads))
        assert blas_threads() == {threads}
    assert [square for square, _ in found] == [i**2 for i in range(threads)]
    assert len({who for _, who in found}) == threads
    assert {who for _, who in each(lambda i: (i, threading.get_ident()), range(4))} == {
        threading.get_ident()
    }, "no threads are left outside"


@needs_blas
def test_what_fails_in_a_thread_is_told():
    def work(item):
        if item == 2:
            raise ValueError("the third")
        return item

    with threadpool_limits(limits=2, user_api="blas"), rows_over_threads():
        with pytest.raises(ValueError, match="the third"):
            each(work, range(5))
        assert each(work, range(2)) == [0, 1]


@needs_blas
def test_many_at_a_time_leave_blas_as_it_was():
    before = blas_threads()
    inside, first_left = threading.Barrier(3, timeout=60), threading.Event()

    def hold(i):
        if i:
            inside.wait()
        with rows_over_threads():
            if i == 0:
                inside.wait()  # the one who holds BLAS
            else:
                first_left.wait(60)
        first_left.set()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(hold, range(3)))
    assert blas_threads() == before
    with threadpool_limits(limits=2, user_api="blas"), rows_over_threads(), rows_over_threads():
        assert blas_threads() == {1}
        assert len(each(lambda i: i, range(3))) == 3
    assert blas_threads() == before


@needs_blas
def test_threads_treat_overflow_as_the_caller_does():
    big = np.full(9, 3e38, np.float32)
    with threadpool_limits(limits=2, user_api="blas"), rows_over_threads():
        with np.errstate(over="ignore"):
            assert np.isinf(each(lambda _: big * big, range(3))).all()
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            each(lambda _: big * big, range(3))


@needs_blas
def test_threads_that_are_gone_are_not_waited_for(monkeypatch):
    def who(_):
        return threading.get_ident()

    with threadpool_limits(limits=2, user_api="blas"):
        with rows_over_threads():
            kept = contextvars.copy_context()
            with monkeypatch.context() as forked:
                forked.setattr("os.getpid", lambda: -1)
                assert set(each(who, range(3))) == {threading.get_ident()}
        assert set(kept.run(each, who, range(3))) == {threading.get_ident()}


def test_a_blas_that_does_not_say_its_threads_has_one(monkeypatch):
    class Unknown:
        def info(self):
            return [{"num_threads": None}]

        def limit(self, limits):
            return contextlib.nullcontext()

    monkeypatch.setattr("dpfedc.kernels.threads._blas", lambda *_: Unknown())
    with rows_over_threads():
        assert set(each(lambda _: threading.get_ident(), range(3))) == {threading.get_ident()}


@needs_blas
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_do_not_depend_on_threads(monkeypatch, dtype):
    monkeypatch.setattr("dpfedc.kernels.rows.MIN_GROUP", 10_000)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 40)).astype(dtype)
    assert len(Runs(X, np.array([0]), np.array([3000])).groups(256, 7)) > 5
    W, V = rng.standard_normal((7, 40)).astype(dtype), rng.random((3000, 7)).astype(dtype)
    found = []
    for threads in (1, 2, 5):
        with threadpool_limits(limits=threads, user_api="blas"), rows_over_threads():
            found.append((by_columns(X, W), weighted_rows(V, X)))
    for product, sums in found[1:]:
        np.testing.assert_array_equal(product, found[0][0])
        np.testing.assert_array_equal(sums, found[0][1])


@needs_blas
@pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")
@pytest.mark.parametrize("epsilon", [None, 5.0])
def test_a_fit_does_not_depend_on_threads(monkeypatch, epsilon):
    monkeypatch.setattr("dpfedc.kernels.rows.MIN_GROUP", 10_000)
    monkeypatch.setattr("dpfedc.kernels.objective.TOGETHER", 200)
    rng = np.random.default_rng(0)
    X = (
        rng.standard_normal((2000, 12))
        + 5 * rng.standard_normal((4, 12))[rng.integers(4, size=2000)]
    )
    models = []
    for threads in (1, 4):
        with threadpool_limits(limits=threads, user_api="blas"):
            model = DPFedC(4, epsilon=epsilon, n_rounds=8, sites_per_round=6, random_state=0)
            models.append(model.fit(X, sites=np.arange(2000) % 9))
    np.testing.assert_array_equal(models[0].cluster_centers_, models[1].cluster_centers_)
    np.testing.assert_array_equal(models[0].labels_, models[1].labels_)

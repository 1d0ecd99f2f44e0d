"""The benchmarks run, and measure what they say."""

import json
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import dpfedc

FOLDER = Path(__file__).parents[1] / "benchmarks"
linux_only = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="memory is read from /proc"
)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a benchmark's main with the given arguments; return its JSON file."""
    monkeypatch.syspath_prepend(FOLDER)

    def main(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments, "--output", str(tmp_path)])
        __import__(name).main()
        (written,) = tmp_path.glob("*.json")
        return json.loads(written.read_text())

    return main


@pytest.mark.parametrize("reuse_products", [True, False])
def test_the_plain_loop_is_the_same_method(monkeypatch, reuse_products):
    monkeypatch.syspath_prepend(FOLDER)
    from plain import Plain, cluster, standardised

    rng = np.random.default_rng(0)
    X, first = rng.normal(size=(90, 60)) + 1, rng.normal(size=(3, 60))
    sizes = [20, 30, 40]
    model = dpfedc.DPFedC(
        3, epsilon=None, n_rounds=6, init=first, momentum=0.5, clip_norm=0.2, refine_rounds=0
    ).fit(X, sites=np.repeat([0, 1, 2], sizes))
    center, scale = model.model_.center, model.model_.scale
    plain = Plain(3, 6, 3, 10, 0.2, 24.0, 0.5, 1.0, 0.0, reuse_products)
    W = (first - center) / scale
    W /= np.linalg.norm(W, axis=1, keepdims=True)
    sites = np.split(standardised(X, center, scale), np.cumsum(sizes)[:-1])
    np.testing.assert_allclose(cluster(sites, plain, W), model.model_.directions, atol=1e-9)


@linux_only
def test_speed_reports_every_rival_or_why_it_is_left_out(run, monkeypatch, capsys):
    import speed
    from environments import Unavailable

    def missing(*_):
        raise Unavailable("no such package")

    monkeypatch.setattr(speed, "flower", missing)
    result = run("speed", "--cases", "tiny", "--repeats", "1", "--without", "diffprivlib")
    assert result["left_out"] == {"Flower simulation": "no such package"}
    assert "Flower simulation: left out, no such package" in capsys.readouterr().out
    assert len(result["runs"]) == 5
    for name, one in result["runs"].items():
        assert 0 < one["least_cpu_s"] <= one["median_cpu_s"]
        assert 0 < one["cost"] < 6, name  # 5 without clusters: 60 features of variance 1/12
    assert result["fit_over_floor"]["least_cpu"] > 0
    assert result["memory"]["traced_peak_mib"] > 0


def test_ratios_are_of_neighbours(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    from measuring import Seconds, ratios

    # The machine slows down threefold in mid-run: neighbours still say 2, least over least as well.
    floors = [Seconds(1, 1), Seconds(1, 1), Seconds(3, 1), Seconds(3, 1)]
    fits = [Seconds(2, 5), Seconds(4, 5), Seconds(6, 5)]
    found = ratios(fits, floors)
    assert found == {"median_wall": 2, "least_wall": 2, "median_cpu": 5, "least_cpu": 5}


def test_the_peak_of_memory_is_the_largest_growth(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import measuring

    readings, all_read = [100.0, 90.0, 164.0, 120.0], threading.Event()

    def memory_mib(field):
        assert field == "RssAnon"
        if len(readings) == 1:
            all_read.set()
            return readings[0]
        return readings.pop(0)

    monkeypatch.setattr(measuring, "memory_mib", memory_mib)
    with measuring.AnonymousPeak(every_s=0) as peak:
        assert all_read.wait(60)
    assert peak.growth_mib == 64


def test_an_exponent_is_recovered(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    from scaling import exponent

    sizes = np.array([10, 100, 1000])
    slope, error = exponent(sizes, 3 * sizes**0.7)
    assert slope == pytest.approx(0.7)
    assert error == pytest.approx(0, abs=1e-9)
    _, error = exponent(sizes, [1, 5, 3])
    assert error > 0.1


def test_scaling_runs(run, tmp_path):
    result = run("scaling", "--tiny")
    assert len(result["axes"]["n"]["times"]) == 3
    assert (tmp_path / "scaling.png").stat().st_size > 10_000


def test_reading_is_compared_with_pyarrow(run):
    result = run("reading", "--rows", "20000", "--columns", "3", "--repeats", "1", "--slow")
    assert len(result["readings"]) == 6
    assert all(one["seconds"] > 0 for one in result["readings"].values())


@linux_only
def test_scale_runs_and_removes_its_records(run, tmp_path):
    records = tmp_path / "records"
    result = run("scale", "--folder", str(records), "--times", "0.0005")
    assert list(records.iterdir()) == []
    assert result["shapes"]["many-small"]["sites"] == 500
    assert result["shapes"]["few-large"]["records_per_site"] == 10_000
    assert all(one["seconds_per_round"] > 0 for one in result["against_sites"])


def test_the_floor_in_blocks_does_the_whole_products(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import floor

    rng = np.random.default_rng(0)
    X, W, V = rng.random((613, 300)), rng.random((300, 25)), rng.random((25, 613))
    tall, thin = np.full((613, 25), np.nan), np.full((25, 300), np.nan)
    floor._tall_in_blocks(X, W, out=tall)
    floor._thin_in_blocks(V, X, out=thin)
    np.testing.assert_allclose(tall, X @ W)
    np.testing.assert_allclose(thin, V @ X)


def test_products_are_compared_in_both_precisions(run, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import products

    monkeypatch.setattr(products, "SHAPES", ((300, 40, 3),))
    written = run("products", "--repeats", "1")["products"]
    assert [row["dtype"] for row in written] == ["float32", "float64"]
    for row in written:
        for name in ("X W'", "V'X"):
            times = row[name]
            ratio = times["blocks_s"] / times["whole_s"]
            assert times["blocks_over_whole"] == pytest.approx(ratio)
            assert times["threads_s"] > 0


def test_a_round_in_secret_is_measured_in_bytes_of_its_parts(run):
    """Four sites, one of which drops out: keys, boxes, numbers, a signature, shares; 8 a number."""
    (row,) = run("secure_aggregation", "--sites", "4", "--repeats", "1")["rounds"]
    assert row["holders"] == 4
    assert row["bytes_sent"] == (160 + 8) + 3 * (96 + 8) + 7840 * 8 + (64 + 8) + 4 * (40 + 8)
    lists, parts = (4 + 4 + 3) * 8, 3 * (160 + 8) + 3 * (96 + 8) + 3 * (64 + 8)
    assert row["bytes_received"] == lists + parts
    assert row["site_cpu_ms"] > 0

"""The figure of sizes: it is decoded and measured."""

import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest

from dpfedc.errors import InvalidInput
from dpfedc.report.figures import sizes_figure
from support.pages import mask, pixels

CLUSTER_COLORS = ("#332288", "#88ccee", "#44aa99", "#117733", "#999933")


def test_bars_cover_areas_in_proportion_to_the_records():
    rng = np.random.default_rng(1)
    for n_sites in (3, 30, 200):  # rows, columns, one area
        sizes = rng.integers(20, 60, size=(n_sites, 5)) * np.array([1, 2, 3, 4, 5])
        png = sizes_figure(sizes)
        # The keys of the legend, at the bottom, have the same colours: leave them out.
        height = len(pixels(png)) - 130
        areas = np.array([mask(png, color)[:height].sum() for color in CLUSTER_COLORS])
        np.testing.assert_allclose(areas / areas.sum(), sizes.sum(0) / sizes.sum(), atol=0.02)
    nobody = sizes_figure(np.zeros((3, 5), dtype=int))
    assert not any(mask(nobody, color)[:-130].any() for color in CLUSTER_COLORS)


@pytest.mark.parametrize(
    ("n_sites", "n_clusters"), [(1, 1), (3, 12), (24, 12), (25, 12), (100, 10), (100, 45)]
)
def test_bars_stay_on_a_page_of_any_number_of_sites(n_sites, n_clusters):
    names = [f"$hospital_{i}" * 4 for i in range(n_sites)]
    shape = pixels(sizes_figure(np.ones((n_sites, n_clusters)), names)).shape
    assert shape[1] == 1040
    assert 250 <= shape[0] <= 1600


def test_figures_are_reproducible_and_touch_no_global_state():
    before = dict(mpl.rcParams)
    first, second = (sizes_figure([[1, 2], [3, 4]]) for _ in range(2))
    assert first == second
    assert dict(mpl.rcParams) == before
    code = (
        "import sys, dpfedc.report.page, dpfedc.report.figures as figures; "
        "figures.sizes_figure([[1, 2]]); "
        "heavy = {'matplotlib.pyplot', 'dpfedc.clustering', 'dpfedc.estimators'}; "
        "found = heavy & set(sys.modules); "
        "sys.exit(str(found) if found else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: sizes_figure([1.0]), r"sizes must be a non-empty matrix, got shape \(1,\)"),
        (lambda: sizes_figure([[1.0, np.nan]]), "sizes must be finite, got 1 entries"),
        (lambda: sizes_figure([[1, -2]]), "sizes must be >= 0, got -2"),
        (lambda: sizes_figure([[1, 2]], ["a", "b"]), "name each of 1 sites, got 2"),
    ],
)
def test_bad_figure_input_is_named(draw, message):
    with pytest.raises(InvalidInput, match=message):
        draw()


@pytest.mark.parametrize("n_sites", [3, 30])
def test_the_axis_names_the_unit(n_sites):
    sizes = np.ones((n_sites, 2))
    assert sizes_figure(sizes) == sizes_figure(sizes, unit="record")
    assert sizes_figure(sizes) != sizes_figure(sizes, unit="person")

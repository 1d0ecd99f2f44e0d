"""The report: pictures are decoded and measured, the page is parsed, failures leave no trace."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from dpfedc.engine.run_record import RoundRecord, RunRecord
from dpfedc.errors import InvalidInput
from dpfedc.report.figures import centers_figure, line_figure, sizes_figure
from dpfedc.report.markup import Table
from dpfedc.report.page import ReportContent, write_report

EVIL = "<script>alert('x')</script>&\"$x_{$"
VOID = {"meta", "link", "img", "br", "hr"}
LINE, SHADE = "#0b62a4", "#e9eef3"
CLUSTER_COLORS = ("#332288", "#88ccee", "#44aa99", "#117733", "#999933")


def pixels(png):
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    with Image.open(BytesIO(png)) as image:
        image.load()
        return np.asarray(image.convert("RGB"), dtype=float)


def mask(png, color, tolerance=6):
    return (np.abs(pixels(png) - 255 * np.array(to_rgb(color))) < tolerance).all(axis=2)


class Page(HTMLParser):
    """Parse a page, refuse unbalanced tags, and keep tags, attributes and visible text."""

    def __init__(self, path):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names))
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def run_record(n_rounds=6, names=("objective", "accuracy"), stamps=(), settings=None):
    values = {"objective": lambda t: 10.0 / t, "accuracy": lambda t: 0.1 * t}
    fit = [
        RoundRecord(
            "factorisation", t, 4, 90, 0.1, diagnostics={name: values[name](t) for name in names}
        )
        for t in range(1, n_rounds + 1)
    ]
    rounds = (RoundRecord("mean", 1, 4, 90, 0.1), *fit)
    return RunRecord("DP-FedC", "1.2.3", settings or {}, rounds, stamps)


def scores(*rows):
    return Table("Scores", ("score", "this run", "reference"), rows)


def full_content(**changes):
    rng = np.random.default_rng(0)
    values = {
        "title": "Digits",
        "record": run_record(
            stamps=("exact, not released",), settings={"seed": None, "privacy": {"epsilon": 1.5}}
        ),
        "summary": ["First sentence.", "Second sentence."],
        "privacy": ["It is private.", "Not protected: the rest."],
        "stages": Table("What each stage cost", ("stage", "n"), [("mean: the middle", "1")]),
        "scores": scores(("accuracy", 0.489, np.float64(0.5)), ("records", 12345, None)),
        "centers": rng.random((3, 12)),
        "image_shape": (3, 4),
        "sizes": rng.integers(1, 20, size=(4, 3)),
        "site_names": ["a", "b", "c", "d"],
        "reference_accuracy": 0.55,
        "how_made": "dpfedc run --seed 7",
    }
    return ReportContent(**values | changes)


# --- figures ---------------------------------------------------------------------------------


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


def middle_height(values):
    """Return where the middle of three points lies between the last (0) and the first (1)."""
    png = line_figure([1, 2, 3], values, label="objective")
    rows, columns = np.nonzero(mask(png, LINE, 40))
    left, right = columns.min(), columns.max()
    ends_and_middle = [left + 6, right - 6, (left + right) // 2]
    first, last, middle = (rows[abs(columns - c) <= 3].mean() for c in ends_and_middle)
    return (last - middle) / (last - first)


def test_lines_have_a_logarithmic_axis_only_when_values_span_fifty_fold():
    assert middle_height([1000, 100, 10]) == pytest.approx(1 / 2, abs=0.03)
    assert middle_height([40, 4, 1]) == pytest.approx(3 / 39, abs=0.03)


def test_lines_shade_every_second_stage_and_break_between_stages():
    rounds, values = list(range(1, 11)), [5.0] * 10
    spans = [("mean", 1, 4), ("factorisation $", 5, 10)]
    one = line_figure(rounds, values, label="objective", spans=[("mean", 1, 10)])
    two = line_figure(rounds, values, label="objective", spans=spans)
    assert mask(one, SHADE).sum() < 200  # the edges of letters have many colours
    columns = np.flatnonzero(mask(two, SHADE).sum(axis=0) > 200)
    axis = np.flatnonzero(mask(two, "#b6c0c8").any(axis=0))
    assert np.ptp(columns) == pytest.approx(0.6 * np.ptp(axis), rel=0.02)
    # From round 1 to 10 there are nine steps; the one between the stages is not drawn.
    lengths = [mask(png, LINE).any(axis=0).sum() for png in (one, two)]
    assert lengths[1] == pytest.approx(lengths[0] * 8 / 9, rel=0.02)


def test_lines_leave_room_for_a_reference_above_them():
    plain = line_figure([1, 2], [0.1, 0.2], label="accuracy", from_zero=True)
    dashed = line_figure([1, 2], [0.1, 0.2], label="accuracy", from_zero=True, reference=0.8)
    heights = [np.ptp(np.nonzero(mask(p, LINE)[:-120])[0]) for p in (plain, dashed)]
    assert heights[1] < heights[0] / 2
    assert pixels(dashed).shape[0] > pixels(plain).shape[0]


def test_pictures_show_centers_on_one_grey_scale():
    dark, grey, light = (np.full(36, v) for v in (0.0, 0.5, 1.0))
    png = centers_figure([dark, grey, light], (6, 6))
    areas = [mask(png, color, 3).sum() for color in ("black", "#7f7f7f")]
    assert areas[0] == pytest.approx(areas[1], rel=0.02)
    assert areas[0] > 30_000
    red = centers_figure([[2.0, 0, 0] * 4], (2, 2, 3))
    assert mask(red, "red").sum() == pytest.approx(areas[0], rel=0.1)


def test_table_colors_each_feature_by_its_own_range():
    low, high = "#f7fbff", "#08306b"  # the ends of the colour scale
    centers = np.array([[0.0, 1e6], [1.0, 1e6 + 1]])
    png = centers_figure(centers, feature_names=["age", EVIL])
    dark = mask(png, high).sum(axis=1) > 200
    assert np.flatnonzero(np.diff(dark.astype(int))).size >= 4  # a dark cell in both rows
    assert mask(png, low).sum() == pytest.approx(mask(png, high).sum(), rel=0.2)
    constant = centers_figure(np.ones((2, 2)))
    for color in (low, high):
        assert mask(constant, color).sum() < mask(png, color).sum() / 50


def test_heat_map_centers_its_colors_at_zero():
    centers = np.tile([-1.0, 3.0], (4, 50))
    png = centers_figure(centers)
    assert mask(png, "#67001f", 12).any()  # the dark red end: 3 is the largest size
    assert not mask(centers_figure(np.abs(centers)), "#67001f", 12).any()
    assert pixels(centers_figure(np.zeros((60, 1046)))).shape[0] <= 1100


def test_figures_are_reproducible_and_touch_no_global_state():
    before = dict(mpl.rcParams)
    first, second = (sizes_figure([[1, 2], [3, 4]]) for _ in range(2))
    assert first == second
    assert dict(mpl.rcParams) == before
    code = (
        "import sys, dpfedc.report.page as page; "
        "page.figures.sizes_figure([[1, 2]]); "
        "heavy = {'matplotlib.pyplot', 'dpfedc.clustering', 'dpfedc.estimators'}; "
        "found = heavy & set(sys.modules); "
        "sys.exit(str(found) if found else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: line_figure([1], [1.0, 2.0], label="a"), r"got \(1,\) and \(2,\)"),
        (lambda: line_figure([], [], label="a"), "one length > 0"),
        (lambda: line_figure([1], [np.inf], label="cost"), "cost must be finite, got 1 entries"),
        (lambda: line_figure([1], [1.0], label="a", reference=np.nan), "reference must be finite"),
        (lambda: centers_figure([1.0]), r"centres must be a non-empty matrix, got shape \(1,\)"),
        (lambda: centers_figure([[1.0, np.nan]]), "centres must be finite"),
        (lambda: centers_figure([[1.0, 2]], (2, 2)), r"of 2 values, got \(2, 2\)"),
        (lambda: centers_figure([[1.0, 2]], (1, 1, 2)), r"\(height, width, 3\).*got \(1, 1, 2\)"),
        (lambda: centers_figure([[1.0, 2]], None, ["a"]), "name each of 2 features, got 1"),
        (lambda: sizes_figure([[1, -2]]), "sizes must be >= 0, got -2"),
        (lambda: sizes_figure([[1, 2]], ["a", "b"]), "name each of 1 sites, got 2"),
    ],
)
def test_bad_figure_input_is_named(draw, message):
    with pytest.raises(InvalidInput, match=message):
        draw()


# --- page ------------------------------------------------------------------------------------


def test_page_is_well_formed_and_complete(tmp_path):
    path = write_report(tmp_path / "new" / "folder", full_content())
    page = Page(path)
    assert path == tmp_path / "new" / "folder" / "report.html"
    names = ["objective.png", "accuracy.png", "centres.png", "sizes.png"]
    assert [image["src"] for image in page.all("img")] == names
    assert sorted(p.name for p in path.parent.iterdir()) == sorted([*names, "report.html"])
    for image in page.all("img"):
        height, width, _ = pixels((path.parent / image["src"]).read_bytes()).shape
        assert (int(image["width"]), int(image["height"])) == (width // 2, height // 2)
        assert len(image["alt"]) > 30
    assert len(page.all("figcaption")) == len(page.all("figure")) == 4
    assert len(page.all("h1")) == len(page.all("main")) == len(page.all("details")) == 1
    assert len(page.all("caption")) == len(page.all("table")) == 3
    assert {th["scope"] for th in page.all("th")} == {"col", "row"}
    for words in (
        *("Digits", "First sentence.", "Second sentence.", "It is private.", "exact, not released"),
        *("DP-FedC, dpfedc 1.2.3", "dpfedc run --seed 7", "pooled data, 0.550"),
        *("from 10.0 in round 2 to 1.67 in round 7", "mean (1), factorisation (2 to 7)"),
        *("privacy.epsilon", "Not protected: the rest.", "What each stage cost"),
    ):
        assert words in page.text
    assert page.text.index("It is private.") < page.text.index("12,345")
    # Nothing is loaded from elsewhere.
    assert not any(word in page.source for word in ("http", "url(", "@import", "<script"))


def test_page_escapes_every_text(tmp_path):
    exact = {"objective": 1.0}
    rounds = [RoundRecord(stage, 1, 1, 1, 0.1, diagnostics=exact) for stage in (EVIL, "b")]
    settings = {EVIL: EVIL, "list": [EVIL], "nested": {EVIL: 1}}
    content = ReportContent(
        title=EVIL,
        record=RunRecord(EVIL, EVIL, settings, tuple(rounds), (EVIL,)),
        summary=[EVIL],
        privacy=[EVIL, f"{EVIL}: {EVIL}", f"a: {EVIL}"],
        stages=Table(EVIL, (EVIL, EVIL), [(EVIL, EVIL)]),
        scores=Table(EVIL, (EVIL, EVIL, EVIL), [(EVIL, EVIL, EVIL)]),
        centers=np.eye(2),
        feature_names=[EVIL, EVIL],
        sizes=np.ones((1, 2)),
        site_names=[EVIL],
        how_made=EVIL,
    )
    page = Page(write_report(tmp_path, content))
    assert not page.all("script")
    # In title and h1, method, version, stamp, summary, 4 in privacy, 5 in its table, caption,
    # 3 heads, 3 cells, stage, 3 settings and the command. The list shows it as JSON, with another
    # quotation mark.
    assert page.text.count(EVIL) == 27
    assert "alert('x')" not in page.source  # the quotation marks are escaped, too


def test_what_a_promise_does_not_cover_stands_out(tmp_path):
    content = full_content(
        privacy=["Protected: every record.", "Not protected: groups.", "Note: it is simulated."]
    )
    source = Page(write_report(tmp_path, content)).source
    assert "<p><strong>Protected:</strong> every record.</p>" in source
    assert '<p class="open"><strong>Not protected:</strong> groups.</p>' in source
    assert '<p class="open"><strong>Note:</strong> it is simulated.</p>' in source
    inside = '<tr><th scope="row">mean: the middle</th><td>1</td></tr>'
    assert source.index("it is simulated") < source.index(inside) < source.index("<h2>Results")
    bare = Page(write_report(tmp_path, full_content(stages=None)))
    assert "What each stage cost" not in bare.text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.489, "0.4890"),
        (123.44, "123.4"),
        (999.97, "1000"),
        (1234567.8, "1,234,568"),
        (np.int64(12345), "12,345"),
        (np.float32(0.5), "0.5000"),
        (1e-5, "1e-05"),
        (-3.14159, "-3.142"),
        (0, "0"),
        (None, "\N{EN DASH}"),
        (float("nan"), "\N{EN DASH}"),
        ("0.5 (at most)", "0.5 (at most)"),
    ],
)
def test_numbers_are_shown_in_four_figures(tmp_path, value, shown):
    content = ReportContent("t", RunRecord("m", "v", {}), scores=scores(("metric", value, "x")))
    page = Page(write_report(tmp_path, content))
    assert f"<td>{shown}</td><td>x</td>" in page.source


def test_settings_are_shown_exactly(tmp_path):
    settings = {"a": 0.1 + 0.2, "b": None, "c": True, "d": {"e": [1, 2], "f": {}}, "g": Path("x")}
    content = ReportContent("t", RunRecord("m", "v", settings))
    source = Page(write_report(tmp_path, content)).source
    rows = [("a", "0.30000000000000004"), ("b", "none"), ("c", "true"), ("d.e", "[1, 2]")]
    for name, value in [*rows, ("d.f", "{}"), ("g", "&#34;x&#34;")]:
        assert f'<th scope="row">{name}</th><td>{value}</td>' in source


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"record": run_record(names=())}, ["centres", "sizes"]),
        ({"record": run_record(names=("objective",))}, ["objective", "centres", "sizes"]),
        ({"record": run_record(names=("accuracy",)), "centers": None}, ["accuracy", "sizes"]),
        ({"record": RunRecord("m", "v", {}), "centers": None, "sizes": None}, []),
    ],
)
def test_no_figure_without_data(tmp_path, changes, expected):
    path = write_report(tmp_path, full_content(**changes))
    page = Page(path)
    assert [image["src"] for image in page.all("img")] == [f"{name}.png" for name in expected]
    assert sorted(p.stem for p in tmp_path.glob("*.png")) == sorted(expected)
    assert ("Figures" in page.text) == bool(expected)


def test_values_that_are_not_finite_are_left_out(tmp_path):
    values = [np.nan, 3.0, 2.0, np.inf]
    rounds = tuple(
        RoundRecord("fit", t, 1, 1, 0.1, diagnostics={"objective": v}) for t, v in enumerate(values)
    )
    page = Page(write_report(tmp_path, ReportContent("t", RunRecord("m", "v", {}, rounds))))
    assert "from 3.00 in round 2 to 2.00 in round 3" in page.text
    record = RunRecord("m", "v", {}, rounds[:1])
    assert not Page(write_report(tmp_path, ReportContent("t", record))).all("img")


@pytest.mark.parametrize(
    "changes",
    [
        {"image_shape": (5, 5)},
        {"site_names": ["one"]},
        {"sizes": [[-1, 2, 3]], "site_names": None},
        {"centers": np.full((3, 12), np.nan)},
        {"reference_accuracy": float("inf")},
        {"how_made": "\ud800"},  # the last thing made: it cannot be encoded
    ],
)
def test_nothing_is_written_on_failure(tmp_path, changes):
    with pytest.raises(ValueError, match=r"must|encode"):
        write_report(tmp_path / "folder", full_content(**changes))
    assert not list(tmp_path.iterdir())


def test_a_failing_disk_leaves_the_earlier_report_as_it_was(tmp_path, monkeypatch):
    write_report(tmp_path, full_content())
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    real, written = os.fsync, []

    def fsync(place):
        written.append(place)
        if len(written) == 3:
            raise OSError("no space left")
        real(place)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="no space left"):
        write_report(tmp_path, full_content(title="other", sizes=None, site_names=None))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_pictures_of_an_earlier_report_do_not_stay(tmp_path):
    (tmp_path / "sizes.png").write_bytes(b"not ours")
    (tmp_path / "notes.txt").write_text("kept")
    bare = full_content(sizes=None, site_names=None)
    write_report(tmp_path, bare)  # no report here before: the file is somebody else's
    assert (tmp_path / "sizes.png").read_bytes() == b"not ours"
    write_report(tmp_path, full_content())
    write_report(tmp_path, bare)
    assert not (tmp_path / "sizes.png").exists()
    assert (tmp_path / "notes.txt").read_text() == "kept"


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "taken").write_text("x")
    with pytest.raises(InvalidInput, match=r"folder must be a directory, got the file .*taken"):
        write_report(tmp_path / "taken", full_content())

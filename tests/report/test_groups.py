"""The clusters on a page: sizes, what sets them apart, and colours that noise does not explain."""

import numpy as np
import pytest

from dpfedc.report.groups import MAX_ROWS, groups_of
from support.summaries import CENTERS, bent_model, plain_model, table_model


def shown(model, shape=None):
    return groups_of(model, model.summary(), shape)


def rows(groups):
    return {row.name: row for row in groups.rows}


def test_a_card_says_how_many_and_who():
    groups = shown(table_model().named(1, "old"))
    young, old = groups.cards
    assert (young.title, young.size, young.share, young.width) == (
        *("Cluster 0", "300 ± 10 persons", "75 %", 75.0),
    )
    assert old.title == "Cluster 1: old"
    assert [(f.column, f.here, f.overall, f.above) for f in old.facts] == [
        ("smoker = yes", "70.0 ± 2.0 %", "25.0 %", True),
        ("age", "70.0 ± 1.0", "40.0", True),
    ]
    assert [fact.above for fact in young.facts] == [True, False]  # common, and lower
    assert (old.more, old.note, old.picture) == (0, "", "")
    assert groups.heads == ("Cluster 0", "old")


def test_a_map_shows_what_clusters_are_made_of():
    groups = shown(bent_model().named(0, "bow"))
    assert [card.made_of for card in groups.cards] == [
        "made of 4 prototypes",
        "made of one prototype",
    ]
    drawn = groups.map
    assert [dot.title for dot in drawn.dots] == ["Cluster 0: bow"] * 4 + ["Cluster 1"]
    assert len({dot.color for dot in drawn.dots}) == 2
    # Two columns are drawn as they are, in true proportion, north up.
    (left, top, _, right, middle) = drawn.dots
    assert right.x - left.x == pytest.approx(2 * (left.y - top.y), abs=0.21)
    assert (left.y, middle.x) == (right.y, (left.x + right.x) / 2)
    assert (drawn.across, drawn.upward) == ("east", "north")
    # Each is joined to the next along the bow, and none to the one in the middle.
    places = {(dot.x, dot.y): i for i, dot in enumerate(drawn.dots)}
    ends = [{places[a, b], places[c, d]} for a, b, c, d, _ in drawn.links]
    assert sorted(map(sorted, ends)) == [[0, 1], [1, 2], [2, 3]]
    assert groups.choice.axis == "number of clusters"
    assert any("need not be typical" in note for note in groups.notes)
    assert shown(plain_model(CENTERS)).map is None


@pytest.mark.parametrize("m", [1, 3])
def test_a_map_of_other_columns_is_seen_from_its_widest_side(m):
    rng = np.random.default_rng(0)
    places = rng.normal(size=(4, m)) * [9.0, 3.0, 0.1][:m]
    model = plain_model(
        places[::2], prototypes=places, groups=np.array([0.0, 0, 1, 1]), by_prototype=True
    )
    drawn = shown(model).map
    wide = np.ptp([dot.x for dot in drawn.dots])
    assert wide == pytest.approx(352) if m > 1 else wide > 0
    assert ("100 % of their squared distances" in drawn.caption) == (m > 1)
    assert "far apart" not in drawn.caption  # nothing is hidden


def test_prototypes_of_pictures_are_pictures():
    groups = shown(bent_model(), shape=(1, 2))
    assert groups.map is None
    assert [len(card.prototypes) for card in groups.cards] == [4, 1]
    assert all(p.startswith("data:image/png") for card in groups.cards for p in card.prototypes)
    # The centre of the second cluster is its one prototype, on the same scale.
    assert groups.cards[1].prototypes == (groups.cards[1].picture,)


def test_only_what_noise_does_not_explain_is_coloured():
    table = rows(shown(table_model()))
    assert [cell.depth > 0 for cell in table["age"].cells] == [False, True]
    assert [cell.error for cell in table["age"].cells] == ["± 1.0", "± 1.0"]
    assert table["yes"].inner
    assert table["smoker"].cells == ()
    assert "I" not in table
    assert table["III, II, I: no difference beyond noise"].cells == ()
    assert "other" not in table
    assert all(not cell.depth for cell in table["missing"].cells)
    noisy = rows(shown(table_model(error=2.0)))
    assert not any(cell.depth for row in noisy.values() for cell in row.cells)


def test_colours_are_not_stretched_to_fill_each_row():
    """The share that differs little is pale beside the share that differs much."""
    centers = CENTERS.copy()
    centers[:, 5:] = [[0.2, 0.3, 0.5, 0.0], [0.25, 0.3, 0.45, 0.0]]
    table = rows(shown(table_model(centers=centers, error=0.001)))
    little, much = (max(abs(cell.depth) for cell in table[name].cells) for name in ("I", "yes"))
    assert 0 < little < 0.2 * much
    # Two clusters of one size lie one spread from their mean, whatever the column's unit.
    model = plain_model(np.array([[0.0, 0], [1, 1e6]]), error=1e-6, sizes=np.array([10.0, 10]))
    for row in rows(shown(model)).values():
        assert [cell.depth for cell in row.cells] == [-0.5, 0.5]


def test_a_cluster_that_is_nothing_but_noise_is_not_described():
    errors = np.full(CENTERS.shape, 0.01)
    errors[1] = np.inf
    groups = shown(table_model(center_errors=errors))
    assert not groups.cards[1].facts
    assert "too few persons" in groups.cards[1].note
    assert {row.cells[1].value for row in groups.rows if row.cells} == {"\N{EN DASH}"}


def test_columns_that_the_run_left_out_are_named():
    factor = np.ones(9)
    factor[:2] = 0
    groups = shown(table_model(factor=factor))
    assert groups.left_out == ("age",)
    assert "age" not in rows(groups)


def test_of_many_columns_those_are_shown_that_tell_clusters_apart():
    centers = np.zeros((8, 60))
    centers[0, 20:] = 1.0 + np.arange(40)
    groups = shown(plain_model(centers, error=0.01))
    assert [row.name for row in groups.rows] == [f"x{f}" for f in range(20, 60)]
    assert (len(groups.rows), groups.n_hidden) == (MAX_ROWS, 20)
    assert len(groups.cards[0].facts) == 2  # of many clusters less is said
    assert groups.cards[0].more == 38


@pytest.mark.parametrize(
    ("error", "bars", "noise"),
    [
        (0.01, ", with 95 % error bars", "; nothing where noise explains it"),
        (0.0, "", ""),
        (None, "", ", be it by noise or not"),
    ],
)
def test_how_sure_differences_are(error, bars, noise):
    groups = shown(plain_model(np.array([[1.0, 3021.0], [2.0, 3.0]]), error=error))
    assert (groups.bars_words, groups.noise_words) == (bars, noise)
    assert groups.cards[0].size == "size not known"
    assert [cell.depth for cell in rows(groups)["x0"].cells] == [-0.5, 0.5]
    assert rows(groups)["x1"].cells[0].value.startswith("3,021")


def test_pictures_take_the_place_of_columns():
    groups = shown(plain_model(np.eye(3, 12), sizes=np.array([5.0, 1.0, -2.0])), (3, 4))
    assert all(card.picture.startswith("data:image/png;base64,") for card in groups.cards)
    assert not groups.rows
    assert not any(card.facts or card.note or card.more for card in groups.cards)
    assert [card.size for card in groups.cards] == ["5 records", "1 record", "0 records"]

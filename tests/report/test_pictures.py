"""Centres as pictures: pixels on one scale, and a file that holds nothing else."""

import numpy as np
import pytest

from dpfedc.errors import InvalidInput
from dpfedc.report.pictures import center_pictures
from support.pages import chunks, pixels


def test_grey_pictures_share_one_scale():
    dark, grey, light = center_pictures(np.outer([-2.0, 0.0, 2.0], np.ones(12)), (3, 4))
    assert [pixels(png).shape for png in (dark, grey, light)] == [(3, 4, 3)] * 3
    assert [pixels(png).mean() for png in (dark, grey, light)] == [0, 127, 255]
    ramp = pixels(center_pictures(np.arange(12.0)[None], (3, 4))[0])[:, :, 0]
    assert (np.diff(ramp.ravel()) > 0).all()


def test_colours_go_from_0_to_the_largest_value():
    red, none = (pixels(png) for png in center_pictures([[2.0, 0, 0] * 4, [-1.0] * 12], (2, 2, 3)))
    assert (red == [255, 0, 0]).all()
    assert (none == 0).all()
    assert (pixels(center_pictures(np.zeros((1, 4)), (2, 2))[0]) == 0).all()


def test_a_picture_has_no_words_in_it():
    for shape in ((3, 4), (2, 2, 3)):
        assert chunks(center_pictures(np.ones((1, 12)), shape)[0]) == ["IHDR", "IDAT", "IEND"]


@pytest.mark.parametrize("shape", [(5, 5), (12,), (3, 2, 2), (3, 4, 1)])
def test_another_shape_is_named(shape):
    with pytest.raises(InvalidInput, match=r"image_shape must be .* of 12 values, got \("):
        center_pictures(np.ones((1, 12)), shape)


def test_centres_that_are_not_finite_are_refused():
    with pytest.raises(InvalidInput, match="must be finite"):
        center_pictures([[1.0, np.nan]], (1, 2))

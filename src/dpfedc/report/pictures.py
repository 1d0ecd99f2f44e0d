"""Centres as small pictures in a page: grey or coloured pixels, and nothing else in the file."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput


def inlined(png: bytes) -> str:
    """Return a PNG file as an address that a page needs no other file for."""
    return f"data:image/png;base64,{b64encode(png).decode()}"


def center_pictures(centers: npt.ArrayLike, shape: Sequence[int]) -> list[bytes]:
    """Return each centre as a PNG file, all on one scale.

    With a shape (height, width) it is grey, from the least value of all to the largest; with
    (height, width, 3) it has colours, from 0 to the largest value.
    """
    matrix, shape = np.asarray(centers, dtype=np.float64), tuple(shape)
    n = matrix.shape[1]
    if len(shape) not in {2, 3} or shape[2:] not in {(), (3,)} or np.prod(shape) != n:
        raise InvalidInput(
            f"image_shape must be (height, width) or (height, width, 3) of {n} values, got {shape}"
        )
    if not np.isfinite(matrix).all():
        raise InvalidInput("centres must be finite to be drawn as pictures")
    low, high = (matrix.min() if len(shape) == 2 else 0.0), matrix.max()
    scaled = np.clip((matrix - low) / (high - low if high > low else 1.0), 0, 1)
    return [_png(pixels.reshape(shape)) for pixels in (255 * scaled).astype(np.uint8)]


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Return a PNG file of the pixels, with no text in it."""
    from PIL import Image  # comes with matplotlib

    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()

"""Named data sets for experiments: scikit-learn's digits, MNIST, and TCGA microRNA.

Files are looked for in the folder named by the environment variable `DPFEDC_DATA`, then in the
user's cache folder. Every file is checked against its SHA-256 sum before it is parsed.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import inspect
import io
import math
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.settings import require_integer

MNIST_IMAGES = "mnist/train-images-idx3-ubyte.gz"
MNIST_LABELS = "mnist/train-labels-idx1-ubyte.gz"
TCGA_MIRNA = "tcga_mirna_20types.npz"

CHECKSUMS = {
    MNIST_IMAGES: "db8f937d487057fb14a9f0fbe97f0bc8d311ab41b750d41e1ff37c43b9e55e19",
    MNIST_LABELS: "51fc562b6747b666fbf6e84ce29d43c3cb5f9c388c664d43b33f02095313405a",
    TCGA_MIRNA: "fc88812dc5fa4e2bd84b95e2fa31f53cbb9b21b5dbb03132a796711a901bf4af",
}

# Records, pixel sum and records per digit of the training images: they do not depend on the order
# of the records, nor on the file format of the source.
MNIST_TOTALS = (
    60_000,
    1_567_298_545,
    (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
)

# The third byte of an IDX file names the type of its entries; all are big-endian.
_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Records as rows (n x m, float32), with labels where they are known.

    `y` numbers the known groups; `image_shape` is (height, width) where a record is an image.
    """

    name: str
    X: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64] | None
    feature_names: tuple[str, ...]
    image_shape: tuple[int, int] | None


def load(name: str, **options: Any) -> Dataset:
    """Return the data set called `name`: "digits", "mnist" or "tcga-mirna".

    `options` go to its loader: `n_records` and `seed` for the two large sets.
    """
    loader = LOADERS.get(name)
    if loader is None:
        raise InvalidInput(f"data set must be one of {', '.join(LOADERS)}; got {name!r}")
    known = inspect.signature(loader).parameters
    for option in options:
        if option not in known:
            accepted = ", ".join(known) or "none"
            raise InvalidInput(f"data set {name} has no option {option!r}; it has: {accepted}")
    return loader(**options)


def digits() -> Dataset:
    """Return scikit-learn's bundled digits: 1,797 images of 8 x 8 pixels, in [0, 1]."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    X = (bunch.data / 16.0).astype(np.float32)
    return _images("digits", X, bunch.target.astype(np.int64), (8, 8))


def mnist(n_records: int | None = None, *, seed: int = 0) -> Dataset:
    """Return the MNIST training images: 60,000 of 28 x 28 pixels, in [0, 1].

    With `n_records`, a random subset without replacement, drawn from `default_rng(seed)`.
    The set is fetched from OpenML when its two files are in none of the folders.
    """
    paths = [_found(MNIST_IMAGES), _found(MNIST_LABELS)]
    if paths[0] is None or paths[1] is None:
        pixels, y = _fetched_mnist()
    else:
        images = idx_file(paths[0], sha256=CHECKSUMS[MNIST_IMAGES])
        y = idx_file(paths[1], sha256=CHECKSUMS[MNIST_LABELS])
        pixels = images.reshape(len(images), -1)
    rows = _rows(len(pixels), n_records, seed)
    X = pixels[rows].astype(np.float32) / np.float32(255)
    return _images("mnist", X, y[rows].astype(np.int64), (28, 28))


def tcga_mirna(n_records: int | None = None, *, seed: int = 0) -> Dataset:
    """Return TCGA microRNA expression: 7,373 tumours x 1,046 microRNAs, 20 cancer types.

    Values are log2(reads per million + 1). With `n_records`, a random subset without
    replacement, drawn from `default_rng(seed)`. The file is local only: nothing is fetched.
    """
    path = _found(TCGA_MIRNA)
    if path is None:
        raise DataUnavailable(f"tcga-mirna is a local file: {_where_to_put([TCGA_MIRNA])}")
    content = _verified_bytes(path, CHECKSUMS[TCGA_MIRNA])
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        X, y, features = arrays["X"], arrays["y"], arrays["feature"]
    rows = _rows(len(X), n_records, seed)
    return Dataset(
        name="tcga-mirna",
        X=X[rows].astype(np.float32),
        y=y[rows].astype(np.int64),
        feature_names=tuple(features.tolist()),
        image_shape=None,
    )


LOADERS: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "mnist": mnist,
    "tcga-mirna": tcga_mirna,
}


def idx_file(path: Path, *, sha256: str | None = None) -> npt.NDArray[Any]:
    """Return the array of a gzipped IDX file, after checking its sum where one is given."""
    content = _verified_bytes(path, sha256)
    try:
        content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataUnavailable(f"{path} must be a complete gzip file, got: {error}") from error
    return idx_array(content, name=str(path))


def idx_array(data: bytes, *, name: str = "IDX data") -> npt.NDArray[Any]:
    """Return the array in `data`, which is in the IDX format.

    IDX is two zero bytes, a type byte, a byte with the number of axes d, d big-endian 32-bit
    lengths, and the entries in row-major order. `name` stands for the data in error messages.
    """
    magic = data[:4]
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _IDX_TYPES or magic[3] > 32:
        raise DataUnavailable(
            f"{name} must start with an IDX magic number such as 00000803, "
            f"got {magic.hex() or 'nothing'}"
        )
    dtype, n_axes = np.dtype(_IDX_TYPES[magic[2]]), magic[3]
    start = 4 + 4 * n_axes
    if len(data) < start:
        raise DataUnavailable(f"{name} must have a header of {start} bytes, got {len(data)} bytes")
    shape = struct.unpack(f">{n_axes}I", data[4:start])
    expected = start + math.prod(shape) * dtype.itemsize
    if 0 in shape:
        raise DataUnavailable(f"{name} must have lengths >= 1, got shape {shape}")
    if len(data) != expected:
        raise DataUnavailable(
            f"{name} must have {expected} bytes for shape {shape}, got {len(data)} bytes"
        )
    entries = np.frombuffer(data, dtype=dtype, offset=start).reshape(shape)
    return entries.astype(dtype.newbyteorder("="))


def _images(
    name: str, X: npt.NDArray[np.float32], y: npt.NDArray[np.int64], shape: tuple[int, int]
) -> Dataset:
    """Return a data set of images of the ten digits."""
    height, width = shape
    pixels = tuple(f"pixel_{row}_{column}" for row in range(height) for column in range(width))
    return Dataset(name, X, y, pixels, shape)


def _rows(n_available: int, n_records: int | None, seed: int) -> npt.NDArray[np.int64]:
    """Return the rows to keep: all in order, or a random subset of `n_records`."""
    if n_records is None:
        return np.arange(n_available)
    n = require_integer("n_records", n_records, least=1, most=n_available)
    rng = np.random.default_rng(require_integer("seed", seed, least=0))
    return rng.choice(n_available, size=n, replace=False)


def _folders() -> list[Path]:
    """Return the folders that may hold data files, in the order they are looked at."""
    named = os.environ.get("DPFEDC_DATA")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpfedc"
    return [Path(named).expanduser(), cache] if named else [cache]


def _found(relative: str) -> Path | None:
    """Return the first existing file at `relative`, or at its bare name, in the folders."""
    for folder in _folders():
        for path in (folder / relative, folder / Path(relative).name):
            if path.is_file():
                return path
    return None


def _where_to_put(relatives: list[str]) -> str:
    """Return the sentence that tells the user which files to put where."""
    files = " and ".join(relatives)
    *named, cache = _folders()
    first = f"{named[0]} (DPFEDC_DATA)" if named else "the folder named by DPFEDC_DATA (not set)"
    return f"put {files} into {first} or into {cache}"


def _verified_bytes(path: Path, sha256: str | None) -> bytes:
    """Return the bytes of the file, whose sum must be `sha256` where one is given."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataUnavailable(f"{path} cannot be read: {error.strerror}") from error
    actual = hashlib.sha256(content).hexdigest()
    if sha256 is not None and actual != sha256:
        raise DataUnavailable(
            f"{path} is damaged or another file: SHA-256 must be {sha256}, got {actual}"
        )
    return content


def _fetched_mnist() -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return MNIST's training pixels and labels from OpenML (kept by scikit-learn's own cache)."""
    from sklearn.datasets import fetch_openml

    # The fast parser needs pandas, which is not one of our dependencies.
    parser = "pandas" if importlib.util.find_spec("pandas") else "liac-arff"
    try:
        bunch = fetch_openml("mnist_784", version=1, as_frame=False, parser=parser, n_retries=1)
        pixels = np.asarray(bunch.data[:60_000], dtype=np.float64)
        y = np.asarray(bunch.target[:60_000]).astype(np.int64)
        totals = (len(pixels), int(pixels.sum()), tuple(np.bincount(y, minlength=10).tolist()))
    except Exception as error:  # network, cache, parser: whatever it is, the way out is the same
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataUnavailable(
            f"mnist is not here and could not be fetched from OpenML ({reason}): "
            f"{_where_to_put([MNIST_IMAGES, MNIST_LABELS])}"
        ) from error
    if totals != MNIST_TOTALS:
        raise DataUnavailable(
            f"mnist from OpenML must have (records, pixel sum, records per digit) {MNIST_TOTALS}, "
            f"got {totals}"
        )
    return pixels, y

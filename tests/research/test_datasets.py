"""Named data sets: where files are found, how they are checked, and what is said without them."""

import gzip
import hashlib
import importlib
import io
import os
import struct
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.datasets
from hypothesis import given
from hypothesis import strategies as st

from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.research.datasets import (
    MNIST_IMAGES,
    MNIST_LABELS,
    TCGA_MIRNA,
    digits,
    idx_array,
    idx_file,
    load,
    mnist,
    tcga_mirna,
)

# The package re-exports the function `load`, which hides the module of that name.
module = importlib.import_module("dpfedc.research.datasets")

REAL_DATA = Path(os.environ.get("DPFEDC_DATA", "/nonexistent"))
CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}

PIXELS = np.random.default_rng(5).integers(0, 256, size=(30, 28, 28), dtype=np.uint8)
LABELS = np.arange(30, dtype=np.uint8) % 10


def encoded(array):
    """Return the IDX bytes of an array, entry by entry."""
    code = CODES[array.dtype.str[1:]]
    head = bytes([0, 0, code, array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No data folder, an empty cache, no network: a test that needs one makes it."""

    def no_network(*args, **options):
        raise OSError("no route\nto host")

    monkeypatch.delenv("DPFEDC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", no_network)


@pytest.fixture
def small_mnist(monkeypatch):
    """Let the sums of a small look-alike of MNIST pass, and return a function that places it."""

    def place(folder, images=MNIST_IMAGES, labels=MNIST_LABELS):
        for name, path, array in (
            (MNIST_IMAGES, images, PIXELS),
            (MNIST_LABELS, labels, LABELS),
        ):
            content = gzip.compress(encoded(array), mtime=0)
            monkeypatch.setitem(module.CHECKSUMS, name, put(Path(folder) / path, content))

    return place


@given(
    kind=st.sampled_from(sorted(CODES)),
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    seed=st.integers(0, 100),
)
def test_idx_round_trip(kind, shape, seed):
    array = np.random.default_rng(seed).integers(-100, 100, size=shape).astype(kind)
    decoded = idx_array(encoded(array))
    assert decoded.dtype == array.dtype
    assert decoded.dtype.isnative
    assert np.array_equal(decoded, array)


def test_idx_by_hand():
    data = bytes([0, 0, 0x0B, 2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 255, 255])
    assert idx_array(data).tolist() == [[256, -1]]


@given(content=st.binary(max_size=40), prefix=st.sampled_from([b"", b"\0\0\x08", b"\0\0\x08\x01"]))
def test_idx_refuses_or_reads_any_bytes(content, prefix):
    try:
        array = idx_array(prefix + content)
    except DataUnavailable:
        return
    assert encoded(array) == prefix + content


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "magic number such as 00000803, got nothing"),
        (b"\0\0\x08", "got 000008"),
        (b"\1\0\x08\1", "got 01000801"),
        (b"\0\0\x07\1", "got 00000701"),
        (b"\0\0\x08\xff" + b"\0\0\0\1" * 255 + b"x", "got 000008ff"),
        (b"\0\0\x08\2\0\0\0\1", "header of 12 bytes, got 8 bytes"),
        (b"\0\0\x08\1\0\0\0\3ab", r"have 11 bytes for shape \(3,\), got 10 bytes"),
        (b"\0\0\x08\1\0\0\0\1ab", r"have 9 bytes for shape \(1,\), got 10 bytes"),
        (b"\0\0\x08\1\0\0\0\0", r"lengths >= 1, got shape \(0,\)"),
    ],
)
def test_idx_errors(data, message):
    with pytest.raises(DataUnavailable, match=f"^some file must (.* )?{message}"):
        idx_array(data, name="some file")


def test_idx_file_refuses_damage(tmp_path):
    path = tmp_path / "a.gz"
    whole = gzip.compress(encoded(PIXELS), mtime=0)
    right = put(path, whole)
    assert np.array_equal(idx_file(path), PIXELS)
    assert np.array_equal(idx_file(path, sha256=right), PIXELS)
    # The last one but eight belongs to the check sum inside gzip, byte 50 to the packed data.
    flipped = [bytes([*whole[:j], whole[j] ^ 255, *whole[j + 1 :]]) for j in (0, 50, -8)]
    for content in (whole[:-1], whole[: len(whole) // 2], whole[:5], b"", *flipped):
        wrong = put(path, content)
        with pytest.raises(DataUnavailable, match=r"a\.gz must ") as caught:
            idx_file(path)
        assert "\n" not in str(caught.value)
        with pytest.raises(DataUnavailable, match=f"a.gz .*must be {right}, got {wrong}"):
            idx_file(path, sha256=right)
    with pytest.raises(DataUnavailable, match=r"b\.gz cannot be read: No such file"):
        idx_file(tmp_path / "b.gz")


@pytest.mark.parametrize("folder", ["named", "cache"])
@pytest.mark.parametrize("layout", [Path, lambda relative: Path(relative).name])
def test_mnist_is_found_in_both_folders_and_layouts(
    folder, layout, small_mnist, tmp_path, monkeypatch
):
    monkeypatch.setenv("DPFEDC_DATA", str(tmp_path / "named"))
    place = tmp_path / "named" if folder == "named" else tmp_path / "cache" / "dpfedc"
    small_mnist(place, layout(MNIST_IMAGES), layout(MNIST_LABELS))
    data = mnist()
    assert data.name == "mnist"
    assert data.X.dtype == np.float32
    assert np.array_equal(data.X, PIXELS.reshape(30, 784) / np.float32(255))
    assert data.y.dtype == np.int64
    assert data.y.tolist() == LABELS.tolist()
    assert data.image_shape == (28, 28)
    assert (data.feature_names[0], data.feature_names[29]) == ("pixel_0_0", "pixel_1_1")


def test_the_cache_is_in_the_home_folder_by_default(small_mnist, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    small_mnist(tmp_path / ".cache" / "dpfedc")
    assert len(mnist().X) == 30


def test_a_damaged_file_in_the_named_folder_is_not_passed_over(small_mnist, tmp_path, monkeypatch):
    small_mnist(tmp_path / "cache" / "dpfedc")
    monkeypatch.setenv("DPFEDC_DATA", str(tmp_path / "named"))
    put(tmp_path / "named" / MNIST_IMAGES, b"something else")
    with pytest.raises(DataUnavailable, match=r"named.*SHA-256 must be .* got "):
        mnist()


def test_a_subset_is_drawn_without_replacement(small_mnist, tmp_path):
    small_mnist(tmp_path / "cache" / "dpfedc")
    rows = np.random.default_rng(4).choice(30, size=12, replace=False)
    data = mnist(12, seed=4)
    assert np.array_equal(data.X, mnist().X[rows])
    assert data.y.tolist() == LABELS[rows].tolist()
    assert len({record.tobytes() for record in data.X}) == 12
    assert not np.array_equal(data.y, mnist(12, seed=5).y)
    assert len(mnist(30).X) == 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_records": 31}, "n_records must be from 1 to 30, got 31"),
        ({"n_records": 0}, "n_records must be from 1 to 30, got 0"),
        ({"n_records": 2.0}, "n_records must be a whole number .*got 2.0"),
        ({"n_records": 2, "seed": -1}, "seed must be >= 0, got -1"),
    ],
)
def test_a_subset_that_cannot_be_drawn(options, message, small_mnist, tmp_path):
    small_mnist(tmp_path / "cache" / "dpfedc")
    with pytest.raises(InvalidInput, match=message):
        mnist(**options)


@pytest.mark.parametrize("has_pandas", [True, False])
def test_mnist_is_fetched_when_no_file_is_here(has_pandas, monkeypatch):
    asked = []

    def fetch(name, **options):
        asked.append((name, options))
        extra = np.full((2, 784), 7.0)  # the test images behind the training images
        pixels = np.vstack([PIXELS.reshape(30, 784).astype(np.float64), extra])
        return SimpleNamespace(data=pixels, target=np.asarray([*LABELS, 0, 0]).astype(str))

    # The real set has 60,000 training images; the look-alike is checked by its own totals.
    monkeypatch.setattr(
        module,
        "MNIST_TOTALS",
        (32, int(PIXELS.sum()) + 2 * 784 * 7, (5, 3, 3, 3, 3, 3, 3, 3, 3, 3)),
    )
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: has_pandas or None)
    data = mnist()
    assert np.array_equal(data.X[:30], PIXELS.reshape(30, 784) / np.float32(255))
    assert data.y.tolist() == [*LABELS.tolist(), 0, 0]
    [(name, options)] = asked
    assert (name, options["version"], options["as_frame"]) == ("mnist_784", 1, False)
    assert options["parser"] == ("pandas" if has_pandas else "liac-arff")

    monkeypatch.setattr(module, "MNIST_TOTALS", (60_000, 1, (6000,) * 10))
    with pytest.raises(DataUnavailable, match=r"from OpenML must have .*60000, 1.*, got \(32, "):
        mnist()


def test_only_the_training_part_of_openml_is_used(monkeypatch):
    n_train = np.asarray(module.MNIST_TOTALS[2])
    y = np.concatenate([np.repeat(np.arange(10), n_train), np.zeros(10_000, dtype=int)])
    pixels = np.zeros((70_000, 1))
    pixels[0] = module.MNIST_TOTALS[1]
    pixels[60_000:] = 9.0
    bunch = SimpleNamespace(data=pixels, target=y.astype(str))
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", lambda name, **options: bunch)
    data = mnist()
    assert np.bincount(data.y).tolist() == n_train.tolist()
    assert len(data.X) == 60_000


def test_without_mnist_the_message_says_which_file_to_put_where(tmp_path, monkeypatch):
    for named in (None, str(tmp_path / "named")):
        if named:
            monkeypatch.setenv("DPFEDC_DATA", named)
        with pytest.raises(DataUnavailable) as caught:
            mnist()
        message = str(caught.value)
        assert "\n" not in message
        for part in (
            "(no route to host)",
            MNIST_IMAGES,
            MNIST_LABELS,
            "DPFEDC_DATA",
            named or "",
            str(tmp_path / "cache" / "dpfedc"),
        ):
            assert part in message


def small_tcga():
    stream = io.BytesIO()
    np.savez_compressed(
        stream,
        X=np.arange(12, dtype=np.float32).reshape(4, 3),
        y=np.asarray([0, 1, 1, 0], dtype=np.int32),
        label_names=np.asarray(["BLCA", "BRCA"]),
        feature=np.asarray(["a", "b", "c"]),
        barcode=np.asarray([None] * 4),  # pickled: must never be read
    )
    return stream.getvalue()


def test_tcga_mirna(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDC_DATA", str(tmp_path))
    monkeypatch.setitem(module.CHECKSUMS, TCGA_MIRNA, put(tmp_path / TCGA_MIRNA, small_tcga()))
    data = tcga_mirna()
    assert data.X.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert data.X.dtype == np.float32
    assert data.y.dtype == np.int64
    assert data.y.tolist() == [0, 1, 1, 0]
    assert data.feature_names == ("a", "b", "c")
    assert data.image_shape is None
    rows = np.random.default_rng(9).choice(4, size=2, replace=False)
    assert np.array_equal(tcga_mirna(2, seed=9).X, data.X[rows])


def test_tcga_mirna_is_local_only(tmp_path):
    with pytest.raises(DataUnavailable, match=r"local file: put tcga_mirna_20types\.npz into "):
        tcga_mirna()
    wrong = put(tmp_path / "cache" / "dpfedc" / TCGA_MIRNA, small_tcga()[:-1])
    right = module.CHECKSUMS[TCGA_MIRNA]
    with pytest.raises(DataUnavailable, match=f"{TCGA_MIRNA} .*must be {right}, got {wrong}"):
        tcga_mirna()


def test_digits():
    data = digits()
    assert data.X.shape == (1797, 64)
    assert data.X.dtype == np.float32
    assert (data.X.min(), data.X.max()) == (0, 1)
    assert np.array_equal(data.X * 16, sklearn.datasets.load_digits().data)
    assert np.bincount(data.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (len(data.feature_names), data.image_shape) == (64, (8, 8))
    with pytest.raises(FrozenInstanceError):
        data.name = "other"


def test_load_goes_by_name(small_mnist, tmp_path):
    assert load("digits").name == "digits"
    small_mnist(tmp_path / "cache" / "dpfedc")
    assert np.array_equal(load("mnist", n_records=5, seed=3).X, mnist(5, seed=3).X)
    with pytest.raises(InvalidInput, match="one of digits, mnist, tcga-mirna; got 'iris'"):
        load("iris")
    with pytest.raises(InvalidInput, match="digits has no option 'n_records'; it has: none"):
        load("digits", n_records=5)
    with pytest.raises(InvalidInput, match="mnist has no option 'n'; it has: n_records, seed"):
        load("mnist", n=5)
    with pytest.raises(DataUnavailable, match="tcga-mirna"):
        load("tcga-mirna")


def test_importing_the_layer_imports_nothing_heavy():
    code = (
        "import sys, dpfedc.research.datasets\n"
        "print({'sklearn', 'pyarrow', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.skipif(not (REAL_DATA / MNIST_IMAGES).is_file(), reason="MNIST is not in DPFEDC_DATA")
def test_the_real_mnist(monkeypatch):
    monkeypatch.setenv("DPFEDC_DATA", str(REAL_DATA))
    data = mnist()
    pixel_sum = int(np.rint(data.X.astype(np.float64) * 255).sum())
    assert (len(data.X), pixel_sum, tuple(np.bincount(data.y))) == module.MNIST_TOTALS
    assert data.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert len(mnist(10_000).X) == 10_000


@pytest.mark.skipif(not (REAL_DATA / TCGA_MIRNA).is_file(), reason="TCGA is not in DPFEDC_DATA")
def test_the_real_tcga_mirna(monkeypatch):
    monkeypatch.setenv("DPFEDC_DATA", str(REAL_DATA))
    data = tcga_mirna(5314)
    assert data.X.shape == (5314, 1046)
    assert np.isfinite(data.X).all()
    assert len(data.feature_names) == 1046
    assert set(data.y.tolist()) == set(range(20))

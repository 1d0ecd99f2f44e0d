"""How records are dealt to simulated sites: one site id in 0..n_sites-1 per record.

Every function deals every record to exactly one site and leaves no site empty, or raises.
"""

from __future__ import annotations

import heapq
import warnings

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput
from dpfedc.kernels.segments import coded
from dpfedc.settings import require_integer, require_number

SiteIds = npt.NDArray[np.int64]


def iid(n_records: int, n_sites: int, *, rng: np.random.Generator) -> SiteIds:
    """Return a uniformly random deal with balanced sites: sizes differ by at most one."""
    n = require_integer("n_records", n_records, least=1)
    return rng.permutation(np.arange(n, dtype=np.int64) % _site_count(n_sites, n))


def label_shards(
    y: npt.ArrayLike, n_sites: int, labels_per_site: int = 2, *, rng: np.random.Generator
) -> SiteIds:
    """Return a deal in which a site holds records of at most `labels_per_site` labels.

    Each label's records are cut into shards of nearly equal size, at most one shard per site and
    at least one record per shard; shards of distinct labels are then dealt at random. Every site
    holds exactly `labels_per_site` labels when the labels have records enough for that, which is
    when the sum over labels of min(records of the label, n_sites) is at least
    n_sites * labels_per_site.
    """
    labels, sizes = _labels(y)
    n = _site_count(n_sites, len(labels))
    per_site = require_integer("labels_per_site", labels_per_site, least=1)
    if per_site > len(sizes):
        raise InvalidInput(
            f"labels_per_site must be <= the number of labels ({len(sizes)}), got {per_site}"
        )
    if n * per_site < len(sizes):
        raise InvalidInput(
            f"n_sites * labels_per_site must be >= the number of labels ({len(sizes)}), "
            f"got {n} * {per_site}"
        )
    n_shards = _shard_counts(sizes, n, n * per_site)
    holders = _shard_holders(n_shards, n, rng=rng)
    ids = np.empty(len(labels), dtype=np.int64)
    for label, sites in enumerate(holders):
        records = rng.permutation(np.flatnonzero(labels == label))
        for site, shard in zip(sites, np.array_split(records, len(sites)), strict=True):
            ids[shard] = site
    return ids


def kmeans_cells(X: npt.ArrayLike, n_sites: int, *, rng: np.random.Generator) -> SiteIds:
    """Return the cells of k-means with k = `n_sites`: similar records share a site."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    records = np.asarray(X)
    if records.ndim != 2 or records.dtype.kind not in "biuf":
        raise InvalidInput(
            f"X must be a numeric array of records as rows, got shape {records.shape} "
            f"and dtype {records.dtype}"
        )
    if not np.isfinite(records).all():
        bad = int(np.size(records) - np.isfinite(records).sum())
        raise InvalidInput(f"X must be finite, got {bad} values that are not")
    n = _site_count(n_sites, len(records))
    kmeans = KMeans(n_clusters=n, n_init=1, random_state=int(rng.integers(2**31)))
    with warnings.catch_warnings():
        # It warns of too few distinct records: the check below says so with numbers.
        warnings.simplefilter("ignore", ConvergenceWarning)
        ids: SiteIds = kmeans.fit_predict(records).astype(np.int64)
    n_cells = len(np.unique(ids))
    if n_cells < n:
        raise InvalidInput(
            f"k-means must find {n} non-empty cells for n_sites={n}, got {n_cells}: "
            f"X has too few distinct records"
        )
    return ids


def dirichlet(y: npt.ArrayLike, n_sites: int, alpha: float, *, rng: np.random.Generator) -> SiteIds:
    """Return a deal in which each label's records are spread by its own Dirichlet(alpha) draw.

    Small `alpha` gives sites of few labels, large `alpha` gives sites alike. A site that gets
    nothing is given one random record of the largest site, until no site is empty.
    """
    labels, sizes = _labels(y)
    n = _site_count(n_sites, len(labels))
    # Beyond this the generator overflows, and the proportions have long been equal.
    concentration = np.full(n, min(require_number("alpha", alpha, above=0), 1e100))
    ids = np.empty(len(labels), dtype=np.int64)
    for label, size in enumerate(sizes):
        ends = np.rint(np.cumsum(rng.dirichlet(concentration)) * size).astype(np.int64)
        ends[-1] = size
        records = rng.permutation(np.flatnonzero(labels == label))
        ids[records] = np.searchsorted(ends, np.arange(size), side="right")
    return _without_empty_sites(ids, n, rng=rng)


def _shard_counts(
    sizes: npt.NDArray[np.int64], n_sites: int, n_slots: int
) -> npt.NDArray[np.int64]:
    """Return shards per label: shares of `n_slots` by size, from 1 to min(size, n_sites) each.

    The next shard always goes to the label whose shards are largest.
    """
    counts = np.ones(len(sizes), dtype=np.int64)
    limits = np.minimum(sizes, n_sites)
    queue = [(-float(size), label) for label, size in enumerate(sizes) if limits[label] > 1]
    heapq.heapify(queue)
    for _ in range(min(n_slots, int(limits.sum())) - len(sizes)):
        _, label = heapq.heappop(queue)
        counts[label] += 1
        if counts[label] < limits[label]:
            heapq.heappush(queue, (-sizes[label] / counts[label], label))
    return counts


def _shard_holders(
    n_shards: npt.NDArray[np.int64], n_sites: int, *, rng: np.random.Generator
) -> list[list[int]]:
    """Return for every label the distinct sites that hold its shards; sites hold equally many.

    Site after site draws distinct labels, in proportion to the shards that are left. A label with
    as many shards left as there are sites left must be drawn. As no label starts with more shards
    than sites, and quotas differ by at most one, this never gets stuck and deals every shard.
    """
    left = n_shards.copy()
    total = int(left.sum())
    quotas = rng.permutation(total // n_sites + (np.arange(n_sites) < total % n_sites))
    holders: list[list[int]] = [[] for _ in n_shards]
    for site, quota in enumerate(quotas):
        forced = np.flatnonzero(left == n_sites - site)
        free = np.flatnonzero((left > 0) & (left < n_sites - site))
        n_free = quota - len(forced)
        drawn = (
            rng.choice(free, size=n_free, replace=False, p=left[free] / left[free].sum())
            if n_free
            else free[:0]
        )
        for label in (*forced, *drawn):
            left[label] -= 1
            holders[label].append(site)
    return holders


def _without_empty_sites(ids: SiteIds, n_sites: int, *, rng: np.random.Generator) -> SiteIds:
    """Return `ids` with one random record of the largest site moved to each empty site."""
    ids = ids.copy()
    sizes = np.bincount(ids, minlength=n_sites)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        ids[rng.choice(np.flatnonzero(ids == largest))] = empty
        sizes[largest] -= 1
        sizes[empty] += 1
    return ids


def _labels(y: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return labels as 0..C-1, one per record, and the number of records of each label."""
    labels, _ = coded("y", y)
    return labels, np.bincount(labels)


def _site_count(n_sites: int, n_records: int) -> int:
    """Return `n_sites` if every site can have a record."""
    n = require_integer("n_sites", n_sites, least=1)
    if n > n_records:
        raise InvalidInput(f"n_sites must be <= the number of records ({n_records}), got {n}")
    return n

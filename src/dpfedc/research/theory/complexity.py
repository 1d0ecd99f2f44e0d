"""Appendix E of the paper: operations per iteration, and what a round uploads.

Counts are the leading terms inside the paper's O(), with constant 1, so that methods can be
compared as the paper compares them. The two `*_step_operations` keep every term that the appendix
lists. m is the number of features, k of clusters, n_i of a site's records, n of all records, N of
sites, b of records in a mini-batch.
"""

from __future__ import annotations

import math

from dpfedc.research.theory.theorems import require_counts


def membership_step_operations(n_features: int, n_clusters: int, n_records: int) -> int:
    """Return the appendix's full count for one H step at a site.

    (m k^2 + k^2 n_i + k n_i) + (m k n_i + k n_i) + k^2 n_i + 2 k n_i: W'W, its product with H, W'X,
    the penalty, the rest. Order O((m + n_i) k^2 + m n_i k).
    """
    require_counts(n_features=n_features, n_clusters=n_clusters, n_records=n_records)
    m, k, n = n_features, n_clusters, n_records
    return (m * k**2 + k**2 * n + k * n) + (m * k * n + k * n) + k**2 * n + 2 * k * n


def centroid_step_operations(n_features: int, n_clusters: int, batch_size: int) -> int:
    """Return the appendix's full count for one mini-batch W step: 3 m k b + 3 m k, O(m k b)."""
    require_counts(n_features=n_features, n_clusters=n_clusters, batch_size=batch_size)
    return 3 * n_features * n_clusters * (batch_size + 1)


def client_operations(n_features: int, n_clusters: int, n_records: int) -> int:
    """Return (m + n_i) k^2 + m n_i k, the order of one DP-FedC iteration at one site.

    The H step sets the order, since a mini-batch is smaller than the site: b < n_i.
    """
    require_counts(n_features=n_features, n_clusters=n_clusters, n_records=n_records)
    m, k, n = n_features, n_clusters, n_records
    return (m + n) * k**2 + m * n * k


def all_clients_operations(n_features: int, n_clusters: int, n_records: int, n_sites: int) -> int:
    """Return (m N + n) k^2 + m n k, the order of one DP-FedC iteration at all sites together."""
    require_counts(
        n_features=n_features, n_clusters=n_clusters, n_records=n_records, n_sites=n_sites
    )
    m, k, n = n_features, n_clusters, n_records
    return (m * n_sites + n) * k**2 + m * n * k


def server_operations(n_features: int, n_clusters: int, n_sites: int) -> int:
    """Return m k N, the order of the server's average in DP-FedC (N the sites that upload)."""
    require_counts(n_features=n_features, n_clusters=n_clusters, n_sites=n_sites)
    return n_features * n_clusters * n_sites


def federated_kmeans_clients_operations(
    n_features: int, n_clusters: int, n_records: int, n_sites: int
) -> float:
    """Return m n k N + m n N (ln N)^2, the order the paper gives federated k-means at its clients.

    The paper leaves the base of the logarithm open; the natural one is used.
    """
    require_counts(
        n_features=n_features, n_clusters=n_clusters, n_records=n_records, n_sites=n_sites
    )
    return n_features * n_records * n_sites * (n_clusters + math.log(n_sites) ** 2)


def federated_kmeans_server_operations(n_features: int, n_clusters: int, n_records: int) -> int:
    """Return m n k, the order the paper gives federated k-means at its server."""
    require_counts(n_features=n_features, n_clusters=n_clusters, n_records=n_records)
    return n_features * n_records * n_clusters


def uploaded_floats(n_features: int, n_clusters: int, sites_per_round: int) -> int:
    """Return K k m, the numbers that all sites of one DP-FedC round upload: each its k centres.

    The count depends neither on the records nor on the local steps; H never leaves a site.
    """
    require_counts(n_features=n_features, n_clusters=n_clusters, sites_per_round=sites_per_round)
    return n_features * n_clusters * sites_per_round

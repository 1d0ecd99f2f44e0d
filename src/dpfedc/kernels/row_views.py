"""Rows that are used without being formed: one vector for every record.

Rows know their weighted sums, by one matrix product, and can form a few of themselves at a time.
The first is the fast way to a sum over records, the second the exact one; both are written here,
once for each kind of rows, so that no stage writes a sum twice.

`Standardized` rows are the records as stages see them: centred, rescaled, clipped to norm 1, with
a constant feature.

    x~_j = ( (x_j - center) / max(scale, |x_j - center|),  constant )

With a `longest` above 1 they are clipped to that norm instead. A scale of None leaves the records
as long as they are. With a basis (d x m, orthonormal rows) the record is basis x~ instead, without
a constant, and centres have d features.

The standardised records are never formed. The method needs three things of them only (products
with centres, weighted sums, norms), and each follows from one product with the raw records. So a
fit copies nothing, and reads memory-mapped data where they lie. Only where the centre is far from
the origin is it subtracted first, from as many rows at a time as fit into the cache: see `is_far`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace

from dpfedc.kernels import Array
from dpfedc.kernels.devices import on_host_once
from dpfedc.kernels.rows import Runs, by_columns, chosen_rows, chunks, weighted_rows


class Rows(Protocol):
    """One row r_j for every record j."""

    def weighted_sums(self, V: Array) -> Array:
        """Return V'R (k x m) for weights V (n x k)."""
        ...

    def formed(self, rows: slice) -> Array:
        """Return consecutive rows of R (b x m)."""
        ...


@dataclass(frozen=True)
class Columns:
    """Rows put together from others, side by side; arrays (n x d) are taken as they are."""

    parts: tuple[Any, ...]

    @classmethod
    def of(cls, *parts: Rows | Array) -> Columns:
        """Return the parts side by side; an array with one number per record is one column."""
        return cls(tuple(_as_rows(part) for part in parts))

    def weighted_sums(self, V: Array) -> Array:
        """Return V'R."""
        sums = [V.T @ p if _is_array(p) else p.weighted_sums(V) for p in self.parts]
        return sums[0] if len(sums) == 1 else array_namespace(V).concat(sums, axis=1)

    def formed(self, rows: slice) -> Array:
        """Return consecutive rows of R."""
        formed = [p[rows, :] if _is_array(p) else p.formed(rows) for p in self.parts]
        return formed[0] if len(formed) == 1 else array_namespace(*formed).concat(formed, axis=1)


@dataclass(frozen=True)
class Residuals:
    """r_j = W'h_j - x_j, from memberships H (n x k), centres W (k x m) and the records' rows."""

    H: Array
    W: Array
    records: Rows

    def weighted_sums(self, V: Array) -> Array:
        """Return V'R = (V'H) W - V'X."""
        return (V.T @ self.H) @ self.W - self.records.weighted_sums(V)

    def formed(self, rows: slice) -> Array:
        """Return consecutive rows of H W - X."""
        formed = self.H[rows, :] @ self.W
        formed -= self.records.formed(rows)
        return formed


@dataclass(frozen=True)
class Scaled:
    """Rows times one factor each.

    Their sums are made of formed rows: the factors may be large, and what cancels within a row
    would otherwise have to cancel between sums, which single precision does not do.
    """

    rows: Rows
    factors: Array

    def weighted_sums(self, V: Array) -> Array:
        """Return V'R."""
        total: Array = 0.0
        for start in range(0, V.shape[0], FORMED_ROWS):
            few = slice(start, min(start + FORMED_ROWS, V.shape[0]))
            total = V[few, :].T @ self.formed(few) + total
        return total

    def formed(self, rows: slice) -> Array:
        """Return consecutive rows of R."""
        return self.rows.formed(rows) * self.factors[rows][:, None]


def _is_array(part: Any) -> bool:
    return not hasattr(part, "weighted_sums")


def _as_rows(part: Any) -> Any:
    return part[:, None] if _is_array(part) and part.ndim == 1 else part


FORMED_ROWS = 4096
MAX_LOST, NEAR = 2.0**-32, 4.0
"""The unit of rounding of a centre, and a centre, in units of the scale: see `is_far`."""


def is_far(center: Array, scale: Array | float | None) -> bool:
    """Return whether the centre must be subtracted before a product, not after it.

    Subtracted after it, V'X - (sum of V) center adds up terms of length (|x| + |center|) / scale,
    which is at most 1 + 2R, R = |center| / scale, for records within the scale; subtracted first,
    they have length 1. Rounding is in proportion to the terms, so it is 1 + 2R times as much: in
    the sum, which one record then moves by more than it is clipped to, and in X W', from which the
    norms that are clipped are made. R may be at most 2^-32 / eps, which is 2^20 in double
    precision: what is lost there is 2^-8 of what single precision loses at R = 0. Single precision
    has no such reserve, and R may be 4: at most nine times what is lost at R = 0. What that comes
    to is measured in docs/privacy-proof.md, section 9.

    Without a scale nothing is clipped, and there is no length to compare with. The answer follows
    from what was broadcast alone: no record is looked at.
    """
    if scale is None:
        return False
    most = max(MAX_LOST / float(array_namespace(center).finfo(center.dtype).eps), NEAR)
    length = float(np.linalg.norm(on_host_once(center)))
    return length > most * float(scale if isinstance(scale, float) else on_host_once(scale))


def centered_norms(X: Array, center: Array) -> Array:
    """Return |x_j - center|, from the differences themselves, a chunk of rows at a time."""
    xp, parts = array_namespace(X, center), []
    for _, rows in chunks(X):
        difference = rows - center
        parts.append(xp.sqrt(xp.vecdot(difference, difference)))
    return xp.concat(parts)


@dataclass(frozen=True)
class Standardized:
    """A view of records X as x~ above; `factors` holds 1 / max(scale, |x_j - center| / longest).

    `far` says that the centre is subtracted before products (`is_far`).
    """

    X: Array | Runs
    center: Array
    factors: Array
    squared_norms: Array
    constant: float
    basis: Array | None = None
    far: bool = False

    @classmethod
    def of(
        cls,
        X: Array,
        *,
        center: Array,
        scale: Array | None,
        constant: float = 0.0,
        basis: Array | None = None,
        longest: float = 1.0,
        norms: Array | None = None,
    ) -> Standardized:
        """Return the view; costs one pass over X, and a product with the basis if there is one.

        The pass is for |x_j - center|, and saved where these norms are given.
        """
        xp = array_namespace(X, center)
        norms = centered_norms(X, center) if norms is None else norms
        factors = xp.ones_like(norms)
        if scale is not None:
            factors = 1 / xp.where(norms > longest * scale, norms / longest, factors * scale)
            # A scale of zero must not turn a record at the centre into infinity times zero.
            factors = xp.where(xp.isfinite(factors), factors, xp.zeros_like(factors))
        squares, far = (norms * factors) ** 2, is_far(center, scale)
        if basis is not None:
            projected = cls(X, center, factors, squares, 0.0, far=far).products(basis)
            # A record whose norm overflows must stay known as one.
            squares = xp.where(xp.isfinite(squares), xp.sum(projected**2, axis=1), squares)
            constant = 0.0
        return cls(X, center, factors, squares + constant**2, constant, basis, far)

    @property
    def n_features(self) -> int:
        """Return the number of features of x~, the constant included."""
        if self.basis is not None:
            return int(self.basis.shape[0])
        return int(self.X.shape[1]) + (self.constant != 0)

    def products(self, W: Array) -> Array:
        """Return X~ W' (n x k)."""
        V = W[:, : self.X.shape[1]] if self.basis is None else W @ self.basis
        A = by_columns(self.X, V, self.center if self.far else None)
        if not self.far:
            A -= V @ self.center
        A *= self.factors[:, None]
        if self.constant and self.basis is None:
            A += self.constant * W[:, -1]
        return A

    def weighted_sums(self, V: Array) -> Array:
        """Return V' X~ (k x features) for weights V (n x k)."""
        xp = array_namespace(self.X)
        scaled = V * self.factors[:, None]
        sums = weighted_rows(scaled, self.X, self.center if self.far else None)
        if not self.far:
            sums = sums - xp.sum(scaled, axis=0)[:, None] * self.center
        if self.basis is not None:
            return sums @ self.basis.T
        if not self.constant:
            return sums
        return xp.concat([sums, self.constant * xp.sum(V, axis=0)[:, None]], axis=1)

    def rows(self, index: Array) -> Array:
        """Return the standardised records of the given rows, formed in full."""
        chosen = chosen_rows(self.X, index)
        return self._formed(chosen, array_namespace(self.X).take(self.factors, index))

    def formed(self, rows: slice) -> Array:
        """Return the standardised records of consecutive rows, formed in full."""
        if isinstance(self.X, Runs):
            return self.rows(np.arange(rows.start, rows.stop))
        return self._formed(self.X[rows, :], self.factors[rows])

    def _formed(self, records: Array, factors: Array) -> Array:
        formed = records - self.center
        formed *= factors[:, None]
        if self.basis is not None:
            return formed @ self.basis.T
        if not self.constant:
            return formed
        extra = array_namespace(formed).ones_like(formed[:, :1]) * self.constant
        return array_namespace(formed).concat([formed, extra], axis=1)

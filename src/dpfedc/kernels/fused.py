"""One round of the factorisation in one pass over the records, for CUDA and single precision.

Every program takes tiles of records in turn. A tile stays on the chip: it is standardised, its
memberships take their steps, its gradients are clipped, and their sum is added to the program's
own. What is written out is one sum per program, and these are added in a fixed order.

Products are made by the matrix units, which multiply float16 numbers exactly and add in float32.
Standardised records and memberships are rounded to float16 (scaled, to 2^-11 of each number), and
the kernel sums the gradients of what it rounded, no more and no less: rounding is part of what is
computed from a record, and the norm that is clipped is the norm of what is summed. Everything else
is the sum of two float16 numbers, right to 2^-22 of itself, or to 2^-25 if that is more. Clipping
needs norms that are never too short, and gets them: see `SLACK`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from dpfedc.kernels.devices import on_host_once
from dpfedc.kernels.objective import curvature_of_gram, membership_step_size
from dpfedc.kernels.row_views import Standardized

X_SCALE, W_SCALE, H_SCALE, G_SCALE = 2.0**14, 2.0**12, 2.0**4, 2.0**3
"""Of x~ (norm <= 1), centres (entries <= 2), memberships and W W'. Float16 ends at 65,504."""
MIN_RECORDS = 2**10
"""With fewer records a CPU is as fast, and compiling takes a second."""
MAX_CLUSTERS, MAX_FEATURES, MAX_STEPS = 64, 1024, 900
_AT_ONCE = 2**27
"""Numbers whose squares are summed at a time."""
MIN_BOUND = 1e-3
"""Gradients that are clipped shorter than this would need other scales."""
TILE_FEATURES = 64
"""Data with more features are read twice in a round, the second time mostly from the cache."""
SLACK = 16
"""Units of rounding, beside one for each cluster, that are added to a squared residual norm.

For centres of unit length (a simulation has no others) and x the rounded record, in units of 2^-23
of reach^2 = (|x| + 2^-14 + sum_l h_l |w_l|)^2 the Gram identity is wrong by at most 8 for the
products x . w (matrix units drop what is below 2^-24 of the largest of 17 terms, four times for 64
features, and blocks of 64 features are added in float32), by k/2 for h' W W' h, which sums k terms
in the same way, and by 4 for the last sums in float32 and what halves leave out. The 2^-14 is for
the absolute 2^-37 of each of up to 1,024 halved numbers. So 16 + k units are enough for a norm that
is never below the true one.
"""


@dataclass(frozen=True)
class Tiling:
    """How the work is laid out; nothing but speed and the order of summation depends on it."""

    rows: int = 64
    warps: int = 4
    programs_per_core: int = 4
    registers: int | None = None
    """The most that a thread may have, so that several programs fit on a core (None: no limit)."""


NARROW = Tiling(16, 1, 64, 128)
"""For up to 16 clusters and 64 features."""
WIDE = {16: Tiling(64, 4, 2), 32: Tiling(32, 2, 4), 64: Tiling(64, 4, 2)}
"""For more, by the number of clusters rounded up."""


def fits(X: Any, n_clusters: int, *, steps: int, bound: float) -> bool:
    """Return whether records like these can be summed by the fused kernel."""
    return (
        X.dtype == torch.float32
        and X.stride(1) == 1
        and X.shape[1] <= MAX_FEATURES
        and n_clusters <= MAX_CLUSTERS
        and steps <= MAX_STEPS
        and bound >= MIN_BOUND
    )


def rounded_squares(X: Any, center: Any, factors: Any) -> Any:
    """Return |x_j|^2 of the standardised records as the kernel rounds them, in chunks."""
    found = torch.empty(X.shape[0], dtype=torch.float32, device=X.device)
    chunk = max(_AT_ONCE // X.shape[1], 1)
    for start in range(0, X.shape[0], chunk):
        some = slice(start, start + chunk)
        scaled = (X[some] - center) * (factors[some] * X_SCALE)[:, None]
        rounded = scaled.to(torch.float16).to(torch.float32)
        found[some] = torch.sum(rounded * rounded, dim=1) / X_SCALE**2
    return found


def one_pass(
    view: Standardized, squares: Any, W: Any, *, rho: float, mu_h: float, steps: int
) -> Callable[[float, Any], Any]:
    """Return what sums the view's clipped gradients in one pass over the records.

    It takes the norm that gradients are clipped to, and which records are kept (None: all).
    """
    centers = on_host_once(W)
    M = curvature_of_gram(centers @ centers.T, rho=rho, mu_h=mu_h)
    gamma = membership_step_size(M)

    def summed(bound: float, keep: Any) -> Any:
        return clipped_gradients(
            view.X,
            center=view.center,
            factors=view.factors,
            squares=squares,
            W=W,
            curvature=M,
            gamma=gamma,
            steps=steps,
            bound=bound,
            keep=keep,
        )

    return summed


def clipped_gradients(
    X: Any,
    *,
    center: Any,
    factors: Any,
    squares: Any,
    W: Any,
    curvature: npt.NDArray[np.float64],
    gamma: float,
    steps: int,
    bound: float,
    keep: Any = None,
    tiling: Tiling | None = None,
) -> Any:
    """Return the sum of w_j g_j (k x m), g_j = 2 h_j (W'h_j - x_j)' and w_j its clip weight.

    x_j is factor_j (x_j - center), of norm at most 1, rounded; h_j are its memberships after
    `steps` projected steps from zero, rounded in each step; and w_j = min(1, bound / norm_j), 0
    where `keep` is false or a number is not finite. `squares` are those of `rounded_squares`. What
    `membership_steps`, `residual_norms` and `clip_weights` make together, up to rounding.
    """
    (n, m), k = X.shape, W.shape[0]
    width = max(16, triton.next_power_of_2(k))
    columns = min(TILE_FEATURES, max(16, triton.next_power_of_2(m)))
    blocks = math.ceil(m / columns)
    tall = blocks * columns
    plan = tiling or (NARROW if width == 16 and blocks == 1 else WIDE[width])
    n_programs = max(min(triton.cdiv(n, plan.rows), plan.programs_per_core * _n_cores(X)), 1)
    # Small matrices below one another, padded with zeros, in halves: made here and sent at once,
    # since every operation on the device would cost as much as all of them here.
    centers = on_host_once(W)
    gram = centers @ centers.T
    small = np.zeros((tall + 2 * width, width), np.float32)
    small[:m, :k] = centers.T * W_SCALE
    small[tall : tall + k, :k] = np.eye(k) - curvature / gamma
    small[tall + width : tall + width + k, :k] = gram * G_SCALE
    high = small.astype(np.float16)
    halves = np.stack([high, (small - high).astype(np.float16)])
    lengths = np.zeros(width, np.float32)
    lengths[:k] = np.sqrt(np.diagonal(gram)) / H_SCALE
    on: dict[str, Any] = {"dtype": torch.float32, "device": X.device}
    sums = torch.zeros((n_programs, width, tall), **on)
    grams = torch.zeros((n_programs, width, width), **on)
    extra = {} if plan.registers is None else {"maxnreg": plan.registers}
    _round[(n_programs,)](
        X, factors, squares, X if keep is None else keep.view(torch.uint8), center,
        torch.asarray(lengths, device=X.device), torch.asarray(halves, device=X.device),
        sums, grams, n, m, X.stride(0),
        2 / gamma * H_SCALE / (X_SCALE * W_SCALE), bound, (SLACK + width) * 2.0**-23,
        STEPS=steps, WIDTH=width, ROWS=plan.rows, COLUMNS=columns, BLOCKS=blocks,
        RAGGED=tall != m, MASKED=keep is not None, ON_CHIP=X.is_cuda,
        num_warps=plan.warps, **extra,
    )  # fmt: skip
    from_records = torch.sum(sums, dim=0, dtype=torch.float64)[:k, :m] / (X_SCALE * H_SCALE)
    both = torch.sum(grams, dim=0, dtype=torch.float64)[:k, :k] / H_SCALE**2
    from_centers = both @ W.to(torch.float64)
    return (from_centers - from_records).to(X.dtype)


def _n_cores(X: Any) -> int:
    if not X.is_cuda:
        return 1
    return int(torch.cuda.get_device_properties(X.device).multi_processor_count)


# Two numbers at a time. What the compiler may not repeat it does not repeat: it would rather read
# and round records twice, in two layouts, than move them.
_SPLIT = tl.constexpr(
    """{
    .reg .b16 a, b;
    .reg .f32 x, y;
    cvt.rn.f16x2.f32 $0, $3, $2;
    mov.b32 {a, b}, $0;
    cvt.f32.f16 x, a;
    cvt.f32.f16 y, b;
    sub.f32 x, $2, x;
    sub.f32 y, $3, y;
    cvt.rn.f16x2.f32 $1, y, x;
    }"""
)
_ROUND = tl.constexpr("cvt.rn.f16x2.f32 $0, $2, $1;")
_ROUND_POSITIVE = tl.constexpr("cvt.rn.relu.f16x2.f32 $0, $2, $1;")


@triton.jit
def _split(x, ON_CHIP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return x as the sum of two float16 numbers."""
    if ON_CHIP:
        high, low = tl.inline_asm_elementwise(
            _SPLIT, "=r,=r,r,r", [x], dtype=(tl.float16, tl.float16), is_pure=False, pack=2
        )
    else:
        high = x.to(tl.float16)
        low = (x - high.to(tl.float32)).to(tl.float16)
    return high, low


@triton.jit
def _positive(x, ON_CHIP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return max(x, 0), rounded to float16."""
    if ON_CHIP:
        return tl.inline_asm_elementwise(
            _ROUND_POSITIVE, "=r,r,r", [x], dtype=tl.float16, is_pure=True, pack=2
        )
    return tl.maximum(x, 0.0).to(tl.float16)


@triton.jit
def _tile(  # type: ignore[no-untyped-def]
    X, CENTER, origin, factors, inside, used, first, m, stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, RAGGED: tl.constexpr, ON_CHIP: tl.constexpr,
):  # fmt: skip
    """Return some features of some standardised records, rounded; an unused record is zero."""
    columns = first + tl.arange(0, COLUMNS)
    where = X + origin * stride + (tl.arange(0, ROWS)[:, None] * stride + columns[None, :])
    # Read before it is known which records are used: that has to be read as well.
    if RAGGED:
        there = columns < m
        x = tl.load(where, mask=inside[:, None] & there[None, :], other=0.0)
        center = tl.load(CENTER + columns, mask=there, other=0.0)
    else:
        x = tl.load(where, mask=inside[:, None], other=0.0)
        center = tl.load(CENTER + columns)
    # Chosen, not multiplied by zero: 0 times infinity would poison the sum.
    x = tl.where(used[:, None], x - center[None, :], 0.0) * factors[:, None]
    if ON_CHIP:
        return tl.inline_asm_elementwise(
            _ROUND, "=r,r,r", [x], dtype=tl.float16, is_pure=False, pack=2
        )
    return x.to(tl.float16)


@triton.jit
def _round(  # type: ignore[no-untyped-def]  # noqa: PLR0915
    X, FACTORS, SQUARES, KEEP, CENTER, LENGTHS, HALVES, SUMS, GRAMS,
    n, m, stride, drive, bound, slack,
    STEPS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCKS: tl.constexpr, RAGGED: tl.constexpr, MASKED: tl.constexpr, ON_CHIP: tl.constexpr,
):  # fmt: skip
    """Add up the clipped gradients of every n_programs-th tile, as V'X and V'H."""
    # Memberships and V are scaled by 2^4, records by 2^14, W by 2^12 and W W' by 2^3.
    program = tl.program_id(0)
    clusters = tl.arange(0, WIDTH)
    inner = tl.arange(0, ROWS)
    tall: tl.constexpr = BLOCKS * COLUMNS
    LOW = HALVES + (tall + 2 * WIDTH) * WIDTH
    square = clusters[:, None] * WIDTH + clusters[None, :]
    shrink = tl.load(HALVES + tall * WIDTH + square)
    shrink_low = tl.load(LOW + tall * WIDTH + square)
    gram = tl.load(HALVES + (tall + WIDTH) * WIDTH + square)
    gram_low = tl.load(LOW + (tall + WIDTH) * WIDTH + square)
    lengths = tl.load(LENGTHS + clusters)
    of_centers = tl.arange(0, COLUMNS)[:, None] * WIDTH + clusters[None, :]
    own = SUMS + program * (WIDTH * tall)
    own += clusters[:, None] * tall + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([WIDTH, COLUMNS], dtype=tl.float32)
    grams = tl.zeros([WIDTH, WIDTH], dtype=tl.float32)
    if BLOCKS == 1:
        w, w_low = tl.load(HALVES + of_centers), tl.load(LOW + of_centers)
    for tile in range(program, tl.cdiv(n, ROWS), tl.num_programs(0)):
        origin = tl.zeros([], dtype=tl.int64) + tile * ROWS
        inside = inner < n - tile * ROWS
        # A record whose norm is not finite is null, and so is one that the gate does not keep.
        squares = tl.load(SQUARES + origin + inner, mask=inside, other=float("inf"))
        used = inside & (squares < float("inf"))
        if MASKED:
            used = used & (tl.load(KEEP + origin + inner, mask=inside, other=0) != 0)
        squares = tl.where(used, squares, 0.0)
        factors = tl.load(FACTORS + origin + inner, mask=inside, other=0.0) * 16384.0
        if BLOCKS == 1:
            x = _tile(
                X, CENTER, origin, factors, inside, used, 0, m, stride,
                ROWS, COLUMNS, RAGGED, ON_CHIP,
            )  # fmt: skip
            a = tl.dot(x, w, tl.dot(x, w_low))
        else:
            a = tl.zeros([ROWS, WIDTH], dtype=tl.float32)
            for block in range(BLOCKS):
                y = _tile(
                    X, CENTER, origin, factors, inside, used, block * COLUMNS, m, stride,
                    ROWS, COLUMNS, RAGGED, ON_CHIP,
                )  # fmt: skip
                place = block * (COLUMNS * WIDTH) + of_centers
                a += tl.dot(y, tl.load(HALVES + place), tl.dot(y, tl.load(LOW + place)))
        push = a * drive
        h = push
        for _ in range(STEPS - 1):
            g = _positive(h, ON_CHIP)
            h = tl.dot(g, shrink, tl.dot(g, shrink_low, push))
        # Centres of unit length have memberships of at most twice the number of steps. A membership
        # that other centres push out of float16's range is zero.
        g = _positive(tl.where(h < 30000.0, h, 0.0), ON_CHIP)
        h = g.to(tl.float32)
        # |x - W'h| by the Gram identity, rounded up: h W W' h is scaled by 2^11, a h by 2^30.
        bent = tl.dot(g, gram, tl.dot(g, gram_low)) * 4.8828125e-04 - a * 1.862645149230957e-09
        change = tl.sum(bent * h, axis=1)
        reach = tl.sqrt(squares) + 6.103515625e-05 + tl.sum(h * lengths[None, :], axis=1)
        residual = tl.sqrt(tl.maximum(squares + change, 0.0) + slack * reach * reach)
        norms = 0.125 * residual * tl.sqrt(tl.sum(h * h, axis=1))
        # The gate's rule (clip_weights), with the gate's bound.
        weights = tl.where(used & (norms < float("inf")), bound / tl.maximum(norms, bound), 0.0)
        v, v_low = _split(h * (2.0 * weights)[:, None], ON_CHIP)
        v, v_low = tl.trans(v), tl.trans(v_low)
        # Sums of tiles are added outside of the matrix units, which would round them down.
        grams += tl.dot(v, g, tl.dot(v_low, g))
        if BLOCKS == 1:
            sums += tl.dot(v, x, tl.dot(v_low, x))
        else:
            for block in range(BLOCKS):
                y = _tile(
                    X, CENTER, origin, factors, inside, used, block * COLUMNS, m, stride,
                    ROWS, COLUMNS, RAGGED, ON_CHIP,
                )  # fmt: skip
                place = own + block * COLUMNS
                tl.store(place, tl.load(place) + tl.dot(v, y, tl.dot(v_low, y)))
            tl.debug_barrier()
    if BLOCKS == 1:
        tl.store(own, sums)
    tl.store(GRAMS + program * (WIDTH * WIDTH) + square, grams)

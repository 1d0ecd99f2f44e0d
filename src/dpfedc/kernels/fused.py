"""One round of the factorisation in one pass over the records, for CUDA and single precision.

Every program takes tiles of records in turn. A tile stays on the chip: it is standardised, its
memberships take their steps, its gradients are clipped, and their sum is added to the program's
own. What is written out is one sum per program, and these are added in a fixed order.

Products are made by the matrix units from halves: a number is the sum of two float16 numbers, right
to 2^-22 of itself, or to 2^-25 if that is more. Scaled up first, numbers are as good as in float32,
and products several times as fast. Clipping needs norms that are never too short, and gets them:
see `SLACK`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

X_SCALE, W_SCALE, H_SCALE, G_SCALE = 2.0**14, 2.0**12, 2.0**4, 2.0**3
"""Of x~ (norm <= 1), centres (entries <= 2), memberships and W W'. Float16 ends at 65,504."""
MOST_MEMBERSHIP = 30_000.0
"""Scaled. Centres of unit length have memberships of at most twice the number of steps."""
LEAST_RECORDS = 2**10
"""With fewer records a CPU is as fast, and compiling takes a second."""
MOST_CLUSTERS, MOST_FEATURES, MOST_STEPS = 64, 1024, 900
LEAST_BOUND = 1e-3
"""Gradients that are clipped shorter than this would need other scales."""
TILE_FEATURES = 64
"""Data with more features are read twice in a round, the second time mostly from the cache."""
SLACK = 16
"""Units of rounding, beside one for each cluster, that are added to a squared residual norm.

In units of 2^-23 of reach^2 = (|x~| + 2^-14 + sum_l h_l |w_l|)^2 the Gram identity is wrong by at
most 8 for the products x~ . w (matrix units drop what is below 2^-24 of the largest of 17 terms,
four times for 64 features, and blocks of 64 features are added in float32), by k/2 for h' W W' h,
which sums k terms in the same way, and by 4 for the last sums in float32 and what halves leave out.
The 2^-14 is for the absolute 2^-39 of each of up to 1,024 numbers. So 16 + k units are enough for a
norm that is never below the true one.
"""


@dataclass(frozen=True)
class Tiling:
    """How the work is laid out; nothing but speed and the order of summation depends on it."""

    rows: int = 64
    warps: int = 4
    programs_per_core: int = 4
    registers: int | None = None
    """The most that a thread may have, so that several programs fit on a core (None: no limit)."""


NARROW, WIDE = Tiling(programs_per_core=16, registers=128), Tiling(programs_per_core=2)
"""For up to 16 clusters and 64 features, and for more."""


def fits(X: Any, n_clusters: int, *, steps: int, bound: float) -> bool:
    """Return whether these records can be, and are worth being, summed by the fused kernel."""
    return (
        X.dtype == torch.float32
        and X.stride(1) == 1
        and X.shape[0] >= LEAST_RECORDS
        and X.shape[1] <= MOST_FEATURES
        and n_clusters <= MOST_CLUSTERS
        and steps <= MOST_STEPS
        and bound >= LEAST_BOUND
    )


def clipped_gradients(
    X: Any,
    *,
    center: Any,
    factors: Any,
    squared_norms: Any,
    W: Any,
    curvature: Any,
    gamma: float,
    steps: int,
    bound: float,
    keep: Any = None,
    tiling: Tiling | None = None,
) -> Any:
    """Return the sum of w_j g_j (k x m), g_j = 2 h_j (W'h_j - x~_j)' and w_j its clip weight.

    x~_j = factor_j (x_j - center), |x~_j| <= 1; h_j are the memberships after `steps` projected
    steps from zero, and w_j = min(1, bound / norm_j), 0 where `keep` is false or a number is not
    finite. What `membership_steps`, `residual_norms` and `clip_weights` make together, up to
    rounding: norms have a little more slack here.
    """
    (n, m), k = X.shape, W.shape[0]
    width = max(16, triton.next_power_of_2(k))
    columns = min(TILE_FEATURES, max(16, triton.next_power_of_2(m)))
    blocks = math.ceil(m / columns)
    tall = blocks * columns
    plan = tiling or (NARROW if width == 16 and blocks == 1 else WIDE)
    n_programs = max(min(triton.cdiv(n, plan.rows), plan.programs_per_core * _n_cores(X)), 1)
    on: dict[str, Any] = {"dtype": torch.float32, "device": X.device}
    # Small matrices below one another, padded with zeros, in halves. A membership comes as (high,
    # low, high, low), so the square ones are stacked as (high, high, low, low).
    small = torch.zeros((tall + 2 * width, width), **on)
    small[:m, :k] = W.T * W_SCALE
    small[tall : tall + k, :k] = torch.eye(k, **on) - curvature / gamma
    gram = W @ W.T
    small[tall + width : tall + width + k, :k] = gram * G_SCALE
    lengths = torch.zeros(width, **on)
    lengths[:k] = torch.sqrt(torch.diagonal(gram)) / H_SCALE
    high = small.to(torch.float16)
    low = (small - high).to(torch.float16)
    halves = torch.stack([high, low])
    squares = halves[:, tall:, :].reshape(2, 2, 1, width, width).expand(2, 2, 2, width, width)
    squares = squares.transpose(0, 1).reshape(2, 4 * width, width).contiguous()
    sums = torch.zeros((n_programs, tall, width), **on)
    grams = torch.zeros((n_programs, 4 * width, width), **on)
    extra = {} if plan.registers is None else {"maxnreg": plan.registers}
    _round[(n_programs,)](
        X, factors, squared_norms, X if keep is None else keep.view(torch.uint8), center, lengths,
        high, low, squares, sums, grams, n, m, X.stride(0),
        2 / gamma * H_SCALE / (X_SCALE * W_SCALE), bound, (SLACK + width) * 2.0**-23,
        STEPS=steps, WIDTH=width, ROWS=plan.rows, COLUMNS=columns, BLOCKS=blocks,
        RAGGED=tall != m, MASKED=keep is not None, ON_CHIP=X.is_cuda,
        num_warps=plan.warps, **extra,
    )  # fmt: skip
    from_records = torch.sum(sums, dim=0, dtype=torch.float64)[:m, :k].T / (X_SCALE * H_SCALE)
    both = torch.sum(grams, dim=0, dtype=torch.float64) / H_SCALE**2
    from_centres = (both[:k, :k] + both[width : width + k, :k]).T @ W.to(torch.float64)
    return (from_centres - from_records).to(X.dtype)


def _n_cores(X: Any) -> int:
    if not X.is_cuda:
        return 1
    return int(torch.cuda.get_device_properties(X.device).multi_processor_count)


# Two numbers at a time. What the compiler may not repeat it does not repeat: it would rather split
# numbers twice, in two layouts, than move the halves, and splitting is most of the work.
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
def _fourfold(x, ON_CHIP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the halves of x beside one another: high, low, high, low."""
    high, low = _split(x, ON_CHIP)
    two = tl.reshape(tl.permute(tl.join(high, low), (0, 2, 1)), (ROWS, 2 * WIDTH))
    return tl.reshape(tl.permute(tl.join(two, two), (0, 2, 1)), (ROWS, 4 * WIDTH))


@triton.jit
def _product(a, a_low, b, b_low):  # type: ignore[no-untyped-def]
    """Return the product of two matrices in halves, without that of the two low parts."""
    return tl.dot(a, b, tl.dot(a, b_low, tl.dot(a_low, b)))


@triton.jit
def _tile(  # type: ignore[no-untyped-def]
    X, CENTER, origin, factors, used, first, m, stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, RAGGED: tl.constexpr, ON_CHIP: tl.constexpr,
):  # fmt: skip
    """Return some features of some standardised records, in halves; an unused record is zero."""
    columns = first + tl.arange(0, COLUMNS)
    where = X + origin * stride + (tl.arange(0, ROWS)[:, None] * stride + columns[None, :])
    if RAGGED:
        inside = columns < m
        x = tl.load(where, mask=used[:, None] & inside[None, :], other=0.0)
        center = tl.load(CENTER + columns, mask=inside, other=0.0)
    else:
        x = tl.load(where, mask=used[:, None], other=0.0)
        center = tl.load(CENTER + columns)
    # The factor of an unused record is zero.
    return _split((x - center[None, :]) * factors[:, None], ON_CHIP)


@triton.jit
def _round(  # type: ignore[no-untyped-def]  # noqa: PLR0915
    X, FACTORS, SQUARES, KEEP, CENTER, LENGTHS, HIGH, LOW, SQUARE, SUMS, GRAMS,
    n, m, stride, drive, bound, slack,
    STEPS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCKS: tl.constexpr, RAGGED: tl.constexpr, MASKED: tl.constexpr, ON_CHIP: tl.constexpr,
):  # fmt: skip
    """Add up the clipped gradients of every n_programs-th tile, as X~'V and H'V."""
    # Memberships and V are scaled by 2^4, x~ by 2^14, W by 2^12 and W W' by 2^3.
    program = tl.program_id(0)
    clusters = tl.arange(0, WIDTH)
    inner = tl.arange(0, ROWS)
    block_of = tl.arange(0, COLUMNS)[:, None] * WIDTH + clusters[None, :]
    block_size: tl.constexpr = COLUMNS * WIDTH
    four = tl.arange(0, 4 * WIDTH)[:, None] * WIDTH + clusters[None, :]
    shrink, gram = tl.load(SQUARE + four), tl.load(SQUARE + 4 * WIDTH * WIDTH + four)
    lengths = tl.load(LENGTHS + clusters)
    own = SUMS + program * (BLOCKS * block_size) + block_of
    sums = tl.zeros([COLUMNS, WIDTH], dtype=tl.float32)
    grams = tl.zeros([4 * WIDTH, WIDTH], dtype=tl.float32)
    if BLOCKS == 1:
        w, w_low = tl.load(HIGH + block_of), tl.load(LOW + block_of)
    for tile in range(program, tl.cdiv(n, ROWS), tl.num_programs(0)):
        origin = tl.zeros([], dtype=tl.int64) + tile * ROWS
        inside = inner < n - tile * ROWS
        # A record whose norm is not finite is null, and so is one that the gate does not keep:
        # it is not even read, and 0 times infinity cannot poison the sum.
        squares = tl.load(SQUARES + origin + inner, mask=inside, other=float("inf"))
        used = inside & (squares < float("inf"))
        if MASKED:
            used = used & (tl.load(KEEP + origin + inner, mask=inside, other=0) != 0)
        squares = tl.where(used, squares, 0.0)
        factors = tl.load(FACTORS + origin + inner, mask=used, other=0.0) * 16384.0
        if BLOCKS == 1:
            x, x_low = _tile(
                X, CENTER, origin, factors, used, 0, m, stride, ROWS, COLUMNS, RAGGED, ON_CHIP
            )
            a = _product(x, x_low, w, w_low)
        else:
            a = tl.zeros([ROWS, WIDTH], dtype=tl.float32)
            for block in range(BLOCKS):
                y, y_low = _tile(
                    X, CENTER, origin, factors, used, block * COLUMNS, m, stride,
                    ROWS, COLUMNS, RAGGED, ON_CHIP,
                )  # fmt: skip
                place = block * block_size + block_of
                a += _product(y, y_low, tl.load(HIGH + place), tl.load(LOW + place))
        push = a * drive
        h = tl.maximum(push, 0.0)
        for _ in range(STEPS - 1):
            h = tl.maximum(tl.dot(_fourfold(h, ON_CHIP, ROWS, WIDTH), shrink, push), 0.0)
        # With centres of no honest server memberships may leave the range; they stay numbers.
        h = tl.minimum(h, 30000.0)
        both = _fourfold(h, ON_CHIP, ROWS, WIDTH)
        # |x~ - W'h| by the Gram identity, rounded up: h W W' h is scaled by 2^11, a h by 2^30.
        bent = tl.dot(both, gram) * 4.8828125e-04 - a * 1.862645149230957e-09
        change = tl.sum(bent * h, axis=1)
        reach = tl.sqrt(squares) + 6.103515625e-05 + tl.sum(h * lengths[None, :], axis=1)
        residual = tl.sqrt(tl.maximum(squares + change, 0.0) + slack * reach * reach)
        norms = 0.125 * residual * tl.sqrt(tl.sum(h * h, axis=1))
        # The gate's rule (clip_weights), with the gate's bound.
        weights = tl.where(used & (norms < float("inf")), bound / tl.maximum(norms, bound), 0.0)
        v, v_low = _split(h * (2.0 * weights)[:, None], ON_CHIP)
        # Sums of tiles are added outside of the matrix units, which would round them down.
        turned = tl.trans(both)
        grams += tl.dot(turned, v, tl.dot(turned, v_low))
        if BLOCKS == 1:
            sums += _product(tl.trans(x), tl.trans(x_low), v, v_low)
        else:
            for block in range(BLOCKS):
                y, y_low = _tile(
                    X, CENTER, origin, factors, used, block * COLUMNS, m, stride,
                    ROWS, COLUMNS, RAGGED, ON_CHIP,
                )  # fmt: skip
                place = own + block * block_size
                added = _product(tl.trans(y), tl.trans(y_low), v, v_low)
                tl.store(place, tl.load(place) + added)
            tl.debug_barrier()
    if BLOCKS == 1:
        tl.store(own, sums)
    tl.store(GRAMS + program * (4 * WIDTH * WIDTH) + four, grams)

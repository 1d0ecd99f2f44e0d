"""What the paper's text leaves open, and the rows of the experiment `reproduction` that show it."""

from __future__ import annotations

from dataclasses import dataclass

CLOSEST, FALLING, DEFAULTS = "closest", "closest-falling-steps", "defaults"
"""Rows of DP-FedC: the closest runnable reading, with the figures' steps, and our defaults."""


@dataclass(frozen=True)
class Choice:
    """What the text leaves open, and the rows that differ in it alone."""

    name: str
    says: str
    default: str
    closest: str
    undone: str
    done: str


CHOICES = (
    Choice(
        "pixels, and with them the start",
        'of records only "a real column vector containing 784 features"; of the start only '
        '"initial values", which we draw from [0, 1)',
        "0 to 1",
        "0 to 255",
        "closest-pixels-to-1",
        "defaults-pixels-to-255",
    ),
    Choice(
        "steps on the centres, `centroid_steps`",
        'Table I: "Q2 = 5"; the figures: "floor(10 / t) + 1"',
        "floor(10 / t) + 1",
        "5",
        FALLING,
        "defaults-five-steps",
    ),
    Choice(
        "batches, `batches`",
        '"the mini-batch dataset size b is set to 50"; Theorem 1 gains nothing above q = 1/2',
        "capped: q <= 1/2",
        "50, cycling: q = 2.5",
        "closest-capped",
        "defaults-cycling",
    ),
    Choice(
        "weight of a batch, `batch_gradient`",
        "Assumption 3: unbiased, so n_i / b; Appendix E's formula: no factor",
        "n_i / b",
        "1",
        "closest-scaled",
        "defaults-sum",
    ),
    Choice(
        "slope in H, `membership_gradient`",
        "Appendix E prints 2 rho 11'H + (mu_h - rho) H",
        "derivative of F",
        "printed",
        "closest-derivative",
        "defaults-printed",
    ),
)
BOUNDS = (
    ("on each record, G = 4e4 (closest)", CLOSEST),
    ("on each record, G = 4e3", "closest-bound-4e3"),
    ("on each record, G = 1e4", "closest-bound-1e4"),
    ("on each record, G = 1e5", "closest-bound-1e5"),
    ("on each record, G = 4e5", "closest-bound-4e5"),
    ("on the mini-batch, G = 4e4", "closest-bound-on-batches"),
    ("assumed only, G = 4e4", "closest-bound-assumed"),
    ("on the mini-batch, G = 0.1, pixels 0 to 1 (our defaults)", DEFAULTS),
)

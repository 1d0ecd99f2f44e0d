"""Make the pictures of docs/concepts.md, and print the figures that stand in its text.

    make pictures

Every value is computed here, by the code that plans and accounts for real runs. Grounds are white,
so that a picture can be read on a dark page, too.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from dpfedc import DPFedC, stack_sites
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.errors import BudgetWarning, Refused
from dpfedc.privacy.accountant import gaussian_mu
from dpfedc.privacy.ledger import Ledger
from dpfedc.privacy.ledger.caps import GaussianCap
from dpfedc.report.palette import ACCENT, GRID, INK, LIGHT, LINES, RULE, SHADE, SOFT
from dpfedc.settings import PrivacyTarget
from dpfedc.verdict.verdict import LEAST, ROUGH, USABLE, expected_verdict

HERE = Path(__file__).parent
WIDTH, DELTA = 7.2, 1e-5
RED = LINES[1]
GROUPS = {"young": (25, 115), "middle": (50, 160), "old": (80, 130)}
RANGES = [(18, 100), (80, 220)]


def blank(height: float, n: int = 1, **more: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure with n axes side by side."""
    figure = Figure(figsize=(WIDTH, height), facecolor="white", layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.07)
    row = list(np.atleast_1d(figure.subplots(1, n, **more)))
    for axes in row:
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[:].set_color(RULE)
        axes.tick_params(labelsize=9, labelcolor=INK, color=RULE)
    return figure, row


def labelled(axes: Axes, x: str, y: str = "") -> None:
    """Name both axes."""
    axes.set_xlabel(x, fontsize=9.5, color=INK)
    axes.set_ylabel(y, fontsize=9.5, color=INK)


def save(figure: Figure, name: str) -> None:
    """Write an SVG file that is the same whenever it is made."""
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None, "Creator": None})


def epsilon_picture() -> None:
    """Draw the law of one released count, with one person and without."""
    figure, row = blank(2.6, 3, sharey=True)
    epsilons = (0.5, 2.0, 8.0)
    for axes, epsilon in zip(row, epsilons, strict=True):
        std = 1 / gaussian_mu(epsilon, DELTA)
        reach = max(3.2 * std, 4)
        x = np.linspace(100.5 - reach, 100.5 + reach, 45)
        for count, color, name in ((100, SOFT, "without her"), (101, ACCENT, "with her")):
            y = np.exp(-(((x - count) / std) ** 2) / 2)
            axes.plot(x, y, color=color, lw=1.8, label=name)
            axes.fill_between(x, y, color=color, alpha=0.18, lw=0)
        axes.set(xlim=(x[0], x[-1]), ylim=(0, 1.1), yticks=[])
        axes.spines["left"].set_visible(False)
        axes.set_title(f"epsilon {epsilon:g}: noise ± {std:.2g}", fontsize=10, color=INK)
        labelled(axes, "released count")
        guess = 1 / (1 + math.exp(-epsilon))
        print(
            f"epsilon {epsilon:g}: standard deviation {std:.2f}, odds at most times "
            f"{math.exp(epsilon):,.1f}, a guess of 50 % becomes {guess:.2%} at most"
        )
    keys, names = row[0].get_legend_handles_labels()
    figure.legend(keys, names, ncols=2, loc="outside lower center", frameon=False, fontsize=9.5,
                  labelcolor=INK)  # fmt: skip
    save(figure, "epsilon")


def box(axes: Axes, x: float, y: float, text: str, *, half: float = 1.1) -> None:
    """Draw a box around a place; where noise is added it stands out."""
    adds = "+" in text
    edge, fill = (ACCENT, LIGHT["tint"]) if adds else (RULE, SHADE)
    where = (x - half, y - 0.5)
    axes.add_patch(
        FancyBboxPatch(where, 2 * half, 1.0, boxstyle="round,pad=0.04", fc=fill, ec=edge, lw=1.2)
    )
    axes.text(x, y, text, ha="center", va="center", fontsize=8.5, color=INK, linespacing=1.2)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str) -> None:
    """Draw an arrow; what is masked is dashed."""
    style = (0, (3, 2)) if color == SOFT else "solid"
    head = {"arrowstyle": "-|>", "mutation_scale": 11, "shrinkA": 0, "shrinkB": 0}
    axes.add_patch(FancyArrowPatch(start, end, color=color, lw=1.6, ls=style, **head))


def trust_picture() -> None:
    """Draw who adds noise, and what the server sees."""
    figure, row = blank(3.1, 3)
    panels = [
        ("local", "site\n+ noise", "server", ACCENT, "sees noisy\nsums of\neach site"),
        ("secure-aggregation", "site\n+ a part", "server", SOFT, "sees the\nnoisy total\nonly"),
        ("trusted-server", "site", "server\n+ noise", RED, "sees exact\nsums of\neach site"),
    ]
    for axes, (title, site, server, color, sees) in zip(row, panels, strict=True):
        axes.set(xlim=(-0.3, 7.9), ylim=(-0.4, 7.4))
        axes.axis("off")
        axes.set_title(title, fontsize=10, color=INK, fontweight="bold")
        for x in (1.0, 3.8, 6.6):
            box(axes, x, 6.6, site)
            arrow(axes, (x, 5.95), (3.8 + 0.22 * (x - 3.8), 3.95), color)
        box(axes, 3.8, 3.35, server)
        axes.text(5.2, 3.35, sees, va="center", fontsize=8.5, linespacing=1.2,
                  color=INK if color == SOFT else color)  # fmt: skip
        arrow(axes, (3.8, 2.75), (3.8, 0.8), ACCENT)
        axes.text(4.1, 1.8, "noisy centres", va="center", fontsize=8.5, color=ACCENT)
        box(axes, 3.8, 0.2, "everybody", half=1.5)
    save(figure, "trust")


def example_sites(seed: int = 0) -> tuple[Any, Any]:
    """Return the records of examples/clustering_sites.py, and their sites."""
    rng = np.random.default_rng(seed)
    young, middle, old = GROUPS.values()
    return stack_sites(
        [
            rng.normal([young] * 600 + [old] * 100, scale=4),
            rng.normal([young] * 200 + [middle] * 500, scale=4),
            rng.normal([middle] * 150 + [old] * 400, scale=4),
        ]
    )


def budget_picture() -> None:
    """Draw what a ledger says after each run of epsilon 3, until it refuses one."""
    X, sites = example_sites()
    cap, each, spent = 10.0, 3.0, []
    refused = False
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger"
        Ledger.create(path, holding="patients", cap=GaussianCap(cap, DELTA)).close()
        while not refused:
            model = DPFedC(3, epsilon=each, feature_ranges=RANGES, ledger=path, random_state=0)
            try:
                model.fit(X, sites=sites)
            except Refused:
                refused = True
                break
            with Ledger.open(path) as ledger:
                spent.append(ledger.totals().epsilon)
    print(
        f"cap {cap:g}, runs of epsilon {each:g}:", ", ".join(f"{e:.2f}" for e in spent), "refused"
    )
    figure, (axes,) = blank(2.9)
    n = len(spent)
    runs = np.arange(1, n + 1)
    before = np.array([0.0, *spent[:-1]])
    axes.bar(runs, before, width=0.62, color="#9cc3df", lw=0, label="spent before")
    axes.bar(runs, spent - before, bottom=before, width=0.62, color=ACCENT, lw=0, label="this run")
    axes.plot(runs, each * runs, color=SOFT, lw=1.3, ls=(0, (5, 3)), marker=".",
              label="epsilons simply added")  # fmt: skip
    axes.axhline(cap, color=RED, lw=1.6)
    axes.text(0.45, cap + 0.25, f"lifetime cap: {cap:g}", color=RED, fontsize=9.5, va="bottom")
    axes.bar([n + 1], [cap], width=0.62, fill=False, ec=RED, lw=1.1, ls=(0, (3, 2)))
    axes.text(n + 1, cap / 2, "refused", rotation=90, ha="center", va="center", color=RED,
              fontsize=9.5)  # fmt: skip
    axes.set(ylim=(0, 13), xlim=(0.4, n + 1.6), xticks=[*runs, n + 1])
    axes.grid(axis="y", color=GRID, lw=0.7)
    labelled(axes, "run", "epsilon spent so far")
    figure.legend(ncols=3, loc="outside lower center", frameon=False, fontsize=9.5, labelcolor=INK)
    save(figure, "budget")


def expected_score(n_records: int, epsilon: float) -> float:
    """Return what `dpfedc plan` expects: 4 clusters, 5 columns, 5 sites, noise at the sites."""
    method, facts = method_named("dp-fedc"), Federation(5, np.full(5, n_records // 5))
    target = PrivacyTarget(epsilon, DELTA, "local")
    given = DPFedC(4, epsilon=epsilon).get_params()
    return expected_verdict(method, given, facts, method.plan(given, facts, target)).score


def verdict_picture() -> None:
    """Draw what rehearsals expect, by the number of records."""
    figure, (axes,) = blank(3.1)
    sizes = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)
    bands = [
        (0, LEAST[ROUGH], "useless", "#fbeae6"),
        (LEAST[ROUGH], LEAST[USABLE], "rough", LIGHT["note-tint"]),
        (LEAST[USABLE], 1.06, "usable", "#e8f4ec"),
    ]
    for low, high, word, color in bands:
        axes.axhspan(low, high, color=color, lw=0)
        axes.text(23_500, (low + high) / 2, word, va="center", fontsize=9.5, color=INK)
    for epsilon, color, marker in ((0.5, LINES[3], "o"), (2.0, ACCENT, "s"), (8.0, LINES[2], "^")):
        scores = [expected_score(n, epsilon) for n in sizes]
        print(
            f"epsilon {epsilon:g}:",
            ", ".join(f"{n:,} {s:.2f}" for n, s in zip(sizes, scores, strict=True)),
        )
        axes.plot(sizes, scores, color=color, lw=1.8, marker=marker, ms=4.5,
                  label=f"epsilon {epsilon:g}")  # fmt: skip
    axes.set(xscale="log", xlim=(90, 22_000), ylim=(-0.03, 1.06))
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axes.minorticks_off()
    labelled(axes, "records, of all sites together", "score with noise / without")
    figure.legend(ncols=3, loc="outside lower center", frameon=False, fontsize=9.5, labelcolor=INK)
    save(figure, "verdict")


def old_group(seed: int, X: Any, sites: Any) -> tuple[float, ...]:
    """Return the old group's age as one run released it, between its error bars, and exactly."""
    model = DPFedC(3, epsilon=2.0, feature_ranges=RANGES, random_state=seed).fit(X, sites=sites)
    cluster = max(model.summary().clusters, key=lambda c: c.columns[0].values[0].mean)
    age = cluster.columns[0].values[0]
    return age.low, age.mean, age.high, X[model.labels_ == cluster.number, 0].mean()


def error_bars_picture() -> None:
    """Draw the age of the old group in 40 runs of the example: released, and exact."""
    figure, (axes,) = blank(2.9)
    X, sites = example_sites()
    found = np.array([old_group(seed, X, sites) for seed in range(1, 41)])
    runs, (low, mean, high, exact) = np.arange(1, 41), found.T
    held = (low <= exact) & (exact <= high)
    print(f"error bars: {held.sum()} of {len(runs)} hold the exact value")
    for which, color, name in (
        (held, ACCENT, "released, with 95 % interval"),
        (~held, RED, "interval that misses"),
    ):
        axes.vlines(runs[which], low[which], high[which], color=color, lw=1.6)
        axes.plot(runs[which], mean[which], "o", color=color, ms=3.6, label=name)
    axes.plot(runs, exact, "_", color=INK, ms=7, mew=1.5, label="exact mean")
    axes.set(xlim=(0, 41))
    axes.grid(axis="y", color=GRID, lw=0.7)
    labelled(axes, "run", "age of the old group")
    figure.legend(ncols=3, loc="outside lower center", frameon=False, fontsize=9.5, labelcolor=INK)
    save(figure, "error-bars")


if __name__ == "__main__":
    warnings.simplefilter("ignore", BudgetWarning)
    rcParams.update({"svg.hashsalt": "dpfedc", "font.family": "DejaVu Sans"})
    for picture in (epsilon_picture, trust_picture, budget_picture, verdict_picture,
                    error_bars_picture):  # fmt: skip
        picture()
    for file in sorted(HERE.glob("*.svg")):
        print(file.name, f"{file.stat().st_size / 1000:.0f} kB")

"""`dpfedc demo`: the whole product in a few seconds, on data that need no download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfedc.cli.console import print_path, print_sentence
from dpfedc.cli.input_records import Deal, named_records
from dpfedc.cli.options import Folder, NamedData, Split, Trust, seed_option
from dpfedc.cli.trial import run_trial

DEMO_SEED = 0


def demo(
    ctx: typer.Context,
    output: Folder = Path("demo"),
    seed: Annotated[
        int | None,
        seed_option("Another seed gives other sites, another start and other noise.", shown="0"),
    ] = None,
) -> None:
    """Cluster handwritten digits that 20 sites keep to themselves.

    The data are 1,797 small pictures that come with scikit-learn. Each site holds two of the ten
    digits. Noise hides every single picture (epsilon 8; the sites and their secure aggregation are
    simulated). The result is set beside that of k-means on all pictures in one place.
    """
    print_sentence("20 sites hold pictures of two digits each, and keep them to themselves.")
    from dpfedc.report.folder import require_results_folder

    require_results_folder(output)
    seed = DEMO_SEED if seed is None else seed
    deal = Deal(n_sites=20, split=Split.LABELS, labels_per_site=2, alpha=1.0, seed=seed)
    records = named_records(NamedData.DIGITS, n_records=None, deal=deal)
    page = run_trial(
        records,
        output,
        title="Handwritten digits at 20 sites",
        command=ctx.obj,
        compare=True,
        n_clusters=10,
        epsilon=8.0,
        delta=1e-5,
        trust=str(Trust.SECURE_AGGREGATION),
        min_survivors=None,
        colluding_sites=0,
        random_state=seed,
        diagnostics=True,
    )
    print_path("Report", page)

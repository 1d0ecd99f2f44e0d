"""`dpfedc fit`: files in; model, centres, labels, run record and report out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfedc.cli.clustering import clustered, print_outcome
from dpfedc.cli.console import print_path
from dpfedc.cli.options import (
    Drop,
    Folder,
    LabelColumn,
    NamedData,
    Seed,
    SiteColumn,
    Split,
    Trust,
    Variant,
    require_count,
)
from dpfedc.cli.records import DEFAULT_SITES, Deal, given_records

_METHOD, _PRIVACY, _SIMULATION = "Method", "Privacy", "Simulated sites"


def fit(
    ctx: typer.Context,
    clusters: Annotated[
        int,
        typer.Option(
            callback=require_count,
            metavar="K",
            help="How many clusters to find.",
            show_default=False,
        ),
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILES",
            help="Tables with one record per row (.csv, .parquet, .npz, .npy). Several files: "
            "one file per site.",
            show_default=False,
        ),
    ] = None,
    output: Folder = Path("results"),
    seed: Seed = 0,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also run k-means on the pooled records.")
    ] = False,
    no_diagnostics: Annotated[
        bool,
        typer.Option(
            "--no-diagnostics",
            help="Do not measure the exact progress of each round for the report. Saves time.",
        ),
    ] = False,
    site_column: SiteColumn = None,
    label_column: LabelColumn = None,
    drop: Drop = None,
    variant: Annotated[
        Variant,
        typer.Option(
            metavar="NAME",
            help="normalized (the method as improved here) or published (as in the paper).",
            rich_help_panel=_METHOD,
        ),
    ] = Variant.NORMALIZED,
    rounds: Annotated[
        int | None,
        typer.Option(
            callback=require_count,
            metavar="N",
            help="How often the sites send their work to the server. More rounds take longer and "
            "may find better clusters.",
            show_default="chosen by the number of sites",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    sites_per_round: Annotated[
        int | None,
        typer.Option(
            callback=require_count,
            metavar="N",
            help="How many sites take part in a round.",
            show_default="all",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    nonnegative: Annotated[
        bool,
        typer.Option(
            "--nonnegative",
            help="Declare that no value is below 0 (counts, pixels). Centres then stay so too.",
            rich_help_panel=_METHOD,
        ),
    ] = False,
    epsilon: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="How much may be learnt about any one record; less is more private. For now "
            "with --variant published only, where it is the paper's claim and not a proof.",
            show_default="no noise, no privacy",
            rich_help_panel=_PRIVACY,
        ),
    ] = None,
    delta: Annotated[
        float,
        typer.Option(
            metavar="NUMBER",
            help="The probability with which the promise of --epsilon may fail.",
            rich_help_panel=_PRIVACY,
        ),
    ] = 1e-5,
    gradient_bound: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="The longest step that a site's records may ask for; longer ones are cut. "
            "Needed with --epsilon: the noise is in proportion to it.",
            show_default="no bound",
            rich_help_panel=_PRIVACY,
        ),
    ] = None,
    trust: Annotated[
        Trust,
        typer.Option(
            metavar="WHO",
            help="Who adds the noise: local (each site), secure-aggregation (the sites together) "
            "or trusted-server. With --variant published it is always each site.",
            rich_help_panel=_PRIVACY,
        ),
    ] = Trust.LOCAL,
    data: Annotated[
        NamedData | None,
        typer.Option(
            metavar="NAME",
            help="Use a data set known by name instead of FILES: digits, mnist or tcga-mirna.",
            show_default=False,
            rich_help_panel=_SIMULATION,
        ),
    ] = None,
    n_records: Annotated[
        int | None,
        typer.Option(
            callback=require_count,
            metavar="N",
            help="Take so many records of --data, drawn at random.",
            show_default="all",
            rich_help_panel=_SIMULATION,
        ),
    ] = None,
    sites: Annotated[
        int | None,
        typer.Option(
            callback=require_count,
            metavar="N",
            help="Deal the records of --data, or of one file, to so many sites.",
            show_default=f"{DEFAULT_SITES} with --data",
            rich_help_panel=_SIMULATION,
        ),
    ] = None,
    split: Annotated[
        Split | None,
        typer.Option(
            metavar="HOW",
            help="iid (at random), labels (a few labels per site), kmeans (similar records "
            "together) or dirichlet (each label in random shares).",
            show_default="iid",
            rich_help_panel=_SIMULATION,
        ),
    ] = None,
    labels_per_site: Annotated[
        int,
        typer.Option(
            callback=require_count,
            metavar="N",
            help="How many labels a site holds, with --split labels.",
            rich_help_panel=_SIMULATION,
        ),
    ] = 2,
    alpha: Annotated[
        float,
        typer.Option(
            metavar="NUMBER",
            help="How alike the sites are, with --split dirichlet; less is more different.",
            rich_help_panel=_SIMULATION,
        ),
    ] = 0.5,
) -> None:
    """Find clusters in the records of many sites.

    Writes model.npz (for predict and evaluate), centres.csv, labels.csv (site, record, cluster),
    run.jsonl (what happened in each round) and report.html into the output folder.
    """
    from dpfedc.report.content import report_content
    from dpfedc.report.folder import require_results_folder, write_results

    require_results_folder(output, inputs=files or ())
    deal = Deal(sites, split, labels_per_site, alpha, seed)
    records = given_records(
        files or (),
        data,
        n_records=n_records,
        deal=deal,
        site_column=site_column,
        label_column=label_column,
        drop=drop or (),
    )
    outcome = clustered(
        records,
        compare=compare,
        n_clusters=clusters,
        epsilon=epsilon,
        delta=delta,
        trust=str(trust),
        variant=str(variant),
        n_rounds="auto" if rounds is None else rounds,
        sites_per_round=sites_per_round,
        random_state=seed,
        diagnostics=not no_diagnostics,
        nonnegative=nonnegative,
        gradient_bound=gradient_bound,
    )
    content = report_content(outcome, title=f"Clusters in {records.name}", how_made=ctx.obj)
    page = write_results(output, outcome, content)
    print_outcome(outcome)
    print_path("Results", output)
    print_path("Report", page)

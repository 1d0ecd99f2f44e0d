"""`dpfedc fit`: files in; model, centres, labels, run record and report out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from dpfedc.cli.cluster_options import (
    AUTO,
    Clusters,
    ClusterShape,
    KRange,
    Prototypes,
    Shape,
    cluster_settings,
)
from dpfedc.cli.console import print_path
from dpfedc.cli.input_records import DEFAULT_SITES, Deal, Tables, given_records
from dpfedc.cli.options import (
    FILES_HELP,
    METHOD,
    PRIVACY,
    ColludingSites,
    DatabaseTable,
    Decimals,
    Delimiters,
    Delta,
    Drop,
    Encodings,
    Epsilon,
    Folder,
    Keep,
    LabelColumn,
    MinSurvivors,
    NamedData,
    OrderBy,
    PasswordEnv,
    PersonColumn,
    Quality,
    SamplingProbability,
    SchemaFile,
    Seed,
    SiteColumn,
    SitesPerPerson,
    Split,
    Trust,
    Variant,
    WhoIsTrusted,
    count_option,
    flag_option,
    number_option,
    privacy_settings,
)
from dpfedc.cli.trial import run_trial
from dpfedc.errors import InvalidInput

_SIMULATION = "Simulated sites"


def fit(
    ctx: typer.Context,
    clusters: Clusters,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILES", help=FILES_HELP, show_default=False),
    ] = None,
    output: Folder = Path("results"),
    seed: Seed = None,
    compare: Annotated[
        bool, flag_option("--compare", "Also run k-means on the pooled records.")
    ] = False,
    no_diagnostics: Annotated[
        bool,
        flag_option(
            "--no-diagnostics",
            "Do not measure the exact progress of each round for the report. Saves time.",
        ),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Compute with Torch on this device: cpu, cuda or cuda:1. Needs the extra gpu.",
            show_default="NumPy",
        ),
    ] = None,
    schema: SchemaFile = None,
    person_column: PersonColumn = None,
    site_column: SiteColumn = None,
    label_column: LabelColumn = None,
    drop: Drop = None,
    keep: Keep = None,
    delimiter: Delimiters = None,
    encoding: Encodings = None,
    decimal: Decimals = None,
    table: DatabaseTable = None,
    order_by: OrderBy = None,
    password_env: PasswordEnv = None,
    k_range: KRange = None,
    shape: ClusterShape = Shape.AUTO,
    prototypes: Prototypes = None,
    variant: Annotated[
        Variant,
        typer.Option(
            metavar="NAME",
            help="normalized (the method as improved here) or published (as in the paper).",
            rich_help_panel=METHOD,
        ),
    ] = Variant.NORMALIZED,
    quality: Quality = False,
    rounds: Annotated[
        int | None,
        count_option(
            "Rounds of the search for clusters. Every round needs its share of the budget.",
            show_default="chosen by the planner",
            rich_help_panel=METHOD,
        ),
    ] = None,
    sites_per_round: Annotated[
        int | None,
        count_option(
            "How many sites take part in a round.", show_default="all", rich_help_panel=METHOD
        ),
    ] = None,
    nonnegative: Annotated[
        bool,
        flag_option(
            "--nonnegative",
            "Declare that no value is below 0 (counts, pixels). Centres then stay so too.",
            rich_help_panel=METHOD,
        ),
    ] = False,
    epsilon: Epsilon = None,
    delta: Delta = 1e-5,
    trust: WhoIsTrusted = Trust.LOCAL,
    no_noise: Annotated[
        bool,
        flag_option(
            "--no-noise",
            "Add no noise. The result is then not private at all.",
            rich_help_panel=PRIVACY,
        ),
    ] = False,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Charge this trial to a ledger, as a deployed site would; it is refused if it is "
            "more than is left of the cap. `dpfedc ledger init` makes one.",
            show_default="trials are not charged",
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    norm_bound: Annotated[
        float | None,
        number_option(
            "No record is longer than this (the root of the sum of its squared values); longer "
            "ones are cut. It must be known without a look at the data.",
            show_default="found out with 1 % of the budget",
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    scale_columns: Annotated[
        bool,
        flag_option(
            "--scale-columns",
            "Bring all columns to like spread, which is found out with 25 % of the budget: for "
            "columns in different units, where no schema says their ranges.",
            rich_help_panel=PRIVACY,
        ),
    ] = False,
    sites_per_person: SitesPerPerson = None,
    min_survivors: MinSurvivors = None,
    colluding_sites: ColludingSites = None,
    sampling_probability: SamplingProbability = 1.0,
    gradient_bound: Annotated[
        float | None,
        number_option(
            "With --variant published: the longest step that a site's records may ask for; longer "
            "ones are cut. Needed unless --no-noise is given.",
            show_default="no bound",
            rich_help_panel=PRIVACY,
        ),
    ] = None,
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
        count_option(
            "Take so many records of --data, drawn at random.",
            show_default="all",
            rich_help_panel=_SIMULATION,
        ),
    ] = None,
    sites: Annotated[
        int | None,
        count_option(
            "Deal the records of --data, or of one file, to so many sites.",
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
        count_option(
            "How many labels a site holds, with --split labels.",
            rich_help_panel=_SIMULATION,
        ),
    ] = 2,
    alpha: Annotated[
        float,
        number_option(
            "How alike the sites are, with --split dirichlet; less is more different.",
            rich_help_panel=_SIMULATION,
        ),
    ] = 0.5,
) -> None:
    """Find clusters in the records of many sites, with noise that hides every single record.

    FILES are tables: .csv or .tsv (also .gz), .parquet, .arrow, .xlsx, .npz or .npy, or a database
    URL with --table. Several: one for each site. With --schema, tables are taken as they stand:
    categories, gaps, several rows per person. Without it, all columns must be numbers.
    Writes model.npz (for predict and evaluate), centres.csv, prototypes.csv if clusters are made
    of several each, labels.csv (site, id, cluster), run.jsonl (what happened in each round) and
    report.html into the output folder.
    """
    options = locals()
    from dpfedc.report.folder import require_results_folder

    privacy = privacy_settings(
        epsilon=epsilon,
        no_noise=no_noise,
        delta=delta,
        trust=trust,
        min_survivors=min_survivors,
        colluding_sites=colluding_sites,
        sampling_probability=sampling_probability,
    )
    if variant is Variant.PUBLISHED:
        asked = {
            "--quality": quality,
            "--scale-columns": scale_columns,
            "--clusters auto": clusters == AUTO,
            "--shape any": shape is Shape.ANY,
            "--prototypes": prototypes is not None,
        }
        _require_published(asked, has_bound=gradient_bound is not None or no_noise)
    tables = Tables.of(options)
    require_results_folder(output, inputs=tables.paths)
    deal = Deal(sites, split, labels_per_site, alpha, seed or 0)
    given = given_records(tables, data, n_records=n_records, deal=deal)
    page = run_trial(
        given,
        output,
        title=f"Clusters in {given.name}",
        command=ctx.obj,
        compare=compare,
        **cluster_settings(clusters, k_range, shape, prototypes),
        **privacy,
        ledger=ledger,
        norm_bound="auto" if norm_bound is None else norm_bound,
        scale="columns" if scale_columns else True,
        variant=str(variant),
        n_rounds="auto" if rounds is None else rounds,
        sites_per_round=sites_per_round,
        random_state=seed,
        diagnostics=not no_diagnostics,
        nonnegative=nonnegative,
        quality=quality,
        gradient_bound=gradient_bound,
        device=device,
    )
    print_path("Results", output)
    print_path("Report", page)


def _require_published(asked: Mapping[str, bool], *, has_bound: bool) -> None:
    """Say what the paper's own method does not have, before what it lacks."""
    for option, is_given in asked.items():
        if is_given:
            raise InvalidInput(f"{option} and --variant published exclude each other, got both")
    if not has_bound:
        raise InvalidInput("--variant published needs --gradient-bound or --no-noise, got neither")

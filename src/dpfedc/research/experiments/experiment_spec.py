"""What an experiment runs: a grid written in a TOML file, and the cells that it comes to.

A file has a name, a title, a `[grid]` of axes, one `[data.NAME]` table for every data set, and one
`[[methods]]` table for every method. The cells are the product of the axes with the methods'
variants and trust models; a method may have axes of its own. One that is `called` by a name has it
in place of its variant, and another may be `like` it. `[quick]` replaces parts of it by something
that runs anywhere in a minute. See `table-1.toml` and `reproduction.toml` for all keys in use.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

from dpfedc.errors import InvalidInput
from dpfedc.research.datasets import LOADERS
from dpfedc.research.experiments.compared_methods import METHODS, PER_ROUND, variant_setting
from dpfedc.settings import TRUST_MODELS, require_choice, require_integer, require_number

PARTITIONS = ("iid", "non-iid")
NON_IID = ("two-labels", "k-means-cells")
SHOWN = ("table", "rounds", "frontier", "convergence", "reproduction")
"""How the report shows an experiment."""
TRACKED = ("nothing", "objective", "objective and accuracy")

Settings = tuple[tuple[str, Any], ...]
"""Settings of an estimator, sorted by name, so that a cell can be compared and hashed."""

_TOP = {"name", "title", "paper", "shown", "track", "grid", "data", "methods", "quick"}
_GRID = {"data", "partitions", "epsilons", "sites_per_round", "seeds", "settings"}
_DATA = {"n_clusters", "n_sites", "n_records", "non_iid"}
_AXES = ("data", "partitions", "epsilons", "sites_per_round", "seeds")
_SETTINGS = ("settings", "settings_of", "noisy_settings", "noisy_settings_of")
_METHOD = {
    "name", "called", "like", "variants", "trusts", "units", "noisy_stamps", "track", *_AXES,
    *_SETTINGS,
}  # fmt: skip
_QUICK = {"grid", "data", "settings"}


@dataclass(frozen=True)
class DataSpec:
    """A data set, how much of it, and how it is dealt to sites when not at random.

    Its values are multiplied by `unit`.
    """

    name: str
    n_clusters: int
    n_sites: int
    non_iid: str
    n_records: int | None = None
    unit: float = 1.0


@dataclass(frozen=True)
class Cell:
    """One run. `epsilon` None adds no noise, and then `trust` is empty.

    `variant` is what tells rows of one method apart, and empty where there is one. For
    `sites_per_round` None takes all sites. `stamps` are added to those of the run. `track` is what
    this run tracks if it is more than the experiment does.
    """

    method: str
    data: DataSpec
    partition: str
    epsilon: float | None
    trust: str
    variant: str
    sites_per_round: int | None
    seed: int
    settings: Settings = ()
    stamps: tuple[str, ...] = ()
    track: str = ""

    @property
    def id(self) -> str:
        """A name for files: what one reads first, and a hash of everything."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "data"}
        values["data"] = {f.name: getattr(self.data, f.name) for f in fields(self.data)}
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        noise = "exact" if self.epsilon is None else f"{self.epsilon:g}-{self.trust}"
        words = (self.method, self.variant, self.data.name, self.partition, noise, str(self.seed))
        return "_".join(word for word in (*words, digest[:8]) if word)


@dataclass(frozen=True)
class Experiment:
    """A named list of cells, in the order they are run: all of one seed before the next.

    `paper` is the part of the paper it repeats; `shown` and `track` are of SHOWN and TRACKED.
    """

    name: str
    title: str
    paper: str
    shown: str
    track: str
    cells: tuple[Cell, ...]
    quick_cells: tuple[Cell, ...]


def experiment_names() -> list[str]:
    """Return the names of the experiments that come with the package, sorted."""
    files = resources.files("dpfedc.research.experiments").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def named_experiment(name: str) -> Experiment:
    """Return the experiment that comes with the package under this name."""
    require_choice("experiment", name, tuple(experiment_names()))
    text = (resources.files("dpfedc.research.experiments") / f"{name}.toml").read_text(
        encoding="utf-8"
    )
    return parsed_experiment(text, f"{name}.toml")


def read_experiment(path: Path) -> Experiment:
    """Return the experiment of a file of the user's own."""
    try:
        return parsed_experiment(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} must be a TOML file in UTF-8, got: {error.reason}") from error


def parsed_experiment(text: str, source: str) -> Experiment:
    """Return the experiment that a TOML text describes; `source` stands for it in messages."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{source} must be TOML, got: {error}") from error
    try:
        return _experiment(table)
    except InvalidInput as error:
        raise InvalidInput(f"{source}: {error}") from error


def _experiment(table: Mapping[str, Any]) -> Experiment:
    _require_keys("the file", table, _TOP, needed={"name", "title", "grid", "data", "methods"})
    quick = table.get("quick", {})
    _require_keys("[quick]", quick, _QUICK)
    small = {
        **table,
        "grid": {**table["grid"], **quick.get("grid", {})},
        "data": {**table["data"], **quick.get("data", {})},
    }
    return Experiment(
        name=_slug("name", table["name"]),
        title=_text("title", table["title"]),
        paper=_text("paper", table.get("paper", "ours")),
        shown=require_choice("shown", table.get("shown", "table"), SHOWN),
        track=require_choice("track", table.get("track", "nothing"), TRACKED),
        cells=tuple(dict.fromkeys(_cells(table, {}, ()))),
        quick_cells=tuple(
            dict.fromkeys(_cells(small, quick.get("settings", {}), quick.get("grid", ())))
        ),
    )


def _cells(
    table: Mapping[str, Any], overrides: Mapping[str, Any], common: Collection[str]
) -> Iterator[Cell]:
    """Yield the product of the axes; a cell may come more than once.

    `overrides` replace settings that a method or the grid has given, and add none. Axes in `common`
    are the grid's for every method.
    """
    grid = table["grid"]
    _require_keys("[grid]", grid, _GRID, needed=_GRID - {"settings"})
    data = {name: _data(name, entry) for name, entry in _table("[data]", table["data"]).items()}
    rules = _methods(_list("methods", table["methods"]))
    axes = [
        {
            axis: _list(axis, grid[axis] if axis in common else rule.get(axis, grid[axis]))
            for axis in _AXES
        }
        for rule in rules
    ]
    for name in (name for own in axes for name in own["data"]):
        require_choice("grid.data", name, tuple(data))
    seeds = {require_integer("seeds", seed, least=0) for own in axes for seed in own["seeds"]}
    names = dict.fromkeys(name for own in axes for name in own["data"])
    varied = [_table("grid.settings", entry) for entry in grid.get("settings", [{}])]
    for seed, name, (rule, own), more in product(
        sorted(seeds), names, zip(rules, axes, strict=True), varied
    ):
        if seed not in own["seeds"] or name not in own["data"]:
            continue
        unit = _table("units", rule.get("units", {})).get(name, 1.0)
        for partition, level, count, trust, variant in product(
            own["partitions"], own["epsilons"], own["sites_per_round"], rule["trusts"],
            rule["variants"],
        ):  # fmt: skip
            epsilon = _epsilon(level)
            settings = {**_settings(rule, name, ""), **more}
            if epsilon is not None:
                settings |= _settings(rule, name, "noisy_")
            settings |= {key: overrides[key] for key in overrides if key in settings}
            if "called" in rule:
                settings |= variant_setting(variant)
            exact = epsilon is None and variant == PER_ROUND
            yield Cell(
                method=rule["name"],
                data=replace(data[name], unit=require_number("units", unit, above=0)),
                partition=require_choice("partitions", partition, PARTITIONS),
                epsilon=epsilon,
                trust="" if epsilon is None else trust,
                variant=rule.get("called", "" if exact else variant),
                sites_per_round=_sites_per_round(rule["name"], count, data[name]),
                seed=seed,
                settings=tuple(sorted(settings.items())),
                stamps=tuple(rule.get("noisy_stamps", ())) if epsilon is not None else (),
                track=rule.get("track", ""),
            )


def _data(name: str, entry: Any) -> DataSpec:
    require_choice("[data]", name, tuple(LOADERS))
    where = f"[data.{name}]"
    _require_keys(where, entry, _DATA, needed=_DATA - {"n_records"})
    n_records = entry.get("n_records")
    return DataSpec(
        name=name,
        n_clusters=require_integer(f"{where} n_clusters", entry["n_clusters"], least=2),
        n_sites=require_integer(f"{where} n_sites", entry["n_sites"], least=1),
        non_iid=require_choice(f"{where} non_iid", entry["non_iid"], NON_IID),
        n_records=None if n_records is None else require_integer("n_records", n_records, least=2),
    )


def _methods(entries: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the checked tables of all methods."""
    rules: list[dict[str, Any]] = []
    for entry in entries:
        model: Mapping[str, Any] = {}
        if "like" in _table("[[methods]]", entry):
            named = {rule["called"]: rule for rule in rules if "called" in rule}
            model = named[require_choice("like", entry["like"], tuple(named))]
        rules.append(_method(entry, model))
    return rules


def _method(entry: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checked table of a method, filled in from the one that it is like."""
    _require_keys("[[methods]]", entry, _METHOD, needed=set() if model else {"name"})
    both = {**model, **entry}
    for key in _SETTINGS:
        _table(f"{key} of {both['name']}", entry.get(key, {}))
        both[key] = {**model.get(key, {}), **entry.get(key, {})}
    name = require_choice("method", both["name"], tuple(METHODS))
    allowed = METHODS[name].variants
    variants = _list("variants", both.get("variants", [allowed[0]]))
    for variant in variants:
        require_choice(f"variants of {name}", variant, allowed)
    trusts = _list("trusts", both.get("trusts", ["local"]))
    for trust in trusts:
        require_choice("trusts", trust, TRUST_MODELS)
    if "called" in both:
        both["called"] = _slug("called", both["called"])
        if len(variants) > 1:
            raise InvalidInput(f"a method that is called must have one variant, got {variants}")
    if both.get("track"):
        require_choice("track", both["track"], TRACKED)
    return {**both, "variants": variants, "trusts": trusts}


def _settings(rule: Mapping[str, Any], data: str, kind: str) -> dict[str, Any]:
    """Return the method's settings of a kind, those for this data set last."""
    return {**rule.get(f"{kind}settings", {}), **rule.get(f"{kind}settings_of", {}).get(data, {})}


def _epsilon(level: Any) -> float | None:
    if level == "none":
        return None
    if isinstance(level, str):
        raise InvalidInput(f'epsilons must be numbers > 0 or "none", got {level!r}')
    return require_number("epsilons", level, above=0)


def _sites_per_round(method: str, count: Any, data: DataSpec) -> int | None:
    """Return K, or None for all sites and for a method that pools the records."""
    if not METHODS[method].federated or count == "all":
        return None
    if isinstance(count, str):
        raise InvalidInput(f'sites_per_round must be whole numbers or "all", got {count!r}')
    return require_integer("sites_per_round", count, least=1, most=data.n_sites)


def _require_keys(
    where: str, table: Any, known: set[str], needed: set[str] | frozenset[str] = frozenset()
) -> None:
    """Say which key is unknown or missing."""
    _table(where, table)
    for key in table:
        if key not in known:
            raise InvalidInput(f"{where} may have {', '.join(sorted(known))}; got {key!r}")
    missing = sorted(needed - table.keys())
    if missing:
        raise InvalidInput(f"{where} must have {missing[0]}, got only {', '.join(sorted(table))}")


def _table(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{where} must be a table, got {value!r}")
    return value


def _list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise InvalidInput(f"{where} must be a list with at least one entry, got {value!r}")
    return value


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{where} must be a text, got {value!r}")
    return value


def _slug(where: str, value: Any) -> str:
    """Return what becomes part of the name of a folder or file."""
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]*", _text(where, value)):
        raise InvalidInput(f"{where} must be letters, digits, '.', '_' or '-', got {value!r}")
    return str(value)

"""The methods by name. Each is imported when it is asked for, so that a site loads only its own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dpfedc.clustering.method import Method
from dpfedc.errors import InvalidInput

_PLACES: dict[str, str | Method] = {
    "dp-fedc": "dpfedc.clustering.dp_fedc_planner:DP_FEDC",
    "dp-lloyd": "dpfedc.clustering.lloyd_planner:DP_LLOYD",
    "federated-k-means": "dpfedc.clustering.lloyd_planner:FEDERATED_KMEANS",
    "published": "dpfedc.research.published.published_planner:PUBLISHED",
}
_NOT_PROVED = frozenset({"published"})


def method_named(name: Any) -> Method:
    """Return the method of this name."""
    if not isinstance(name, str) or name not in _PLACES:
        raise InvalidInput(f"method must be one of {', '.join(proved_methods())}, got {name!r}")
    place = _PLACES[name]
    if isinstance(place, str):
        module, _, attribute = place.partition(":")
        place = getattr(import_module(module), attribute)
    if not isinstance(place, Method):
        raise InvalidInput(f"{_PLACES[name]} must be a Method, got {place!r}")
    return place


def proved_methods() -> tuple[str, ...]:
    """Return the names of the methods whose every release has a proved sensitivity."""
    return tuple(
        name
        for name, place in _PLACES.items()
        if name not in _NOT_PROVED and getattr(place, "proved", True)
    )


def register(method: Method) -> None:
    """Make a method known by its name, in place of any other of that name."""
    _PLACES[method.name] = method

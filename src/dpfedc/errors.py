"""One exception tree. Every message says what is wrong, what was got and what was expected."""

from collections.abc import Sequence


class DPFedCError(Exception):
    """Anything this package raises on purpose."""


class InvalidInput(DPFedCError, ValueError):
    """Data or a setting that cannot be used."""


class DataUnavailable(DPFedCError, OSError):
    """A data file that is neither here nor to be fetched, or is damaged."""


class OutsideConditions(DPFedCError, ValueError):
    """A theorem was asked for a value where its conditions do not hold."""


class MissingExtra(DPFedCError, ImportError):
    """A feature needs a package that is installed by one of the extras."""


class NotFound(DPFedCError):
    """What a run must know of the data does not stand out from its noise; says what to declare.

    `features` are the places of the columns that it is about, where it is about some of them.
    """

    def __init__(self, reason: str, features: Sequence[int] = ()) -> None:
        super().__init__(reason, tuple(features))
        self.reason, self.features = reason, tuple(features)

    def naming(self, names: Sequence[str] | None) -> "NotFound":
        """Return the same with the names of the features in front."""
        if not self.features or names is None:
            return self
        which = ", ".join(names[place] for place in self.features)
        return NotFound(f"{which}: {self.reason}", self.features)

    def __str__(self) -> str:
        return self.reason


class Refused(DPFedCError):
    """A site refuses; the reason depends on ledger, plan and broadcast only, never on data."""


class RoundSpent(Refused):
    """The round will never be answered here: it is charged, or its secrets are of no use."""


class RunClosed(Refused):
    """The run is closed here, for good: no round of it will be answered."""


class UtilityWarning(UserWarning):
    """The run is valid, but its result is likely to be poor."""


class BudgetWarning(UserWarning):
    """The same records have been clustered before in this process; the cost adds up."""


def printable(text: str) -> str:
    """Return text for a terminal or a log: others may have put into it what moves the cursor."""
    return "".join(c if c.isprintable() else " " for c in text)

"""One exception tree. Every message says what is wrong, what was got and what was expected."""


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


class Refused(DPFedCError):
    """A site refuses; the reason depends on ledger, plan and broadcast only, never on data."""


class UtilityWarning(UserWarning):
    """The run is valid, but its result is likely to be poor."""


class BudgetWarning(UserWarning):
    """The same records have been clustered before in this process; the cost adds up."""

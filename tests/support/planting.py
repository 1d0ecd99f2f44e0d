"""Plants a bug in the one place where a rule is written, whoever has imported it by then."""

from types import FunctionType


def plant(monkeypatch, function, bug):
    """Let `function(...)` be `bug(right, ...)`, with the right function to call.

    The code is replaced, not a name: a second copy of the rule would go on as before. One function
    of a module at a time.
    """
    right = FunctionType(function.__code__, function.__globals__, argdefs=function.__defaults__)
    right.__kwdefaults__ = function.__kwdefaults__

    def planted(*args, **named):
        return bug(right, *args, **named)

    monkeypatch.setitem(function.__globals__, "_planted", planted)
    monkeypatch.setattr(function, "__code__", _calls_the_planted.__code__)


def _calls_the_planted(*args, **named):
    return _planted(*args, **named)  # noqa: F821  # found where the rule is written

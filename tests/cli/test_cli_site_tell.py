"""What a site prints for its operator."""

import io
import sys

from dpfedc.cli.site import tell


def test_a_terminal_without_the_letters_still_gets_the_line(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    tell("run \N{SNOWMAN} is offered")
    assert written.getvalue().decode("ascii").endswith(" run \\u2603 is offered\n")

"""What is printed for an operator, whatever letters others put into it."""

import io
import sys
from pathlib import Path

import pytest

from dpfedc.cli import console
from dpfedc.cli.site import tell

WORDS = "run \N{SNOWMAN} is offered"
PRINTERS = {
    "tell": tell,
    "a sentence": console.print_sentence,
    "paragraphs": lambda text: console.print_paragraphs([f"Name: {text}", text]),
    "a table": lambda text: console.print_table((text, "n"), [(text, 1)]),
    "a path": lambda text: console.print_path(text, Path("a")),
}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("how", PRINTERS)
def test_a_terminal_without_the_letters_still_gets_the_line(monkeypatch, how, encoding):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    PRINTERS[how](WORDS)
    sys.stdout.flush()
    assert r"run \u2603 is offered" in written.getvalue().decode(encoding)

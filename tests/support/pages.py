"""Pages that are parsed, and pictures that are decoded and measured."""

from __future__ import annotations

import struct
from base64 import b64decode
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
from matplotlib.colors import to_rgb
from PIL import Image

VOID = {"meta", "link", "img", "br", "hr", "rect", "line", "polyline", "circle"}
INLINED = "data:image/png;base64,"


class Page(HTMLParser):
    """Parse a page, refuse unbalanced tags, and keep tags, attributes and visible text.

    `outside` is the text that does not stand in the part with the trial's exact values.
    """

    def __init__(self, source):
        super().__init__()
        self.open, self.tags, self.text, self.outside = [], [], "", ""
        self.source = source if isinstance(source, str) else source.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert not self.open, f"never closed: {self.open}"
        self.text, self.outside = (" ".join(t.split()) for t in (self.text, self.outside))

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names))
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, dict(attrs).get("class") or ""))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if "style" not in {tag for tag, _ in self.open}:
            self.text += data
            if not any("exact" in name.split() for _, name in self.open):
                self.outside += data

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]

    def pictures(self):
        """Return the PNG files in the page."""
        found = [image["src"] for image in self.all("img")]
        assert all(source.startswith(INLINED) for source in found)
        return [b64decode(source.removeprefix(INLINED)) for source in found]


def pixels(png):
    with Image.open(BytesIO(png)) as image:
        image.load()
        return np.asarray(image.convert("RGB"), dtype=float)


def mask(png, color, tolerance=6):
    return (np.abs(pixels(png) - 255 * np.array(to_rgb(color))) < tolerance).all(axis=2)


def chunks(png):
    """Return the names of the parts of a PNG file."""
    names, at = [], 8
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        names.append(png[at + 4 : at + 8].decode())
        at += 12 + size
    return names

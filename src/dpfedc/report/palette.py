"""The colours of all pages and figures."""

from __future__ import annotations

INK, SOFT, RULE, GRID, SHADE = "#1f2933", "#5b6770", "#b6c0c8", "#dde3e8", "#e9eef3"
"""Figures, on white: text, lesser text, axes, grid lines, and the ground of every second stage."""
ACCENT = "#0b62a4"

# Tol's "muted" scheme: ten colours that remain distinct with any colour vision.
CLUSTERS: tuple[str, ...] = ("#332288", "#88ccee", "#44aa99", "#117733", "#999933")
CLUSTERS += ("#ddcc77", "#cc6677", "#882255", "#aa4499", "#bbbbbb")

# The accent and, of Tol's schemes, what stays distinct also as a thin line.
LINES: tuple[str, ...] = (ACCENT, "#cc3311", "#117733", "#aa4499")
LINES += ("#999933", "#332288", "#44aa99", "#882255")

LIGHT = {
    "paper": "#f6f8fa", "card": "#fff", "ink": INK, "soft": "#56626c", "rule": "#d5dce2",
    "accent": ACCENT, "tint": "#eaf3fa", "note": "#7a4a00", "note-tint": "#fff4dc",
    "open": "#a3211d", "held": "#17693a", "above": "#e08a2c", "below": "#3d8fd1",
    "above-ink": "#8f4e00", "below-ink": "#0b5d9c",
}  # fmt: skip
"""What a page's style sheet calls its colours, on light ground and on dark."""
DARK = {
    "paper": "#14191e", "card": "#1c232a", "ink": "#e4e9ed", "soft": "#a3b0ba", "rule": "#36414b",
    "accent": "#6cb4ea", "tint": "#17293a", "note": "#f2c879", "note-tint": "#3a2e14",
    "open": "#ff9d94", "held": "#7fd6a0", "above": "#c87a26", "below": "#2f7fc0",
    "above-ink": "#f0b26b", "below-ink": "#82c0f0",
}  # fmt: skip

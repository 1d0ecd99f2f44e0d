"""How the page looks: its frame and its style sheet. Nothing is loaded from elsewhere."""

from __future__ import annotations

from string import Template

PAGE = Template("""\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>$title</title>
<style>
$style</style></head>
<body><main>
$body
</main></body></html>
""")

STYLE = """\
:root { color-scheme: light dark; --paper: #f6f8fa; --card: #fff; --ink: #1f2933; --soft: #56626c;
  --rule: #d5dce2; --accent: #0b62a4; --tint: #eaf3fa; --note: #7a4a00; --note-tint: #fff4dc;
  --open: #a3211d; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #14191e; --card: #1c232a; --ink: #e4e9ed; --soft: #a3b0ba; --rule: #36414b;
    --accent: #6cb4ea; --tint: #17293a; --note: #f2c879; --note-tint: #3a2e14;
    --open: #ff9d94; }
  img { padding: .6rem; } }
* { box-sizing: border-box; } section { margin-top: 2.25rem; } p { margin: 0 0 .6rem; }
body { margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: break-word;
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: clamp(1rem, 4vw, 3rem); }
header, table, pre, .privacy { max-width: 48rem; }
h1 { font-size: clamp(1.5rem, 1.1rem + 2vw, 2.25rem); line-height: 1.2; margin: 0; }
h2 { font-size: 1.25rem; line-height: 1.3; } h3 { font-size: 1rem; } h2, h3 { margin: 0 0 .75rem; }
.made { color: var(--soft); margin: .35rem 0 1rem; } .summary { font-size: 1.0625rem; }
.stamps { display: flex; flex-wrap: wrap; gap: .5rem; list-style: none; margin: 0 0 1rem;
  padding: 0; }
.stamps li { background: var(--note-tint); color: var(--note); border: 1px solid currentcolor;
  border-radius: 1rem; padding: .1rem .75rem; font-size: .875rem; font-weight: 600; min-width: 0; }
.privacy { background: var(--tint); border-left: .3rem solid var(--accent); border-radius: .4rem;
  padding: 1.1rem 1.25rem .6rem; }
.privacy h2, summary { color: var(--accent); } .privacy table { margin: 1rem 0 .5rem; }
.privacy .open { color: var(--open); } .wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem; }
th, td { padding: .45rem 0 .45rem .75rem; border-bottom: 1px solid var(--rule); text-align: right;
  vertical-align: top; font-weight: 400; }
th:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--soft); font-size: .875rem; border-bottom-width: 2px; }
.settings td { overflow-wrap: anywhere; min-width: 6rem; } .settings * { text-align: left; }
.figures { display: grid; gap: 1.25rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.figures h2 { grid-column: 1 / -1; margin: 0; }
figure, pre { margin: 0; padding: clamp(.75rem, 2vw, 1.25rem); background: var(--card);
  border: 1px solid var(--rule); border-radius: .5rem; }
img { display: block; max-width: 100%; height: auto; margin: 0 auto; background: #fff;
  border-radius: .25rem; }
figcaption { color: var(--soft); font-size: .875rem; line-height: 1.5; margin-top: .75rem; }
summary { cursor: pointer; margin-bottom: .75rem; width: fit-content; }
pre { white-space: pre-wrap; font-size: .875rem; }
pre span { display: inline-block; max-width: 100%; }
@media print {
  :root { --paper: #fff; } main { max-width: none; padding: 0; }
  figure, tr, .privacy, pre { break-inside: avoid; } h2, h3, caption { break-after: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; } }
"""

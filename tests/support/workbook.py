"""A workbook of one sheet, as spreadsheet programs write it."""

import zipfile
from datetime import date
from xml.sax.saxutils import escape

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_REL = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_PARTS = {
    "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"><Default Extension="xml" '
    'ContentType="application/xml"/><Default Extension="rels" '
    'ContentType="application/vnd.openxmlformats-package.relationships+xml"/></Types>',
    "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="r" '
    f'Type="{_REL}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_REL}"><sheets><sheet name="s" '
    'sheetId="1" r:id="r1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship '
    f'Id="r1" Type="{_REL}/worksheet" Target="worksheets/sheet1.xml"/><Relationship Id="r2" '
    f'Type="{_REL}/styles" Target="styles.xml"/></Relationships>',
    "xl/styles.xml": f'<styleSheet xmlns="{_MAIN}"><cellXfs count="2"><xf numFmtId="0"/>'
    '<xf numFmtId="14"/></cellXfs></styleSheet>',
}


def write_workbook(path, rows, *, first_row=1):
    """Write rows of numbers, texts, truth values, dates and None."""
    lines = (
        "".join(_cell(f"{_letters(j)}{i}", value) for j, value in enumerate(row))
        for i, row in enumerate(rows, first_row)
    )
    body = "".join(f'<row r="{i}">{line}</row>' for i, line in enumerate(lines, first_row))
    sheet = f'<worksheet xmlns="{_MAIN}"><sheetData>{body}</sheetData></worksheet>'
    with zipfile.ZipFile(path, "w") as book:
        for name, content in {**_PARTS, "xl/worksheets/sheet1.xml": sheet}.items():
            book.writestr(name, f'<?xml version="1.0" encoding="UTF-8"?>{content}')
    return path


def _letters(j):
    return chr(ord("A") + j)


def _cell(place, value):
    if value is None:
        return ""
    if isinstance(value, str):
        return f'<c r="{place}" t="inlineStr"><is><t>{escape(value)}</t></is></c>'
    if isinstance(value, bool):
        return f'<c r="{place}" t="b"><v>{int(value)}</v></c>'
    if isinstance(value, date):
        return f'<c r="{place}" s="1"><v>{(value - date(1899, 12, 30)).days}</v></c>'
    return f'<c r="{place}"><v>{value!r}</v></c>'

"""The one table that every command prints: readable in any width, and honest about what it leaves out."""

from __future__ import annotations

import re

import pytest

from devmem.cli.output import print_table

COLUMNS = ("name", "shape", "bytes", "path", "from")
ROWS = [
    ("one with a rather long name, in words", "344×403", "1,234,567,890", "direct", "a sample"),
    ("x", "()", "8", "packed and then some more", "a_file_with_a_long_name_that_has_no_blanks.npy"),
]


def shown(capsys, monkeypatch, width, **options):
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(COLUMNS, ROWS, right="bytes", **options)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    return text


def columns_of(text):
    """What stands under each heading, with folded lines put together."""
    lines = [line.rstrip()[1:-1] for line in text.splitlines() if line[:1] and line[:1] in "│┃"]
    cells = [[cell.strip() for cell in re.split("[│┃]", line)] for line in lines]
    return {column[0]: "".join("".join(column[1:]).split()) for column in zip(*cells, strict=True)}


@pytest.mark.parametrize("width", [85, 100, 200])
def test_text_is_folded_and_numbers_are_not(capsys, monkeypatch, width):
    text = shown(capsys, monkeypatch, width)
    assert "1,234,567,890" in text
    want = {name: "".join("".join(cells).split()) for name, cells in zip(COLUMNS, zip(*ROWS, strict=True), strict=True)}
    assert columns_of(text) == want


@pytest.mark.parametrize("width", [40, 42, 60, 80, 100, 120])
def test_names_are_never_broken(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    stack = "limit:4GiB,statistics,pool,stream_ordered"
    print_table(("stack", "reason", "calls"), [(stack, "words " * 20, "12,345")] * 2, right="calls")
    assert capsys.readouterr().out.count(stack) == (2 if width > len(stack) else 0)


def test_a_platform_is_not_broken_in_a_terminal_of_fifty_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    platform = "Linux-6.18.44-fc-v669-x86_64-with-glibc2.36"
    found = f"python 3.11.7, platform {platform}, devmem 0.2.0, numpy 2.4.6"
    print_table(
        ("check", "verdict", "found", "what to do"), [("devmem", "ok", found, ""), ("core", "ok", "compiled", "")]
    )
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 50
    assert f"{platform}," in text
    assert found in " ".join(text.split())


def test_what_is_left_out_is_said_and_the_first_named_goes_first(capsys, monkeypatch):
    text = shown(capsys, monkeypatch, 70, optional=("from", "path"))
    assert "Left out for want of room: from." in text
    assert "path" in columns_of(text)
    text = shown(capsys, monkeypatch, 50, optional=("from", "path"))
    assert "Left out for want of room: from; path." in text
    assert set(columns_of(text)) == {"name", "shape", "bytes"}


def test_nothing_is_left_out_where_there_is_room(capsys, monkeypatch):
    text = shown(capsys, monkeypatch, 200, optional=("from", "path"))
    assert set(columns_of(text)) == set(COLUMNS)
    assert "Left out" not in text


@pytest.mark.parametrize("width", [25, 40, 60])
def test_row_by_row_where_no_table_fits(capsys, monkeypatch, width):
    text = shown(capsys, monkeypatch, width, title="Arrays")
    assert "│" not in text
    assert text.startswith("Arrays\n")
    assert "bytes 1,234,567,890" in text
    flat = "".join(text.split())
    for row in ROWS:
        for cell in row:
            assert "".join(cell.split()) in flat


def test_an_empty_cell_has_no_line_of_its_own(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    print_table(("name", "reason for it", "size"), [("a name", "", "12")], right="size")
    assert "reason" not in capsys.readouterr().out


def test_a_table_without_rows_has_its_heading(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    print_table(("one", "two"), [])
    assert "one" in capsys.readouterr().out

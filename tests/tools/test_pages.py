"""The committed pages are what the tools write.

Where a page shows what was measured, its last digits are those of the machine: there the rest is compared.
"""

from __future__ import annotations

import pytest

from sinkscope.attention import CATALOG
from tests.caches import contract as streams
from tests.caches.families import EVERY as EVERY_STREAM
from tests.caches.families import REFUSALS, STREAMS
from tests.families import contract
from tests.families.registry import COLLECTED, FAMILIES, REFUSED
from tests.families.sweep import table as sweep
from tools.pages import DOCS, families, observers, streaming, zoo

ERROR = 3  # the column of the table of families whose digits are those of the machine
EXPECTED = (
    [(name, host) for name, family in FAMILIES.items() for host in family.hosts]
    + [(name, "its own") for name in COLLECTED]
    + [(f"lab: {name}", "its own") for name in CATALOG]
    + [(name, "its own") for name in REFUSED]
)


@pytest.mark.parametrize("tool", [zoo, observers], ids=lambda tool: tool.__name__)
def test_a_page_of_text_is_that_of_the_code(tool) -> None:
    for name, text in tool.pages().items():
        assert committed(name) == text, f"write it again: python -m {tool.__name__}"


def committed(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def cells(table: str) -> list[list[str]]:
    """The rows of a Markdown table, without its head."""
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def families_of(page: str) -> str:
    """The page without the sweep over all model types."""
    return page.partition(sweep.TITLE)[0]


def test_the_docs_show_what_the_sweep_found() -> None:
    assert committed("families.md").endswith(sweep.section())


def test_the_docs_list_what_the_registry_holds() -> None:
    assert [(row[0], row[1]) for row in cells(families_of(committed("families.md")))] == EXPECTED


def test_no_row_of_the_docs_is_red() -> None:
    rows = {name: row for name, *row in cells(families_of(committed("families.md")))}
    for name, (_, calls, error, unchanged) in rows.items():
        if name in REFUSED:
            assert calls.startswith("refused: family '")
        else:
            seen, layers = calls.split(" (")[0].split(" / ")
            assert seen == layers
            assert float(error) <= contract.TOLERANCE
            assert unchanged == "yes"


@pytest.mark.release
def test_the_table_is_made_of_the_same_rows() -> None:
    rows = cells(families_of(families.pages()["families.md"]))
    missing = [name for name, family in (FAMILIES | COLLECTED | REFUSED).items() if not family.exists]
    faults = [(name, host) for name, family in FAMILIES.items() for host in family.hosts if family.obstacle(host)]
    expected = [(name, host) for name, host in EXPECTED if name not in missing and (name, host) not in faults]
    assert [(row[0], row[1]) for row in rows] == expected
    assert not any("NO" in row for row in rows)
    shown = {(row[0], row[1]): row for row in cells(families_of(committed("families.md")))}
    for row in rows:
        assert [cell for column, cell in enumerate(row) if column != ERROR] == [
            cell for column, cell in enumerate(shown[row[0], row[1]]) if column != ERROR
        ]


def test_the_docs_list_every_family_that_streams_and_none_is_red() -> None:
    rows = cells(committed(streaming.PAGE))
    shown = [(name, host, turned) for name, host, turned, *_ in rows]
    hosts = [(name, host) for name, family in STREAMS.items() for host in family.hosts]
    assert [row[0] for row in shown] == [name for name, _ in hosts] + list(REFUSALS)
    for (name, host), (_, written, *_) in zip(hosts, shown, strict=False):
        assert written in (host, "its own"), name
    for name, _, turned, _, looped, generated in rows:
        if name in REFUSALS:
            assert turned.startswith("refused: ")
            assert REFUSALS[name] in turned
        else:
            assert float(looped) <= streams.TOLERANCE
            assert generated == "writes no text" or float(generated) <= streams.TOLERANCE


@pytest.mark.release
def test_the_table_of_streams_is_made_of_the_same_rows() -> None:
    rows, shown = (cells(page) for page in (streaming.pages()[streaming.PAGE], committed(streaming.PAGE)))
    missing = [name for name in (*STREAMS, *REFUSALS) if not EVERY_STREAM[name].exists]
    assert [row[:4] for row in rows] == [row[:4] for row in shown if row[0] not in missing]
    assert all(
        float(error) <= streams.TOLERANCE for row in rows for error in row[4:] if error.startswith(tuple("0123456789"))
    )

"""The table in the docs has a row for everything in the registry, and none that is red."""

from __future__ import annotations

from pathlib import Path

import pytest

import sinkscope
from sinkscope.attention import CATALOG
from sinkscope.model import contract as lab
from sinkscope.probes.contracts import contract
from sinkscope.probes.contracts.families import COLLECTED, FAMILIES, REFUSED

PAGE = Path(sinkscope.__file__).parent.parent / "docs" / "families.md"
EXPECTED = (
    [(name, host) for name, family in FAMILIES.items() for host in family.hosts]
    + [(name, "its own") for name in COLLECTED]
    + [(f"lab: {name}", "its own") for name in CATALOG]
    + [(name, "its own") for name in REFUSED]
)


def cells(table: str) -> list[list[str]]:
    """The rows of a Markdown table, without its head."""
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_the_docs_list_what_the_registry_holds() -> None:
    assert [(row[0], row[1]) for row in cells(PAGE.read_text())] == EXPECTED


def test_no_row_of_the_docs_is_red() -> None:
    rows = {name: row for name, *row in cells(PAGE.read_text())}
    for name, (_, calls, error, unchanged) in rows.items():
        if name in REFUSED:
            assert calls.startswith("refused: family '")
        else:
            seen, layers = calls.split(" (")[0].split(" / ")
            assert seen == layers
            assert float(error) <= contract.TOLERANCE
            assert unchanged == "yes"


@pytest.mark.parametrize("name", CATALOG)
def test_the_lab_model_keeps_the_contract_under_every_operation(name: str) -> None:
    assert lab.check(name).holds


@pytest.mark.slow
def test_the_table_is_made_of_the_same_rows() -> None:
    rows = cells(contract.table(lab.rows()))
    missing = [name for name, family in (FAMILIES | COLLECTED | REFUSED).items() if not family.exists]
    faults = [(name, host) for name, family in FAMILIES.items() for host in family.hosts if family.obstacle(host)]
    expected = [(name, host) for name, host in EXPECTED if name not in missing and (name, host) not in faults]
    assert [(row[0], row[1]) for row in rows] == expected
    assert not any("NO" in row for row in rows)

"""What is cited has an entry in the bibliography, and an entry names code that exists.

Citations are author and year, such as "Gu et al. 2025".
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

from sinkscope import Measurement
from sinkscope.attention import CATALOG
from sinkscope.experiments import QUESTIONS
from sinkscope.model import SHIPPED, LabConfig

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "bibliography.md").read_text(encoding="utf-8")
FILE = (ROOT / "docs" / "bibliography.bib").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^## (.+)\n\n((?:(?!## ).*\n)+)", PAGE, re.MULTILINE))
BIBTEX = dict(re.findall(r"^@\w+\{(\w+),\n((?:  .*\n)+)\}$", FILE, re.MULTILINE))
CITING = [
    path
    for folder in ("sinkscope", "docs", "replication/sinkscope_replication")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".md"} and "bibliography" not in path.stem
]
with_the_study = pytest.mark.skipif(
    not (ROOT / "replication").is_dir(), reason="the study is not here, which many entries are of"
)

NAME = r"[A-ZÅÄÖ][\w’-]+"
YEAR = r"(?:19|20)\d\d[ab]?"
CITATION = re.compile(rf"\b({NAME}(?: & {NAME}| et al\.| Team)?),? \(?({YEAR}(?:(?:, | and ){YEAR})*)\b")
NOT_NAMES = {"January", "COLM", "ICLR", "ICML", "JMLR", "NeurIPS"}
FIELDS = re.findall(r"`([\w.]+)`", (ROOT / "docs" / "what_can_be_varied.md").read_text(encoding="utf-8"))
NAMED = {*CATALOG, *QUESTIONS, *SHIPPED, *FIELDS, *inspect.signature(LabConfig).parameters, *dir(Measurement)}


def read(path: Path) -> str:
    """Its text, in which a citation that a line breaks, or a string, or a comment, is whole."""
    text = path.read_text(encoding="utf-8")
    return re.sub(r'\s*\n\s*(?:# |f?"(?=\w))?', " ", text)


def citations(text: str) -> Iterator[str]:
    """Authors and year of every citation: "Barbero et al. 2024 and 2025" are two."""
    for authors, years in CITATION.findall(text):
        if authors not in NOT_NAMES:
            yield from (f"{authors} {year}" for year in re.findall(YEAR, years))


def names(entry: str) -> list[str]:
    """What stands between backquotes in an entry."""
    return re.findall(r"`([^`]+)`", entry.replace("\n", " "))


def unknown(name: str) -> bool:
    """Whether it is neither a name of Python, an operation, an experiment, a model, a field, nor a command."""
    if name.startswith(("sinkscope.", "sinkscope_replication.")):
        module, _, attribute = name.rpartition(".")
        try:
            resolve_name(name if attribute.islower() else f"{module}:{attribute}")
        except (ImportError, AttributeError):
            return True
        return False
    return not (name.startswith("sinkscope ") or name.partition("=")[0] in NAMED)


def test_what_is_cited_has_an_entry():
    missing = {
        f"{path.relative_to(ROOT)}: {each}" for path in CITING for each in citations(read(path)) if each not in ENTRIES
    }
    assert missing == set()


@with_the_study
def test_an_entry_names_what_exists():
    assert [name for entry in ENTRIES.values() for name in names(entry) if name not in BIBTEX and unknown(name)] == []

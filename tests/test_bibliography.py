"""Sources: what is cited has an entry in the bibliography, which says what of it is implemented where.

Citations are author and year, such as "Gu et al. 2025"; nothing else points to a source.
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
TEXTS = sorted(
    path
    for folder in ("sinkscope", "docs", "tests", "benchmarks", "tools", "examples", "replication", "")
    for path in ROOT.glob(f"{folder}/**/*" if folder else "*.md")
    if path.suffix in {".py", ".md", ".js", ".html", ".css"} and path != Path(__file__)
)
CITING = [
    path
    for path in TEXTS
    if path.relative_to(ROOT).parts[0] in ("sinkscope", "docs", "replication")
    and "bibliography" not in path.stem
    and "tests_replication" not in path.parts
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
# Rows of lists that are not in the repository, such as a letter and a number in brackets.
CODE = re.compile(
    r"(?<![-\w])(?!L[24]\b)(?:A(?:[12]\d|30|[1-9])b?|C(?:1[01]|[1-9])|P[1-5]|O[1-3]|D[1-5]|L[1-4]|K[1-5]|X[12]?\d|Z(?:1\d|[1-9]))"
    r"\b(?! ?\d+ ?G)|\[L[24][],]|\bcatalogue (?:row|section|\d)|\bdiscrepancy \d|\bpitfall [A-Z]?\d"
)


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


def test_entries_are_sorted_and_have_one_key_each():
    keys = [names(entry) for entry in ENTRIES.values()]
    assert list(ENTRIES) == sorted(ENTRIES)
    assert [sum(name in BIBTEX for name in each) for each in keys] == [1] * len(ENTRIES)
    assert {name for each in keys for name in each if name in BIBTEX} == BIBTEX.keys()


@pytest.mark.parametrize("source", ENTRIES)
def test_page_and_file_say_the_same(source):
    entry = " ".join(ENTRIES[source].split())
    fields = dict(
        re.findall(r"^  (\w+) = \{(.*)\},$", BIBTEX[next(n for n in names(entry) if n in BIBTEX)], re.MULTILINE)
    )
    authors = fields["author"].strip("{}").split(" and ")
    assert f"*{fields['title'].strip('{}')}" in entry
    assert all(author in entry for author in authors)
    assert fields["year"] == re.sub(r"\D", "", source)
    assert source.partition(" et al.")[0].partition(" & ")[0].removesuffix(f" {fields['year']}") in authors[0]
    assert ("et al." in source) == (len(authors) > 2 or authors[-1] == "others")
    assert all(fields[each] in entry for each in ("eprint", "booktitle", "journal", "url") if each in fields)


@with_the_study
@pytest.mark.parametrize("source", ENTRIES)
def test_an_entry_says_where_it_is_implemented(source):
    places = [name for name in names(ENTRIES[source]) if name not in BIBTEX]
    assert [name for name in places if unknown(name)] == []
    assert places or "not implemented yet" in ENTRIES[source]


def test_what_is_cited_has_an_entry():
    missing = {
        f"{path.relative_to(ROOT)}: {each}" for path in CITING for each in citations(read(path)) if each not in ENTRIES
    }
    assert missing == set()


@with_the_study
def test_what_has_an_entry_is_cited():
    assert ENTRIES.keys() - {each for path in CITING for each in citations(read(path))} == set()


def test_a_source_has_its_year():
    of_sources = ((path, said) for path in CITING for said in re.findall(r"Sources?: (?:[^.]|et al\.)+", read(path)))
    assert [(path.name, said) for path, said in of_sources if re.search(r"et al\.(?! \(?(?:19|20)\d\d)", said)] == []


def test_no_other_list_is_pointed_to():
    lines = ((path, line) for path in TEXTS for line in path.read_text(encoding="utf-8").splitlines())
    assert [f"{path.relative_to(ROOT)}: {line.strip()}" for path, line in lines if CODE.search(line)] == []


@pytest.mark.parametrize(
    "text", ["[X17]", "[L2]", "(catalogue 12.3)", '"A14; Gu et al."', "[C2, C5]", "pitfall P1", "| K1, K2 |"]
)
def test_a_code_is_noticed(text):
    assert CODE.search(text)


@pytest.mark.parametrize(
    "text", ["the norm (L2)", "an L2 term", "L4 24GB", "H100", "A100 80GB", "A10 24GB", "F3", "Kimi-K2", "x1"]
)
def test_what_is_no_code_is_let_pass(text):
    assert CODE.search(text) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(Gu et al. 2025, section 3)", ["Gu et al. 2025"]),
        ("Source: Barbero et al. 2024 and 2025.", ["Barbero et al. 2024", "Barbero et al. 2025"]),
        ("Guo et al. (2024a): at the BOS; Wu & Tu 2024", ["Guo et al. 2024a", "Wu & Tu 2024"]),
        ("Miller 2023; Gemma Team 2024", ["Miller 2023", "Gemma Team 2024"]),
        ("ICLR 2025, in 2024", []),
    ],
)
def test_citations_are_found(text, found):
    assert list(citations(text)) == found


def test_a_name_that_is_not_there_is_noticed():
    assert unknown("sinkscope.measurement.Nothing")
    assert unknown("sinkscope.nothing")
    assert unknown("softmaxx")
    assert not unknown("sinkscope.measurement.Mixing")

"""`python -m tools.pages.claims`: write the tables of `docs/theory.md`, a section for each topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sinkscope.claims import Verdict, markdown, tally
from sinkscope.theory import by_topic
from tools.pages import above, write

PAGE, HEAD = "theory.md", "## The claims"


def sections(verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    """The verdicts as Markdown, by topic."""
    parts = (f"### {topic.capitalize()}\n\n{tally(group)}\n\n{markdown(group)}" for topic, group in verdicts.items())
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """The page, its tables made anew."""
    return {PAGE: f"{above(PAGE, HEAD)}{HEAD}\n\n{sections(by_topic())}"}


if __name__ == "__main__":
    write(pages())

"""`python -m sinkscope.theory`: print the tables of docs/theory.md, a section for each topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sinkscope.claims import Verdict, markdown, tally
from sinkscope.theory.running import by_topic


def sections(verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    """The verdicts as Markdown, by topic."""
    parts = (f"### {topic.capitalize()}\n\n{tally(group)}\n\n{markdown(group)}" for topic, group in verdicts.items())
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(sections(by_topic()), end="")

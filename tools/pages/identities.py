"""`python -m tools.pages.identities`: write which variations of which questions are the same run."""

from __future__ import annotations

import json

from sinkscope.experiments.identities import TABLE, table
from sinkscope.files import write_text


def page() -> str:
    """The table, a line for each question."""
    scales = []
    for scale, questions in table().items():
        lines = [f"  {json.dumps(name)}: {json.dumps(labels)}" for name, labels in questions.items()]
        scales.append(f" {json.dumps(scale)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(scales) + "\n}\n"


if __name__ == "__main__":
    write_text(TABLE, page())
    print(TABLE)

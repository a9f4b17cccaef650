"""What `sinkscope quantize` leaves for other programs: the protected tokens, a prefix, tables of hazards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sinkscope.cli.writing.protected import tokens_as_data, write_masks
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.files import write_json, write_text
from sinkscope.quantization import Hazards, Prefix, resolved
from sinkscope.sinks import Choice, NothingChosenError, Tokens

PREFIX = "prefix"  # the folder with a prefix, in that of the results


@dataclass(frozen=True)
class Exported:
    """What other programs can act on: a choice of tokens with its masks, and a prefix with keys and values.

    `lacking`: why there is no prefix though its ids are known; empty where there is one, or nothing to be one.
    """

    data: dict[str, Any] | None
    tokens: Tokens | None
    prefix: Prefix | None
    lacking: str = ""


def exported_of(
    name: str,
    model: nn.Module,
    given: Mapping[str, Tensor],
    choices: Mapping[str, Any],
    tokenizer: Any,
    looked: Hazards | None,
) -> Exported | None:
    """The first choice of tokens, and the first prefix, or that of the tokens which every text begins with.

    None where nothing is protected.
    """
    prefix = next((choice for choice in choices.values() if isinstance(choice, Prefix)), None)
    choice = next((choice for choice in choices.values() if isinstance(choice, Choice)), None)
    try:
        tokens = None if choice is None else resolved(choice, model, given)
    except NothingChosenError:
        tokens = None
    if tokens is None:
        return None if prefix is None else _with_files(Exported(None, None, prefix))
    data = tokens_as_data(name, tokens, tokenizer, looked)
    if prefix is None and data["prefix_ids"]:
        try:
            prefix = Prefix.of(model, data["prefix_ids"], found={"choice": tokens.describe()}, tokenizer=tokenizer)
        except (InputError, UnsupportedModelError) as error:
            return Exported(data, tokens, None, str(error))
    return _with_files(Exported(data, tokens, prefix))


def write_extra(draft: Path, *, looked: Hazards | None, exported: Exported | None) -> None:
    """Hazards as JSON and tables; tokens and a prefix."""
    if looked is not None:
        write_json(draft / "hazards.json", looked.to_json())
        for name in ("sites", "casts", "advice"):
            write_text(draft / f"{name}.csv", getattr(looked, name).to_csv(index=False))
    if exported is not None and exported.tokens is not None:
        write_json(draft / "protected.json", exported.data)
        write_masks(draft / "protected.safetensors", exported.tokens)
    if exported is not None and exported.prefix is not None:
        exported.prefix.save(draft / PREFIX)


def _with_files(exported: Exported) -> Exported:
    """The same without a prefix whose cache holds more than keys and values of all its tokens, which no file takes."""
    if exported.prefix is None:
        return exported
    try:
        exported.prefix.check_written()
    except UnsupportedModelError as error:
        return Exported(exported.data, exported.tokens, None, str(error))
    return exported

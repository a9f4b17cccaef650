"""What `sinkscope quantize` leaves in its folder: tables, a page, and the tokens to spare for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sinkscope.cli.measuring.folders import FILES, old_files
from sinkscope.cli.writing.spared import spared_as_data, write_masks
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.files import replacing, write_json, write_text
from sinkscope.quantization import Hazards, Known, Prefix, Spared, Study

PREFIX = "prefix"  # the folder with a prefix, in that of the results


@dataclass(frozen=True)
class Exported:
    """What other programs can act on: a choice of tokens with its masks, and a prefix with keys and values.

    `lacking`: why there is no prefix though its ids are known; empty where there is one, or nothing to be one.
    """

    data: dict[str, Any] | None
    known: Known | None
    prefix: Prefix | None
    lacking: str = ""


def exported_of(
    name: str,
    model: nn.Module,
    given: Mapping[str, Tensor],
    choices: Mapping[str, Spared | Prefix],
    tokenizer: Any,
    looked: Hazards | None,
) -> Exported | None:
    """The first choice of tokens, and the first prefix, or that of the tokens which every text begins with.

    None where nothing is spared.
    """
    prefix = next((choice for choice in choices.values() if isinstance(choice, Prefix)), None)
    choice = next((choice for choice in choices.values() if isinstance(choice, Spared)), None)
    if choice is None or (looked is not None and looked.tokens.empty):
        return None if prefix is None else _with_files(Exported(None, None, prefix))
    known = choice.known(model, given)
    data = spared_as_data(name, choice, known, known.text, tokenizer, looked)
    if prefix is None and data["prefix_ids"]:
        try:
            prefix = Prefix.of(model, data["prefix_ids"], found={"choice": choice.describe()}, tokenizer=tokenizer)
        except (InputError, UnsupportedModelError) as error:
            return Exported(data, known, None, str(error))
    return _with_files(Exported(data, known, prefix))


def write_quantized(
    folder: Path, found: dict[str, Any], study: Study | None, looked: Hazards | None, exported: Exported | None
) -> list[Path]:
    """Whatever there is, in the place of an earlier call's."""
    from sinkscope.report.changing import quantization_page
    from sinkscope.report.page import write_page

    page = quantization_page(found["model"], study, looked)
    with replacing(folder, partial(old_files, "quantize")) as draft:
        if study is not None:
            study.save(draft / "study.nc")
            write_json(draft / "study.json", _finite(study.to_json()))
            write_text(draft / "table.csv", study.table().to_csv(index=False))
        if looked is not None:
            write_json(draft / "hazards.json", looked.to_json())
            for name in ("sites", "casts", "advice"):
                write_text(draft / f"{name}.csv", getattr(looked, name).to_csv(index=False))
        if exported is not None and exported.known is not None:
            write_json(draft / "spared.json", exported.data)
            write_masks(draft / "spared.safetensors", exported.known, exported.known.text)
        if exported is not None and exported.prefix is not None:
            exported.prefix.save(draft / PREFIX)
        write_page(page, draft / "figure.html")
        written = {str(path.relative_to(draft)) for path in draft.rglob("*")}
    return [folder / name for name in FILES["quantize"] if name in written]


def _with_files(exported: Exported) -> Exported:
    """The same without a prefix whose cache holds more than keys and values of all its tokens, which no file takes."""
    if exported.prefix is None:
        return exported
    try:
        exported.prefix.check_written()
    except UnsupportedModelError as error:
        return Exported(exported.data, exported.known, None, str(error))
    return exported


def _finite(value: Any) -> Any:
    """JSON has no NaN: what is not known is null."""
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and value != value else value

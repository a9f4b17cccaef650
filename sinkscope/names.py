"""Names of models, and paths: shipped models, whether a path is a model, folders of media. Without torch."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from sinkscope.errors import InputError, unknown

Media = Literal["images", "audio"]
GGUF = ".gguf"
_GGUF_MAGIC = b"GGUF"
_GIT_POINTER = b"version https://git-lfs"
_PATH_STARTS = ("./", "../", "/", "~")
FOLDER = Path(__file__).parent / "model" / "shipped"
SHIPPED: dict[str, Path] = {path.parent.name: path.parent for path in sorted(FOLDER.glob("*/config.json"))}


def resolve(name: str | Path) -> str:
    """The location of a model: the shipped folder, the local folder, a GGUF file, or the hub id unchanged.

    Raises `InputError` for a folder without a model, for another file, for a path that does not exist, and for the
    name of a shipped model where a folder of that name holds one too. `a/b` is a hub id unless there is such a folder.
    """
    path = Path(name).expanduser()
    if str(name) in SHIPPED:
        here = any((path / config).exists() for config in ("config.json", "model/config.json"))
        if not here:
            return str(SHIPPED[str(name)])
        if isinstance(name, str):
            raise InputError(
                f"'{name}' is a shipped model and a folder here: write './{name}' for the folder, or run this "
                "elsewhere for the shipped model"
            )
    if path.is_dir():
        if (path / "model" / "config.json").exists():  # a run folder holds its model one level down
            return str(path / "model")
        if not (path / "config.json").exists():
            files = sorted(path.glob(f"*{GGUF}"))
            hint = f"; did you mean '{files[0]}'?" if files else ""
            raise InputError(f"no model in folder '{name}': config.json is missing{hint}")
        return str(path)
    if path.exists() and not is_gguf(path):
        raise InputError(
            f"'{name}' is a file: expected a model folder, a {GGUF} file, a hub id, or one of {', '.join(SHIPPED)}"
        )
    if path.exists():
        if is_git_pointer(path):
            raise InputError(f"'{name}' is a Git LFS pointer, not the model: fetch it with  git lfs pull")
        with path.open("rb") as stream:
            if stream.read(len(_GGUF_MAGIC)) != _GGUF_MAGIC:
                raise InputError(f"'{name}' is not a GGUF file: it does not begin with the letters GGUF")
        return str(path)
    if names_a_path(name):
        raise no_such_folder(name)
    return str(name)


def is_git_pointer(path: Path) -> bool:
    """Whether a file is what Git LFS leaves in place of contents that were not fetched."""
    with path.open("rb") as stream:
        return stream.read(len(_GIT_POINTER)) == _GIT_POINTER


def is_gguf(name: str | Path) -> bool:
    """Whether a name is that of a GGUF file, which need not exist."""
    return Path(name).suffix.lower() == GGUF


def media_folder(images: Path | None, audio: Path | None) -> tuple[Media, Path] | None:
    """The folder of images or recordings that is read in place of text, and which of the two it holds."""
    if images is not None:
        return "images", images
    return None if audio is None else ("audio", audio)


def short(name: str | Path) -> str:
    """A name for people: the last part of a path."""
    return shortened([str(name)])[0]


def shortened(names: Sequence[str]) -> tuple[str, ...]:
    """Names for people, distinct if the names are: of paths, as few last parts as distinguish them."""
    parts = [Path(name).parts if _is_path(name) else (name,) for name in names]
    tails = [1] * len(names)
    while True:
        labels = tuple("/".join(each[-tail:]) for each, tail in zip(parts, tails, strict=True))
        longer = [
            labels.count(label) > 1 and tail < len(each) and names.count(name) < labels.count(label)
            for label, tail, each, name in zip(labels, tails, parts, names, strict=True)
        ]
        if not any(longer):
            return labels
        tails = [tail + grows for tail, grows in zip(tails, longer, strict=True)]


def _is_path(name: str) -> bool:
    return name not in SHIPPED and (names_a_path(name) or Path(name).expanduser().exists())


def names_a_path(name: str | Path) -> bool:
    """Whether a name can only be a path: a hub id is NAME or OWNER/NAME."""
    text = str(name)
    starts = text.startswith(_PATH_STARTS) or text in (".", "..")
    return isinstance(name, Path) or starts or text.count("/") > 1 or is_gguf(text)


def no_such_folder(name: str | Path) -> InputError:
    """The error for a path that does not exist, with a folder or GGUF file of a similar name in the same folder."""
    return InputError(f"no such {'file' if is_gguf(name) else 'folder'}: '{name}'{_near(Path(name).expanduser())}")


def no_such_model(name: str) -> InputError:
    """The error for a name that is neither shipped nor on the hub, with a near one that is shipped or lies here."""
    shipped = difflib.get_close_matches(name, SHIPPED, n=1, cutoff=0.5)
    if not shipped and (near := _near(Path(name), models=True)):
        return InputError(f"unknown model '{name}'{near.replace(';', ':', 1)}")
    return unknown("model", name, SHIPPED)


def _near(path: Path, *, models: bool = False) -> str:
    """A suggestion for a misspelled path: a GGUF file or a folder, with `models` one that holds a model."""
    try:
        entries = list(path.parent.iterdir())
    except OSError:
        entries = []
    there = [entry.name for entry in entries if is_gguf(entry) or _fits(entry, models)]
    near = difflib.get_close_matches(path.name, there, n=1)
    return f"; did you mean '{path.parent / near[0]}'?" if near else ""


def _fits(folder: Path, models: bool) -> bool:
    if not models:
        return folder.is_dir()
    return (folder / "config.json").is_file() or (folder / "model" / "config.json").is_file()

"""The second step of a command: open the model, its tokenizer, and what it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sinkscope.cli.options import AUTO, TEXT_KINDS, InputOptions, LoadingOptions, RunningOptions
from sinkscope.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from sinkscope.data import InputReading
    from sinkscope.data import Inputs as TokenRows


def open_model(name: str, loading: LoadingOptions) -> PreTrainedModel:
    """Load a model, without a progress bar for its weights; downloads keep theirs. Memory freed later is kept."""
    from transformers.utils.logging import disable_progress_bar

    from sinkscope.interventions import load
    from sinkscope.model.memory import keep_freed_memory

    disable_progress_bar()
    placement: dict[str, str | None] = {"device_map": loading.device_map}
    if loading.device_map is None:
        placement = {"device": usable_device(loading.device)}
    model = load(
        name,
        dtype=loading.dtype,
        revision=loading.revision,
        attn=loading.attn,
        trust_remote_code=loading.trust_remote_code,
        **placement,
    )
    keep_freed_memory()  # only now: what loading alone needs goes back
    return model


def open_tokenizer(name: str, loading: LoadingOptions, *, required: bool = False) -> Any:
    """The model's tokenizer; None where it has none and none is required."""
    from sinkscope.model import load_tokenizer

    try:
        return load_tokenizer(name, revision=loading.revision, trust_remote_code=loading.trust_remote_code)
    except InputError:
        if required:
            raise
        return None


def read_inputs(model: PreTrainedModel, name: str, inputs: InputOptions, running: RunningOptions) -> InputReading:
    """What the model reads: rows of text or tokens, or the images or recordings of a folder.

    Raises `InputError` as `token_rows` and `media_reading` do.
    """
    from sinkscope.data import reading
    from sinkscope.data.media import media_reading

    if inputs.medium is None:
        return reading(model, token_rows(model, name, inputs, running))
    return media_reading(
        *inputs.medium,
        model,
        name,
        samples=inputs.samples,
        tokens=inputs.tokens,
        revision=running.revision,
        prompt=inputs.prompt,
    )


def token_rows(model: PreTrainedModel, name: str, inputs: InputOptions, running: RunningOptions) -> TokenRows:
    """Rows of token ids of one kind. A chat template puts each row of natural text into a user's turn.

    Raises `InputError` for a BOS before a chat template, which defines what comes first; for ids outside the vocabulary
    and rows longer than the model has positions; and as `build_inputs` does.
    """
    from sinkscope.data import as_chat, build_inputs, corpus_of, vocabulary_of
    from sinkscope.hooks.inputs import check_ids, check_positions

    chat = inputs.chat_template is True
    if chat and inputs.bos != "auto":
        raise InputError(f"--bos {inputs.bos} does not go with --chat-template, which defines what comes first")
    vocabulary = vocabulary_of(model)  # first: it refuses models that read no tokens, and says what they read
    needs_tokenizer = inputs.kind in TEXT_KINDS or inputs.bos in ("add", "double")
    tokenizer = open_tokenizer(name, running, required=needs_tokenizer)
    if inputs.chat_template is None and inputs.kind == "natural" and inputs.bos == "auto":
        chat = bool(tokenizer.chat_template)
    rows = build_inputs(
        inputs.kind,
        tokenizer=tokenizer,
        vocab_size=vocabulary,
        tokens=inputs.tokens,
        samples=inputs.samples,
        seed=running.seed,
        text=inputs.text,
        corpus=corpus_of(model.config) if inputs.corpus == AUTO else inputs.corpus,
        split=inputs.split,
        field=inputs.field,
        windows=inputs.windows,
        bos="none" if chat else inputs.bos,
    )
    if chat:
        try:
            rows = as_chat(rows, tokenizer)
            check_ids(model, {"input_ids": rows.input_ids})
        except InputError as error:
            raise InputError(f"{error}; --raw-text reads texts without a template") from error
    check_positions(model, {"input_ids": rows.input_ids})
    return rows


def single_batch(reading: InputReading) -> dict[str, Tensor]:
    """The model's arguments for all samples. Raises `InputError` where the samples have several sizes."""
    if len(reading.parts) == 1:
        return reading.parts[0]
    name = next(iter(reading.parts[0]))
    sizes = ", ".join(
        f"{len(part[name])} of {' × '.join(str(size) for size in part[name].shape[1:])}" for part in reading.parts[:4]
    )
    more = f" and {len(reading.parts) - 4} more" if len(reading.parts) > 4 else ""
    raise InputError(
        f"the samples have {len(reading.parts)} sizes ({name}: {sizes}{more}): controls act at positions that every "
        "sample has, so give files of one size"
    )


def observer_names(text: str) -> tuple[str, ...]:
    """The observers in "all,my_module:Mine", after the few that tables need. Raises `InputError` for an unknown one."""
    from sinkscope.measurement import resolve_observers

    names = tuple(dict.fromkeys(["few", *(name.strip() for name in text.split(",") if name.strip())]))
    resolve_observers(names)
    return names


def usable_device(name: str | None) -> str:
    """The device to use, by default the GPU if there is one. Raises `InputError` for one that torch cannot use."""
    import torch

    from sinkscope.model.hub import check_device

    device = name or ("cuda" if torch.cuda.is_available() else "cpu")
    check_device(device)
    return device


def parse_heads(option: str, text: str | None) -> tuple[tuple[int, int], ...] | None:
    """(layer, head) pairs of "3.0,3.2". Raises `InputError` for another form."""
    if text is None:
        return None
    heads = []
    for word in text.split(","):
        layer, point, head = word.strip().partition(".")
        if not point or not layer.isdecimal() or not head.isdecimal():
            raise InputError(f"{option} {text}: '{word}' is not a head; write layer.head, as in 3.0,3.2")
        heads.append((int(layer), int(head)))
    return tuple(dict.fromkeys(heads))

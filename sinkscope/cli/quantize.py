"""`sinkscope quantize`: what rounding costs a model, and which tokens to keep in full precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinkscope.cli import options
from sinkscope.cli.command import ADVANCED, LateHelp, When, was_given
from sinkscope.cli.opening import open_model, open_tokenizer, read_inputs, single_batch
from sinkscope.cli.options import INPUTS, OUTPUT, RUNNING, InputOptions, OutputOptions, RunningOptions
from sinkscope.cli.showing import estimate_cost, show_cost, show_trial, show_written, size_in_words, watching
from sinkscope.cli.writing import FILES, clear_unfinished, old_files, results_folder, unfinished_folder, write_trial
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.names import short
from sinkscope.report.terminal import note, only_json, plain, show, show_json, table

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sinkscope.quantization import Hazards, Prefix, QuantizationScheme
    from sinkscope.sinks import Choice, Tokens
    from sinkscope.trials import Rescue, Trial
    from sinkscope.trials.schemes import Find
    from sinkscope.trials.texts import Uses

SITES_SHOWN = 8  # on a terminal
PREFIX = "prefix"  # the folder of a prefix, in that of the results
PREFIX_RATIO = 20.0  # medians, for prefixes: nano's sink has 56, and the usual 64 would miss it
WIDENED = 1.0  # bits: a linear map is named if the protected tokens widen its range by at least as much
FORMER_WORDS = {"tokens": "ids", "outlying": "outliers"}  # of --spare, accepted for one release


def _schemes_help() -> str:
    from sinkscope.quantization import SCHEMES

    return (
        f"How to quantize: {', '.join(SCHEMES)}; other bits and groups too; or MODULE:NAME. Several, with commas "
        "between them, end in one sentence."
    )


def _schemes(values: Mapping[str, Any]) -> list[Any]:
    from sinkscope.quantization import scheme_named

    return [scheme_named(name) for name in _names(values["scheme"])]


def _names(scheme: str | None) -> list[str]:
    """The names of --scheme. Raises `InputError` for one that is empty or given twice."""
    names = [] if scheme is None else scheme.split(",")
    if "" in names:
        raise InputError(f"--scheme '{scheme}' has an empty name")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"--scheme names {twice[0]} twice")
    return names


def _uses_other_texts(values: Mapping[str, Any]) -> bool:
    """Whether a trial fits something, or looks for tokens, in texts that are not scored."""
    from sinkscope.sinks import Choice
    from sinkscope.trials.schemes import takes

    protected = parse_protected(values["protect"], values["spare"])
    choices = None if protected is None else [each for each in protected.values() if isinstance(each, Choice)]
    return bool(values["rescue"]) or any(takes(each, choices) != "nothing" for each in _schemes(values))


RUNS_TRIAL = When(lambda values: values["scheme"] or not values["hazards"], "goes with a --scheme")
ROUNDS_CACHES = When(
    lambda values: any(each.caches for each in _schemes(values)), "goes with a --scheme of caches, such as kv4-kivi"
)
ROUNDS_MAPS = When(
    lambda values: values["scheme"] and not any(each.caches for each in _schemes(values)),
    "goes with a --scheme of linear maps: others round no linear map",
)
CALIBRATES = When(
    lambda values: not values["scheme"] or _uses_other_texts(values),
    "is not read: this --scheme fits nothing, and no token is looked for in texts",
)
ONE_SCHEME = When(lambda values: len(_names(values["scheme"])) < 2, "goes with a single --scheme")
PROTECTS = When(lambda values: values["protect"] != ["none"], "goes with protected tokens, of which there are none")


def quantize(
    context: options.Context,
    model: options.Model,
    scheme: Annotated[
        str | None, typer.Option(metavar="NAME", help="How to quantize."), LateHelp(_schemes_help)
    ] = None,
    protect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORDS",
            help="Tokens to keep in full precision, repeatable, each an arm: measured[@ε], outliers[:ratio], first:4, "
            "positions:0,5, ids:2,13, joined by +; prefix[:RATIO|bos|peak|DIR]; none. Default: sinks, outliers and "
            "both where activations are rounded, sinks for caches, none where only weights are.",
        ),
    ] = None,
    spare: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
    hazards: Annotated[
        bool,
        typer.Option("--hazards", help="Print what to protect in this model, and why: ranges, site by site."),
        ONE_SCHEME,
    ] = False,
    prefill: Annotated[
        int | None,
        typer.Option("--context", min=1, help="For cache schemes: the prefill length. Default: half of a text."),
        ROUNDS_CACHES,
    ] = None,
    rescue: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT",
            min=1,
            max=99,
            help="Find the fewest linear maps in 16 bits, and the fewest tokens, that give so much of the cost back.",
            rich_help_panel=ADVANCED,
        ),
        ROUNDS_MAPS,
        ONE_SCHEME,
    ] = None,
    explain: Annotated[options.Explain, RUNS_TRIAL, ONE_SCHEME] = False,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Linear maps that stay as they are, repeatable: down_proj, layers.0, experts.",
            rich_help_panel=ADVANCED,
        ),
        RUNS_TRIAL,
        ROUNDS_MAPS,
    ] = None,
    controls: Annotated[
        int,
        typer.Option(min=1, help="Random choices of the same budget.", rich_help_panel=ADVANCED),
        RUNS_TRIAL,
        PROTECTS,
    ] = 5,
    calibrate_on: Annotated[
        Path | None,
        typer.Option(
            help="A text to calibrate on. Default: other texts of the same source, as many as are scored where weights "
            "or ranges are fitted, a quarter more where tokens are chosen.",
            rich_help_panel=ADVANCED,
        ),
        RUNS_TRIAL,
        CALIBRATES,
    ] = None,
    in_sample: Annotated[
        bool,
        typer.Option("--in-sample", help="Calibrate on the scored texts.", rich_help_panel=ADVANCED),
        RUNS_TRIAL,
        CALIBRATES,
    ] = False,
    tolerance: Annotated[options.Tolerance, RUNS_TRIAL] = 0.02,
    inputs: InputOptions = INPUTS,
    running: RunningOptions = RUNNING,
    output: OutputOptions = OUTPUT,
) -> None:
    """Quantize a model in simulation, and find which tokens to keep in full precision, compared with random ones."""
    if scheme is None and not hazards:
        raise InputError("give --scheme NAME for a trial, --hazards for what to protect and why, or both")
    if calibrate_on is not None and in_sample:
        raise InputError("--in-sample calibrates on the scored texts, --calibrate-on on others: give one of them")
    protected = parse_protected(protect, spare, inputs.epsilon if was_given(context, "epsilon") else None)
    settings = _TrialSettings(controls, calibrate_on, in_sample, prefill, tolerance)
    if len(_names(scheme)) > 1:
        _try_several(context, model, _names(scheme), skip or (), protected, settings, inputs, running, output)
        return
    words = [scheme or "hazards", *([] if inputs.name == "natural" else [inputs.name])]
    folder = results_folder("quantize", output.out, [model], words, context)
    from sinkscope import quantization
    from sinkscope.sinks import Choice
    from sinkscope.trials import rescue as rescue_of
    from sinkscope.trials.schemes import default_choices, takes

    rounding = None if scheme is None else quantization.scheme_named(scheme, skip or ())
    chooses_tokens = any(isinstance(each, Choice) for each in (protected or {}).values())
    if chooses_tokens and rounding is not None and rounding.protects == "nothing":
        raise InputError(
            f"--scheme {scheme} rounds weights alone, the same for all tokens: give --protect prefix:bos, whose keys "
            "and values stay in full precision, or --protect none"
        )
    defaults = {} if rounding is None or protected is not None else default_choices(rounding)
    with only_json(output.as_json):
        uses = []
        if rounding is not None:
            choices = None if protected is None else [each for each in protected.values() if _searches(each)]
            use = takes(rounding, choices)
            uses.append("chooses" if rescue is not None and use == "nothing" else use)
        subject = _QuantizedModel(model, settings, inputs, running, uses)
        batch, batch_size = subject.batch, subject.batch_size
        if rounding is not None and protected is None and not defaults:
            note(
                f"{scheme} rounds weights alone: its cost, with nothing protected; --protect prefix:bos tries a prefix"
            )
        rows = len(next(iter(batch.values())))
        scored = rows * inputs.samples // subject.count
        arms = len(defaults if protected is None else protected)
        readings = _readings(arms, scored, rows - scored, controls, hazards, rounding is not None)
        cost = estimate_cost(subject.model, batch, readings, batch_size)
        if output.plan_only:
            show_cost(cost, output.as_json, model=model, scheme=scheme)
            return
        note(f"{cost}; rounding comes on top")
        arms_of, prefixes = subject.protected_arms(protected or {}, batch, searches_later=rounding is not None)
        ranges = None
        if hazards:
            first = next((arm for arm in arms_of.values() if isinstance(arm, Choice)), None)
            ranges = quantization.hazards(subject.model, batch, first, batch_size=batch_size)
        trial = None
        if rounding is not None:
            trial = subject.trial(rounding, None if protected is None else arms_of, subject.unfinished(folder, context))
        rescued = None
        if rescue is not None and rounding is not None:
            with watching() as watch:
                rescued = rescue_of(
                    subject.model,
                    batch,
                    rounding,
                    rescue / 100,
                    calibrate_on=subject.others,
                    batch_size=batch_size,
                    seed=running.seed,
                    progress=watch,
                )
        resolved = {**defaults, **{word: arm for word, arm in arms_of.items() if isinstance(arm, Choice)}, **prefixes}
        if any(isinstance(arm, Choice) for arm in resolved.values()):
            note("finding what to protect in all texts, for protected.json")
        export = export_protected(model, subject.model, batch, resolved, subject.tokenizer, ranges)
        if export is not None and export.lacking:
            note(f"keys and values of the prefix are not written: {export.lacking}")
        paths = _write(folder, trial, ranges, export, rescued)
        clear_unfinished(folder)
    if output.as_json:
        numbers = {} if trial is None else trial.to_json()
        numbers |= {} if rescued is None else {"rescue": rescued.to_json()}
        show_json({"model": model, **numbers, **({} if ranges is None else {"hazards": ranges.to_json()})})
        return
    if trial is not None:
        show_trial(trial, paths, as_json=False, explain=explain)
        _show_bytes(trial)
    if rescued is not None:
        _show_rescue(rescued)
    if ranges is not None:
        _show_hazards(ranges)
        if trial is None:
            show_written(paths)


@dataclass(frozen=True)
class _TrialSettings:
    """What the trials of a call have in common."""

    controls: int
    calibrate_on: Path | None
    in_sample: bool
    context: int | None
    tolerance: float


class _QuantizedModel:
    """The model with its tokenizer, the texts that it reads, and the trials on them.

    `uses`: what texts are needed for besides scoring; `count`: how many are read for it.
    """

    def __init__(
        self,
        name: str,
        settings: _TrialSettings,
        inputs: InputOptions,
        running: RunningOptions,
        uses: Iterable[Uses],
    ) -> None:
        from sinkscope.trials import needed

        self.name, self.settings, self.inputs, self.running = name, settings, inputs, running
        self.model = open_model(name, running)
        self.tokenizer = open_tokenizer(name, running)
        self.batch_size = running.batch_of(inputs.tokens)
        self.count = inputs.samples
        if settings.calibrate_on is None and not settings.in_sample and inputs.medium is None:
            self.count = max((needed(inputs.samples, use) for use in uses), default=inputs.samples)
        self.reading = read_inputs(self.model, name, replace(inputs, samples=self.count), running)
        self.batch = single_batch(self.reading)
        _check_bos(self.batch, self.tokenizer)
        note(f"{short(name)}: {self.reading.description}; first: {self.reading.first}")

    @cached_property
    def others(self) -> dict[str, Tensor] | None:
        """The texts of --calibrate-on; None without it."""
        if self.settings.calibrate_on is None:
            return None
        text = replace(self.inputs, text=self.settings.calibrate_on, images=None, audio=None)
        return single_batch(read_inputs(self.model, self.name, text, self.running))

    def unfinished(self, folder: Path, context: Any) -> Path:
        """Where trials keep what is done."""
        return unfinished_folder(folder, context, self.reading.description)

    def trial(self, scheme: QuantizationScheme, choices: Mapping[str, Any] | None, out: Path) -> Trial:
        """The trial of a scheme, with these arms; None for its defaults. `out`: for finished batches."""
        from sinkscope.trials import scheme_trial

        settings = self.settings
        with watching() as watch:
            return scheme_trial(
                self.model,
                self.batch,
                scheme,
                choices,
                settings.controls,
                calibrate_on=self.others,
                calibrated_source=str(settings.calibrate_on or self.reading.description),
                in_sample=settings.in_sample,
                context=settings.context if scheme.caches else None,
                tolerance=settings.tolerance,
                batch_size=self.batch_size,
                seed=self.running.seed,
                out=out,
                about={"command": "quantize", "model": self.name, "input": self.reading.description},
                progress=watch,
            )

    def protected_arms(
        self, protected: Mapping[str, Choice | PrefixWord], batch: Mapping[str, Any], *, searches_later: bool
    ) -> tuple[dict[str, Choice | Prefix | Find], dict[str, Prefix]]:
        """The arms of a trial by their words, and the prefixes among them.

        With `searches_later` a prefix that depends on texts is found when the trial has split them into those that are
        scored and others; the second mapping has it from then on.
        """
        arms: dict[str, Choice | Prefix | Find] = {}
        prefixes: dict[str, Prefix] = {}

        def find(word: str, prefix: PrefixWord, inputs: Mapping[str, Any]) -> Prefix:
            prefixes[word] = prefix.build(self.model, inputs, self.tokenizer)
            return prefixes[word]

        for word, each in protected.items():
            if not isinstance(each, PrefixWord):
                arms[word] = each
            elif each.searches and searches_later:
                arms[word] = partial(find, word, each)
            else:
                arms[word] = find(word, each, batch)
        return arms, prefixes


@dataclass(frozen=True)
class PrefixWord:
    """A prefix on the command line: prefix:bos, prefix:peak, prefix:RATIO, or the folder of a saved one."""

    by: str = ""
    folder: Path | None = None

    @property
    def searches(self) -> bool:
        """Whether it depends on texts, which must then not be scored. The BOS and a saved prefix do not."""
        return self.folder is None and self.by != "bos"

    def build(self, model: nn.Module, inputs: Mapping[str, Any], tokenizer: Any) -> Prefix:
        """Load the prefix, or find it in `inputs`: the BOS, by the peak after it, or by outliers."""
        from sinkscope.quantization import Prefix, find_prefix

        if self.folder is not None:
            return Prefix.load(self.folder, model, tokenizer)
        bos = getattr(tokenizer, "bos_token_id", None)
        ids = {name: inputs[name] for name in ("input_ids", "attention_mask") if inputs.get(name) is not None}
        if self.by in ("bos", "peak"):
            return find_prefix(model, ids, self.by, bos=bos, tokenizer=tokenizer)
        ratio = float(self.by) if self.by else PREFIX_RATIO
        try:
            return find_prefix(model, ids, threshold=ratio, bos=bos, tokenizer=tokenizer)
        except InputError as error:
            raise InputError(f"{error}: --protect prefix:RATIO, --protect prefix:bos") from error


def parse_protected(
    protect: Sequence[str] | None, spare: Sequence[str] | None, epsilon: float | None = None
) -> dict[str, Choice | PrefixWord] | None:
    """Choices and prefixes by their words: empty for "none", None without the option.

    `spare`: words of --spare, the former name of --protect. `epsilon`: the threshold of `measured` without its own.
    Raises `InputError` for unknown words, and for "none" together with others.
    """
    words = list(dict.fromkeys([*(protect or ()), *map(_current_word, spare or ())]))
    if spare:
        note(f"--spare is now --protect: {' '.join(f'--protect {word}' for word in words)}")
    if "none" in words and len(words) > 1:
        raise InputError("--protect none goes alone: everything rounded is part of every trial")
    if not words:
        return None
    return {} if words == ["none"] else {word: _parse_word(word, epsilon) for word in words}


def _current_word(word: str) -> str:
    kind, colon, rest = word.partition(":")
    return f"{FORMER_WORDS.get(kind, kind)}{colon}{rest}"


def _parse_word(word: str, epsilon: float | None) -> Choice | PrefixWord:
    kind, _, rest = word.partition(":")
    if kind == "prefix":
        return _parse_prefix(word, rest)
    from sinkscope.sinks import Measured, parse, parts_of

    choice = parse(word)
    assert choice is not None
    if epsilon is None:
        return choice

    def with_epsilon(part: Choice) -> Choice:
        return replace(part, epsilon=epsilon) if part == Measured() else part

    first, *others = map(with_epsilon, parts_of(choice))
    return sum(others, first)


def _parse_prefix(word: str, rest: str) -> PrefixWord:
    if not rest or rest in ("bos", "peak") or rest.replace(".", "", 1).isdecimal():
        return PrefixWord(by=rest)
    if not Path(rest).is_dir():
        raise InputError(
            f"--protect {word}: there is no folder {rest}; write prefix:DIR with a saved one, prefix:bos, "
            f"prefix:peak or prefix:RATIO, a number of medians such as {PREFIX_RATIO:g}"
        )
    return PrefixWord(folder=Path(rest))


def _searches(protected: Choice | PrefixWord) -> bool:
    return not isinstance(protected, PrefixWord) or protected.searches


def _readings(choices: int, scored: int, calibration: int, controls: int, hazards: bool, tried: bool) -> int:
    """About how often a text is read: unchanged, with everything rounded, by each choice with its controls and as many
    first tokens; and to fit, or to find tokens."""
    trial = scored * (2 + choices * (2 + controls)) + 2 * calibration if tried else 0
    return trial + (2 * scored if hazards else 0)


def _check_bos(batch: Mapping[str, Any], tokenizer: Any) -> None:
    """Raise `InputError` for rows that begin with two BOS: servers that add one would make it three."""
    ids, bos = batch.get("input_ids"), getattr(tokenizer, "bos_token_id", None)
    if bos is not None and ids is not None and ids.shape[1] > 1 and bool((ids[:, :2] == bos).all(1).any()):
        row = int((ids[:, :2] == bos).all(1).nonzero()[0])
        raise InputError(
            f"row {row} begins with two BOS tokens (id {bos}): which of them is the sink then differs from what is "
            "served; leave one out (--bos auto, or a chat template that adds none)"
        )


@dataclass(frozen=True)
class ProtectedExport:
    """What other programs can act on: the protected tokens with their masks, and a prefix with keys and values.

    `lacking`: why there is no prefix although its ids are known; empty otherwise.
    """

    data: dict[str, Any] | None
    tokens: Tokens | None
    prefix: Prefix | None
    lacking: str = ""


def export_protected(
    name: str,
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    protected: Mapping[str, Any],
    tokenizer: Any,
    ranges: Hazards | None,
) -> ProtectedExport | None:
    """The first choice of tokens, with the first prefix, or the prefix of the tokens that every text begins with.

    Args:
        name: The name of the model.
        model: The model.
        inputs: The texts in which the choice is resolved.
        protected: Choices and prefixes by their words.
        tokenizer: The model's tokenizer, or None.
        ranges: Its hazards, if they were looked for: they name the linear maps.

    Returns None where nothing is protected.
    """
    from sinkscope.quantization import Prefix, resolved
    from sinkscope.sinks import Choice, NothingChosenError

    prefix = next((each for each in protected.values() if isinstance(each, Prefix)), None)
    choice = next((each for each in protected.values() if isinstance(each, Choice)), None)
    try:
        tokens = None if choice is None else resolved(choice, model, inputs)
    except NothingChosenError:
        tokens = None
    data = None if tokens is None else describe_tokens(name, tokens, tokenizer, ranges)
    if data is None and prefix is None:
        return None
    try:
        if prefix is None and tokens is not None and data is not None and data["prefix_ids"]:
            prefix = Prefix.of(model, data["prefix_ids"], found={"choice": tokens.describe()}, tokenizer=tokenizer)
        if prefix is not None:
            prefix.check_written()
    except (InputError, UnsupportedModelError) as error:
        return ProtectedExport(data, tokens, None, str(error))
    return ProtectedExport(data, tokens, prefix)


def describe_tokens(model: str, tokens: Tokens, tokenizer: Any, ranges: Hazards | None) -> dict[str, Any]:
    """The protected tokens, JSON-able.

    `positions`: protected in every row; `token_ids`: the token there, where it is the same in all rows; `prefix_ids`:
    the ids of positions 0 … n − 1 where these are among them, to be computed once in full precision and put before
    every prompt; `modules`: linear maps whose shared range these tokens widen by at least a bit, to be left
    unquantized (`ignore` of llm-compressor) where tokens cannot be protected.
    """
    import numpy as np

    mask, rows = tokens.any_head(), tokens.rows
    assert rows is not None
    positions = np.flatnonzero(mask.all(0)).tolist()
    ids_at = {at: set(rows.ids[:, at].tolist()) for at in positions} if rows.ids is not None else {}
    same = {at: next(iter(ids)) for at, ids in ids_at.items() if len(ids) == 1}
    prefix = [same[at] for index, at in enumerate(positions) if index == at and at in same]
    widened = None if ranges is None else ranges.sites[ranges.sites["bits_lost"] >= WIDENED]
    return {
        "model": model,
        "choice": tokens.describe(),
        "rows": len(mask),
        "protected_per_row": tokens.count(),
        "positions": positions,
        "token_ids": {str(at): token for at, token in same.items()},
        "tokens": {
            str(at): None if tokenizer is None else str(tokenizer.decode([token])) for at, token in same.items()
        },
        "prefix_ids": prefix or None,
        "bos_token_id": getattr(tokenizer, "bos_token_id", None),
        "modules": None if widened is None else _modules(widened.to_dict("records")),
        "masks": "protected.safetensors",
    }


def _modules(sites: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    inputs = [site for site in sites if str(site["site"]).startswith("into ")]
    return [{"path": site["path"], "bits_lost": round(float(site["bits_lost"]), 2)} for site in inputs]


def write_masks(path: Path, tokens: Tokens) -> None:
    """Write `protected` (row, token) as 0 and 1, and `input_ids` where there are any, −1 after the end of a row."""
    import numpy as np
    import torch
    from safetensors.torch import save_file

    assert tokens.rows is not None
    tensors = {"protected": torch.from_numpy(tokens.any_head().astype(np.uint8))}
    if tokens.rows.ids is not None:
        tensors["input_ids"] = torch.from_numpy(np.ascontiguousarray(tokens.rows.ids))
    save_file(tensors, path, metadata={"axes": "row, token: real tokens of each row from its first on"})


def _write_extra(
    draft: Path, *, ranges: Hazards | None, export: ProtectedExport | None, rescued: Rescue | None
) -> None:
    """Write hazards as JSON and tables, a rescue, the protected tokens, and a prefix."""
    from sinkscope.files import write_json, write_text

    if rescued is not None:
        write_json(draft / "rescue.json", rescued.to_json())

    if ranges is not None:
        write_json(draft / "hazards.json", ranges.to_json())
        for name in ("sites", "casts", "advice"):
            write_text(draft / f"{name}.csv", getattr(ranges, name).to_csv(index=False))
    if export is not None and export.tokens is not None:
        write_json(draft / "protected.json", export.data)
        write_masks(draft / "protected.safetensors", export.tokens)
    if export is not None and export.prefix is not None:
        export.prefix.save(draft / PREFIX)


def _write(
    folder: Path,
    trial: Trial | None,
    ranges: Hazards | None,
    export: ProtectedExport | None,
    rescued: Rescue | None = None,
) -> list[Path]:
    """Replace the results in `folder`; returns the files."""
    from sinkscope.files import replacing
    from sinkscope.report.writing import write_report

    extra: Callable[[Path], None] = partial(_write_extra, ranges=ranges, export=export, rescued=rescued)
    if trial is not None:
        return write_trial(trial, "quantize", folder, hazards=ranges, extra=extra)
    assert ranges is not None
    with replacing(folder, partial(old_files, "quantize")) as draft:
        write_report(ranges, draft / "figure.html")
        extra(draft)
    return [folder / name for name in FILES["quantize"] if (folder / name).exists()]


def _show_bytes(trial: Trial) -> None:
    """Print the bytes of matrices, and of caches that store what is rounded."""
    if "weight_bytes" in (record := trial.record):
        whole, small = record["weight_bytes_16"], record["weight_bytes"]
        show(plain(f"matrices: {size_in_words(small)} with scales, {size_in_words(whole)} in 16 bits"))
    if record.get("stored"):
        held = trial.data["bytes"]
        full, rounded = float(held.isel(arm=0)), float(held.sel(arm=str(trial.baseline)))
        show(
            plain(
                f"cache of a text after its context: {size_in_words(rounded)} with scales, {size_in_words(full)} full"
            )
        )


def _show_rescue(rescued: Rescue) -> None:
    show(plain(rescued.sentence))
    if rescued.maps:
        shown = ", ".join(rescued.maps[:SITES_SHOWN])
        more = len(rescued.maps) - SITES_SHOWN
        show(plain(f"in 16 bits: {shown}{f' and {more} more (rescue.json)' if more > 0 else ''}"))


def _try_several(
    context: Any,
    model: str,
    names: Sequence[str],
    skip: Sequence[str],
    protected: Mapping[str, Choice | PrefixWord] | None,
    settings: _TrialSettings,
    inputs: InputOptions,
    running: RunningOptions,
    output: OutputOptions,
) -> None:
    """A trial of each scheme, in its own folder, then one table and one sentence.

    Args:
        context: The command's context.
        model: The model's name.
        names: The schemes.
        skip: Linear maps that stay as they are.
        protected: What is protected, for schemes that know tokens; None for their defaults.
        settings: Options of trials.
        inputs: What is read.
        running: How it runs.
        output: Where it goes.
    """
    from sinkscope import quantization
    from sinkscope.files import write_json
    from sinkscope.trials import advice, compared_schemes
    from sinkscope.trials.schemes import takes

    if any(isinstance(each, PrefixWord) for each in (protected or {}).values()):
        raise InputError("a prefix goes with a single --scheme: its arms are compared with the model after it")
    folder = results_folder("quantize", output.out, [model], names, context)
    schemes = [quantization.scheme_named(name, skip) for name in names]
    choices = {scheme.name: _choices_for(scheme, protected) for scheme in schemes}
    with only_json(output.as_json):
        pairs = zip(schemes, choices.values(), strict=True)
        uses = [takes(scheme, None if arms is None else arms.values()) for scheme, arms in pairs]
        subject = _QuantizedModel(model, settings, inputs, running, uses)
        rows = len(next(iter(subject.batch.values())))
        count = sum(3 if arms is None else len(arms) for arms in choices.values())
        cost = estimate_cost(
            subject.model,
            subject.batch,
            2 * len(schemes) * rows + count * (2 + settings.controls) * inputs.samples,
            subject.batch_size,
        )
        if output.plan_only:
            show_cost(cost, output.as_json, model=model, scheme=",".join(names))
            return
        note(f"{cost}; rounding comes on top")
        trials, unfinished = [], subject.unfinished(folder, context)
        for scheme in schemes:
            trials.append(subject.trial(scheme, choices[scheme.name], unfinished / scheme.name))
            write_trial(trials[-1], "quantize", folder / scheme.name)
        compared = compared_schemes(trials)
        sentence = advice(compared)
        stored = compared.astype(object).where(compared.notna(), None).to_dict("records")
        write_json(folder / "schemes.json", {"schemes": stored, "sentence": sentence})
        clear_unfinished(folder)
    if output.as_json:
        details = [trial.to_json() for trial in trials]
        show_json({"model": model, "sentence": sentence, "schemes": details})
        return
    show(
        table(
            ["scheme", "KL", "interval", "word", "bytes", "protected", "KL", "word"],
            [
                (row.scheme, f"{row.kl:.4f}", f"{row.kl_low:.4f} to {row.kl_high:.4f}", row.word,
                 "" if row.bytes_share != row.bytes_share else f"{100 * row.bytes_share:.0f} %", row.protected,
                 f"{row.protected_kl:.4f}" if row.protected else "", row.protected_word)
                for row in compared.itertuples()
            ],
        )
    )  # fmt: skip
    show(plain(sentence))
    for line in dict.fromkeys(line for trial in trials for line in trial.notes()):
        show(plain(line))
    show_written([folder / "schemes.json", *(folder / name / "trial.json" for name in names)])


def _choices_for(scheme: Any, protected: Mapping[str, Choice | PrefixWord] | None) -> dict[str, Choice] | None:
    """What is protected under a scheme: nothing where weights alone are rounded."""
    from sinkscope.sinks import Choice

    if protected is None:
        return None
    return (
        {}
        if scheme.protects == "nothing"
        else {word: each for word, each in protected.items() if isinstance(each, Choice)}
    )


def _show_hazards(ranges: Hazards) -> None:
    rows = [
        (row.block, row.site, f"{row.max_median:.1f}", f"{row.max_median_without:.1f}", f"{row.bits_lost:.1f}",
         f"{row.channel_ratio:.1f}", row.set_by_position)
        for row in ranges.worst(SITES_SHOWN).itertuples()
    ]  # fmt: skip
    show(table(["block", "site", "max/median", "without", "bits lost", "channel", "set by position"], rows))
    for row in ranges.advice.itertuples():
        show(plain(f"{row.what}: {row.where}, since {row.why}"))

"""Running a study."""

from __future__ import annotations

import hashlib
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
from jaxtyping import Bool
from torch import Tensor, nn
from transformers import Cache

from sinkscope.errors import InputError
from sinkscope.hooks import checked_inputs, device_of, unwrapped
from sinkscope.interventions import All, Intervention
from sinkscope.measuring.peaks import check_whole
from sinkscope.model.columns import columns_of
from sinkscope.quantization.prefix import Prefix
from sinkscope.quantization.prefix.serving import own_tokens
from sinkscope.quantization.spared import FirstTokens, Known, MeasuredSinks, Spared
from sinkscope.quantization.studies.agreement import warn_of_choice, warn_of_inputs, warn_of_prefix
from sinkscope.quantization.studies.arms import FULL, NOTHING, Arm, Choice, arms_of
from sinkscope.quantization.studies.memory import columns_kept, weight_bytes
from sinkscope.quantization.studies.result import Study, study_of
from sinkscope.quantization.studies.scheme import QuantizationScheme
from sinkscope.quantization.studies.scoring import Opened, Passes, Predicted, ThroughCache, applied

PACKAGES = ("sinkscope", "torch", "transformers")


def study(
    model: nn.Module,
    inputs: Any,
    scheme: str | QuantizationScheme | Intervention,
    spared: Choice | Mapping[str, Choice] | None = None,
    controls: int = 5,
    *,
    calibration: Any = None,
    context: int | None = None,
    batch_size: int = 8,
    seed: int = 0,
    about: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Study:
    """What `scheme` costs on these inputs, and how much of it sparing tokens gives back.

    Arms, on the same rows: the full model; everything quantized; and for each choice in `spared` (default
    `MeasuredSinks()`; an empty mapping asks for the cost alone) the choice, the first n tokens of its budget, and
    `controls` random choices of the same budget. A `Prefix` is a choice too: the texts are then read, and what is
    calibrated is calibrated, behind its keys and values, which the full model made; its controls are prefixes of random
    tokens. In a scheme of caches it must be what every row begins with, and spares these tokens there. `scheme`: a name
    of `SCHEMES`, a scheme, or an intervention with a field `spared`. What it calibrates, it calibrates on
    `calibration`, or on `inputs` themselves, for each arm without the tokens that the arm spares.

    Scored are predictions at tokens that no arm spares, nor has in its prefix: −log p of the next token where the model
    predicts one, and KL(full ‖ arm). Schemes of linear maps are read in one pass; those of caches through a cache,
    `context` tokens at once (default: half of a row) and then one given token at a time, since one pass shows nothing
    of a cache.

    Warns where ranges were calibrated on other tokens than are served, and where nothing was rounded at all. Raises
    `InputError` as `measure` does, for a choice without tokens or controls, and for padding where a cache is read
    through.
    """
    from sinkscope.quantization.schemes import scheme_named

    model = unwrapped(model)
    chosen = scheme_named(scheme) if isinstance(scheme, str) else QuantizationScheme.of(scheme)
    given, samples = checked_inputs(model, inputs, batch_size)
    check_whole(given)
    choices = _named({"spared": MeasuredSinks()} if spared is None else spared)
    calibrated_on, _ = (given, samples) if calibration is None else checked_inputs(model, calibration, batch_size)
    asked = {name: _in_a_cache(name, one, given) for name, one in choices.items()} if chosen.caches else choices
    arms = arms_of(model, given, asked, controls, seed, chosen.spares != "nothing")
    left_out = _left_out(model, given, arms)
    interventions = {arm.name: _intervention(chosen, model, arm, calibrated_on, calibration is None) for arm in arms}
    for arm in arms:
        if arm.role in ("nothing", "spared"):
            known = None if arm.known is None or arm.prefix is not None else arm.known.describe()
            warn_of_choice(arm.name, interventions[arm.name], known)
            if arm.prefix is not None and not isinstance(scheme, str | QuantizationScheme):
                warn_of_prefix(arm.name, interventions[arm.name])
    if calibration is not None:
        warn_of_inputs(model, calibrated_on, given, None)
    opened = _opening(model, chosen, interventions)
    done, total = 0, len(arms) * samples

    def watch(rows: int) -> None:
        nonlocal done
        done += rows
        if progress is not None:
            progress(min(done, total), total)

    if chosen.caches:
        length = _length(model, given, context)
        stores = chosen.store is not None
        route: Passes | ThroughCache = ThroughCache(
            model, given["input_ids"], length, left_out, batch_size, opened, stores
        )
    else:
        route = Passes(model, given, samples, left_out, batch_size, opened)
    predicted = route.predicted(arms, watch)
    _check_rounded(predicted[NOTHING], chosen)
    record = _record(model, given, chosen, choices, interventions[NOTHING], batch_size, seed, about)
    record |= weight_bytes(model, interventions[NOTHING]) | columns_kept(
        model, interventions[NOTHING], given, batch_size
    )
    record |= {"read": f"through a cache behind {length} tokens" if chosen.caches else "in one pass"}
    return study_of(arms, predicted, record)


def _named(spared: Choice | Mapping[str, Choice]) -> Mapping[str, Choice]:
    choices = {"spared": spared} if isinstance(spared, Spared | Prefix) else dict(spared)
    if not all(isinstance(choice, Spared | Prefix) for choice in choices.values()):
        raise InputError("spared: expected a choice of tokens such as MeasuredSinks(), or some of them by name")
    return choices


def _in_a_cache(name: str, choice: Choice, given: Mapping[str, Any]) -> Spared:
    """What a choice spares in a cache; of a prefix that every row begins with, these tokens."""
    if isinstance(choice, Spared):
        return choice
    if not bool((own_tokens(choice, given).sum(-1) == len(choice.ids)).all()):
        raise InputError(
            f"'{name}': a scheme of caches reads rows from their first token on, and not all of them begin with the "
            f"prefix {choice.ids}: give rows that do (prefix.before(ids)), whose first tokens then stay as they are"
        )
    return FirstTokens(len(choice.ids))


def _left_out(model: nn.Module, given: Mapping[str, Any], arms: list[Arm]) -> Bool[Tensor, "row position"]:
    """Columns at which nothing is scored: padding, and what any arm spares."""
    columns = columns_of(model, given)
    left = ~columns.real
    for arm in arms:
        if arm.known is not None:
            left = left | arm.known.mask(model, given)
    if bool(left.all()):
        raise InputError("every token is spared by some arm, so nothing is left to score: spare fewer tokens")
    return left


def _intervention(
    scheme: QuantizationScheme, model: nn.Module, arm: Arm, calibration: Mapping[str, Any], same: bool
) -> Intervention | None:
    if arm.role == FULL:
        return None
    if arm.prefix is not None:
        with arm.prefix.applied(model):
            return scheme.make(model, calibration, None)
    spared = arm.known if same else arm.spared
    made = scheme.make(model, calibration, spared)
    return made if arm.known is None or scheme.spares != "served" else serving(made, arm.known)


def serving(made: Intervention, known: Known) -> Intervention:
    """An intervention with other tokens spared than those that it was made with."""
    if isinstance(made, All):
        return All(tuple(serving(part, known) for part in made.parts))
    if is_dataclass(made) and any(field.name == "spared" for field in fields(made)):
        return replace(made, spared=known)  # type: ignore[call-arg]
    return made


def _opening(model: nn.Module, scheme: QuantizationScheme, interventions: Mapping[str, Intervention | None]) -> Opened:
    @contextmanager
    def opened(arm: Arm, rows: slice) -> Iterator[Cache | None]:
        known = None if arm.known is None else arm.known.rows(rows)
        with ExitStack() as stack:
            if arm.role != FULL and scheme.store is not None:
                yield scheme.store(model, known)
                return
            intervention = interventions[arm.name]
            if arm.prefix is not None:
                stack.enter_context(arm.prefix.applied(model))
            elif intervention is not None and known is not None and scheme.spares == "served":
                intervention = serving(intervention, known)
            stack.enter_context(applied(intervention, model))
            yield None

    return opened


def _length(model: nn.Module, given: Mapping[str, Any], context: int | None) -> int:
    """Tokens of the context. Raises `InputError` for inputs that are no plain rows of ids."""
    ids = given.get("input_ids")
    others = {name for name, value in given.items() if isinstance(value, Tensor)} - {"input_ids", "attention_mask"}
    if not isinstance(ids, Tensor) or others or not bool(columns_of(model, given).real.all()):
        raise InputError(
            "a scheme of caches is read through a cache, row by row from the first token on: give token ids in rows of "
            "one length, without padding or other inputs"
        )
    length = ids.shape[1] // 2 if context is None else context
    if not 0 < length < ids.shape[1]:
        raise InputError(f"context = {length}: at least 1, and fewer than the rows' {ids.shape[1]} tokens")
    return length


def _check_rounded(nothing: Predicted, scheme: QuantizationScheme) -> None:
    if not bool((nothing.kl.nan_to_num(0.0) != 0).any()):
        warnings.warn(
            f"under '{scheme.name}' every prediction is what the full model's is: nothing was rounded. A cache closes "
            "groups of tokens: give rows long enough to close one",
            UserWarning,
            stacklevel=3,
        )


def _record(
    model: nn.Module,
    given: Mapping[str, Any],
    scheme: QuantizationScheme,
    choices: Mapping[str, Choice],
    quantizer: Intervention | None,
    batch_size: int,
    seed: int,
    about: Mapping[str, Any] | None,
) -> dict[str, Any]:
    ids = given.get("input_ids")
    main = ids if isinstance(ids, Tensor) else next(value for value in given.values() if isinstance(value, Tensor))
    return {
        "model": getattr(getattr(model, "config", None), "name_or_path", "") or type(model).__name__,
        "class": type(model).__name__,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "device": device_of(model).type,
        "scheme": scheme.name,
        "scheme_says": scheme.says,
        "quantizer": {} if quantizer is None else quantizer.describe(),
        "spared": {name: choice.describe() for name, choice in choices.items()},
        "rows": int(main.shape[0]),
        "tokens": int(main.shape[1]) if main.ndim > 1 else 1,
        "batch_size": batch_size,
        "seed": seed,
        "inputs_sha256": hashlib.sha256(np.ascontiguousarray(main.detach().cpu().numpy()).tobytes()).hexdigest(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        **(about or {}),
    }

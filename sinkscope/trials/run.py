"""Running a trial: every arm on the same texts, batch by batch, kept on disk as it goes."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.files import append_line, whole_lines, write_json
from sinkscope.hooks import device_of, model_digest, unwrapped
from sinkscope.trials.arm import REFERENCE, Arm, Reading, Texts, ThroughCache, unchanged
from sinkscope.trials.needles import Asked
from sinkscope.trials.recall import Recalled, recalled
from sinkscope.trials.scoring import Scores, scored
from sinkscope.trials.speed import WARM_UP, clock_of, speeds
from sinkscope.trials.trial import UNITS, Trial
from sinkscope.trials.words import TOLERANCE

PACKAGES = ("sinkscope", "torch", "transformers")
SCORES = "scores.jsonl"
ANSWERS = "answers.jsonl"
PER_TEXT = ("kl", "nats", "agreement", "scored")
PER_BATCH = ("bytes", "bytes_16", "seconds")
Progress = Callable[[int, int, str], object]
"""Called with the passes over a text that are done, their total, and the best arm so far."""


def run(
    model: nn.Module,
    texts: Any,
    arms: Sequence[Arm],
    *,
    reading: Reading,
    controls: int = 5,
    score: Sequence[str] = ("kl", "nats", "agreement"),
    calibrated_on: Mapping[str, Any] | None = None,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    batch_size: int = 8,
    needles: Asked | None = None,
    rounds: int = 0,
    out: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    reference: Arm | None = None,
    progress: Progress | None = None,
) -> Trial:
    """Every arm, its controls and the unchanged model on the same texts.

    The texts of a batch are read by all arms one after the other, so the predictions that arms are compared with are
    held for one batch only. No arm is scored at a token that any arm touches.

    Args:
        model: Any transformers model with logits.
        texts: Ids (N, T), a dict of model inputs as `measure` takes them, or `Texts`.
        arms: What is compared. Two arms of equal `same` run once.
        reading: `OnePass`, `ThroughCache` or `Written`.
        controls: Draws of each arm's control; 0 for none. Draw i is seeded by `seed` + i.
        score: What of kl, nats and agreement is kept.
        calibrated_on: What weights, ranges, tokens or heads were fitted on: `texts`, `sha256`, `in_sample`, `source`.
        tolerance: τ in nats a token, for the words of the verdict.
        seed: For the controls.
        batch_size: Texts that go through the model at once; no result depends on it.
        needles: Texts with questions, which each arm answers after it has read them: `recall`, `recall_seen`.
        rounds: Rounds of timing on the first batch, arms in turns: `prefill_seconds`, `step_seconds`; 0 for none.
        out: A folder for finished batches; a run that was interrupted goes on from there.
        about: More for the record; `kind` names the kind of trial.
        reference: An arm of the name `full` that changes nothing but may watch; default: `unchanged()`.
        progress: Called after each arm of each batch.

    Raises `InputError` for two arms of one name, no arms, texts that a reading cannot take, no scored place at all, and
    a folder of another trial.
    """
    model = unwrapped(model)
    scored_texts = texts if isinstance(texts, Texts) else Texts.of(model, texts)
    reading.check(scored_texts)
    wrong = [name for name in score if name not in PER_TEXT[:3]]
    if wrong or not score:
        raise InputError(f"score = {tuple(score)}: some of kl, nats, agreement")
    if batch_size < 1:
        raise InputError(f"batch_size = {batch_size}: at least 1 text at once")
    plan = _plan(arms, scored_texts, controls, seed, reference or unchanged())
    left_out = _left_out(plan, scored_texts)
    if rounds:
        if not isinstance(reading, ThroughCache) or scored_texts.ids is None:
            raise InputError("steps are timed where texts are read through a cache: rounds=0 otherwise")
        if scored_texts.ids.shape[1] - reading.context <= WARM_UP:
            raise InputError(f"timing needs {WARM_UP + 1} tokens after the context: give longer texts, or no rounds")
    more: dict[str, Any] = {"needles": None if needles is None else [len(needles), *needles.keys.shape[1:]]}
    more |= {"clock": clock_of(model)} if rounds else {}
    about = {**more, **(about or {})}
    record = _record(model, scored_texts, plan, reading, calibrated_on, tolerance, seed, batch_size, controls, about)
    store = _Store.open(out, model, record, needles)
    scores_by_arm: dict[str, list[Scores]] = {one.arm.name: [] for one in plan}
    running = [one for one in plan if not one.equal_to]
    question_batches = [] if needles is None else needles.split(batch_size)
    timed = 0 if not rounds else (rounds + 1) * min(batch_size, scored_texts.count)
    total, done = len(running) * (scored_texts.count + sum(map(len, question_batches)) + timed), 0
    for batch in scored_texts.batches(batch_size):
        stored = store.read(batch.rows)
        missing = [one.arm for one in running if one.arm.name not in stored]
        for name, scores in stored.items():
            scores_by_arm[name].append(scores)
        done += batch.count * (len(running) - len(missing))
        wanted = _with_references(missing, [one.arm for one in running])
        hidden = None if left_out is None else left_out[batch.rows]
        for name, scores in scored(model, batch, wanted, reading, hidden):
            if name in stored:
                continue
            store.write(batch.rows, name, scores)
            scores_by_arm[name].append(scores)
            done += batch.count
            if progress is not None:
                progress(done, total, _so_far(scores_by_arm, plan))
    answers: dict[str, list[Recalled]] = {one.arm.name: [] for one in running}
    for number, part in enumerate(question_batches):
        missing = []
        for one in running:
            if (right := store.answers.get((number, one.arm.name))) is None:
                missing.append(one.arm)
            else:
                answers[one.arm.name].append(right)
        done += len(part) * (len(running) - len(missing))
        for name, right in recalled(model, part, missing, number * batch_size):
            store.write_answers(number, name, right)
            answers[name].append(right)
            done += len(part)
            if progress is not None:
                progress(done, total, _so_far(scores_by_arm, plan))
    arrays = {} if needles is None else _recall(answers, plan)
    if rounds:
        assert scored_texts.ids is not None
        assert isinstance(reading, ThroughCache)
        first = scored_texts.ids[:batch_size]
        seconds = speeds(model, first, [one.arm for one in running], context=reading.context, rounds=rounds)
        times = [seconds[one.equal_to or one.arm.name] for one in plan]
        arrays["prefill_seconds"] = ("arm",), np.array([each.prefill for each in times])
        arrays["step_seconds"] = ("arm",), np.array([each.step for each in times])
        if progress is not None:
            progress(total, total, _so_far(scores_by_arm, plan))
    for one in plan:
        if one.equal_to:
            scores_by_arm[one.arm.name] = scores_by_arm[one.equal_to]
    return Trial(_dataset(scores_by_arm, plan, score, record, arrays))


@dataclass(frozen=True, eq=False)
class _Planned:
    """An arm with its place in the trial."""

    arm: Arm
    role: str
    of: str = ""
    draw: int = 0
    equal_to: str = ""


def _plan(arms: Sequence[Arm], texts: Texts, controls: int, seed: int, reference: Arm) -> list[_Planned]:
    """The unchanged model, baselines, arms and their controls, those that others are compared with first."""
    if not arms:
        raise InputError("nothing to compare with the unchanged model: give at least one arm")
    if controls < 0:
        raise InputError(f"controls = {controls}: a number of draws, 0 for none")
    if reference.name != REFERENCE:
        raise InputError(f"the reference is named '{reference.name}': expected '{REFERENCE}'")
    plan = [_Planned(reference, "reference")]
    referred = {arm.against for arm in arms}
    for arm in sorted(arms, key=lambda arm: (arm.name not in referred, not arm.baseline)):
        plan.append(_Planned(arm, "baseline" if arm.baseline else "arm"))
        for draw in range(controls if arm.control is not None else 0):
            assert arm.control is not None
            control = arm.control(seed + draw, texts)
            if control is None:
                break
            name = f"random {draw + 1} for {arm.name}" if controls > 1 else f"random for {arm.name}"
            plan.append(_Planned(replace(control, name=name, against=arm.against), "control", arm.name, draw))
    names = [one.arm.name for one in plan]
    if twice := next((name for name in names if names.count(name) > 1), None):
        clash = "which is the unchanged model, part of every trial" if twice == REFERENCE else "and another one too"
        raise InputError(f"an arm is named '{twice}', {clash}: every arm needs its own name")
    if absent := next((arm.against for arm in arms if arm.against not in names), None):
        raise InputError(f"an arm is compared with '{absent}', which is not an arm: there are {', '.join(names)}")
    first: dict[Any, str] = {}
    for index, one in enumerate(plan):
        if one.arm.same is None:
            continue
        # Arms that do the same still differ in KL where they are compared with different references.
        if (earlier := first.setdefault((one.arm.same, one.arm.against), one.arm.name)) != one.arm.name:
            plan[index] = replace(one, equal_to=earlier)
    return plan


def _left_out(plan: Sequence[_Planned], texts: Texts) -> Tensor | None:
    """Tokens at which nothing is scored: those that any arm touches. Raises `InputError` where none is left."""
    masks = [one.arm.touched(texts) for one in plan if one.arm.touched is not None]
    if not masks:
        return None
    touched = torch.stack([torch.as_tensor(np.asarray(mask)) for mask in masks]).any(0)
    real = torch.ones_like(touched) if texts.real is None else texts.real
    if not bool((real & ~touched).any()):
        raise InputError("every token is touched by some arm, so nothing is left to score: give longer texts")
    return touched


def _with_references(missing: Sequence[Arm], running: Sequence[Arm]) -> list[Arm]:
    """The arms still to run, after those that they are compared with, in the trial's order."""
    if not missing:
        return []
    # Stored scores hold no predictions, so a resumed batch runs its references again.
    needed = {arm.name for arm in missing} | {arm.against for arm in missing} | {REFERENCE}
    return [arm for arm in running if arm.name in needed]


@dataclass(frozen=True, eq=False)
class _Store:
    """Finished batches in a folder: `trial.json` identifies the trial, `scores.jsonl` has a line per arm and batch,
    `answers.jsonl` one per arm and batch of questions."""

    folder: Path | None
    lines: Mapping[tuple[int, int, str], Scores]
    answers: Mapping[tuple[int, str], Recalled]

    @classmethod
    def open(cls, out: str | Path | None, model: nn.Module, record: Mapping[str, Any], needles: Asked | None) -> _Store:
        if out is None:
            return cls(None, {}, {})
        folder = Path(out)
        identity = {**record["identity"], "model_sha256": model_digest(model), "versions": record["versions"]}
        if needles is not None:
            tokens = (needles.context, needles.keys, needles.answers)
            identity["needles"] = [hashlib.sha256(each.cpu().numpy().tobytes()).hexdigest() for each in tokens]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        head = folder / "trial.json"
        if head.exists():
            try:
                stored = json.loads(head.read_text()).get("identity_sha256")
            except (OSError, ValueError):
                stored = None
            if stored != digest:
                raise InputError(
                    f"{folder} holds another trial (other texts, arms, weights, options or versions): delete it, or "
                    "name a new folder"
                )
        else:
            write_json(head, {"identity_sha256": digest, **identity})
        scores = {}
        for row in whole_lines(folder / SCORES):
            parts: dict[str, Any] = {name: torch.tensor(row[name], dtype=torch.float64) for name in PER_TEXT}
            scores[row["start"], row["stop"], row["arm"]] = Scores(**parts, **{name: row[name] for name in PER_BATCH})
        answers = {}
        for row in whole_lines(folder / ANSWERS):
            seen = None if row["seen"] is None else torch.tensor(row["seen"])
            answers[row["number"], row["arm"]] = Recalled(torch.tensor(row["unseen"]), seen)
        return cls(folder, scores, answers)

    def read(self, rows: slice) -> dict[str, Scores]:
        return {arm: one for (start, stop, arm), one in self.lines.items() if (start, stop) == (rows.start, rows.stop)}

    def write(self, rows: slice, arm: str, scores: Scores) -> None:
        if self.folder is None:
            return
        row: dict[str, Any] = {"start": rows.start, "stop": rows.stop, "arm": arm}
        row |= {name: getattr(scores, name) for name in PER_BATCH}
        row |= {name: getattr(scores, name).tolist() for name in PER_TEXT}
        append_line(self.folder / SCORES, row)

    def write_answers(self, number: int, arm: str, answers: Recalled) -> None:
        if self.folder is None:
            return
        seen = None if answers.seen is None else answers.seen.tolist()
        append_line(
            self.folder / ANSWERS, {"number": number, "arm": arm, "unseen": answers.unseen.tolist(), "seen": seen}
        )


def _record(
    model: nn.Module,
    texts: Texts,
    plan: Sequence[_Planned],
    reading: Reading,
    calibrated_on: Mapping[str, Any] | None,
    tolerance: float,
    seed: int,
    batch_size: int,
    controls: int,
    about: Mapping[str, Any] | None,
) -> dict[str, Any]:
    config = getattr(model, "config", None)
    ids = texts.ids
    identity = {
        "model": str(getattr(config, "name_or_path", "") or type(model).__name__),
        "class": type(model).__name__,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "texts_sha256": texts.digest(),
        "reading": reading.describe(),
        "arms": {one.arm.name: {"role": one.role, **one.arm.facts} for one in plan},
        "calibrated_on": None if calibrated_on is None else dict(calibrated_on),
        "batch_size": batch_size,
        "seed": seed,
        "controls": controls,
    }
    vocabulary = getattr(config, "vocab_size", None)
    return {
        "identity": identity,
        **identity,
        "texts": texts.count,
        "tokens": None if ids is None else int(ids.shape[1]),
        "vocabulary": vocabulary if isinstance(vocabulary, int) else None,
        "tolerance": tolerance,
        "device": device_of(model).type,
        "threads": torch.get_num_threads(),
        "unit": "a text, of equal weight whatever its length",
        "interval": "95 %, Student's t over texts; shares on the logit scale",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        **dict(about or {}),
    }


def _so_far(scores_by_arm: Mapping[str, Sequence[Scores]], plan: Sequence[_Planned]) -> str:
    """The arm that is nearest to the unchanged model so far."""
    means = {
        one.arm.name: float(torch.cat([part.kl for part in scores_by_arm[one.arm.name]]).nanmean())
        for one in plan
        if one.role == "arm" and scores_by_arm[one.arm.name]
    }
    if not means:
        return ""
    best = min(means, key=means.__getitem__)
    return f"nearest so far: {best}, KL {means[best]:.3f}"


def _recall(answers: Mapping[str, Sequence[Recalled]], plan: Sequence[_Planned]) -> dict[str, Any]:
    names = [one.equal_to or one.arm.name for one in plan]
    unseen = [torch.cat([part.unseen for part in answers[name]]).double().numpy() for name in names]
    arrays: dict[str, Any] = {"recall": (("arm", "row", "question"), np.stack(unseen))}
    seen = [[part.seen for part in answers[name] if part.seen is not None] for name in names]
    if all(seen):
        arrays["recall_seen"] = ("arm", "row"), np.stack([torch.cat(parts).double().numpy() for parts in seen])
    return arrays


def _dataset(
    scores_by_arm: Mapping[str, Sequence[Scores]],
    plan: Sequence[_Planned],
    score: Sequence[str],
    record: Mapping[str, Any],
    more: Mapping[str, Any],
) -> xr.Dataset:
    def stacked(name: str) -> np.ndarray:
        return np.stack(
            [torch.cat([getattr(part, name) for part in scores_by_arm[one.arm.name]]).numpy() for one in plan]
        )

    arrays: dict[str, Any] = {name: (("arm", "text"), stacked(name)) for name in score}
    # The same in all arms, since no arm is scored where any touches.
    scored_places = stacked("scored")[0]
    if not scored_places.any():
        raise InputError("no prediction is left to score: every one is at a token that some arm touches")
    arrays["scored"] = ("text",), scored_places
    for name in PER_BATCH:
        values = [[getattr(part, name) for part in scores_by_arm[one.arm.name]] for one in plan]
        arrays[name] = ("arm",), np.array([float(np.median(each)) for each in values])
    arrays |= more
    data = xr.Dataset(
        {name: (dims, values, {"units": UNITS[name]}) for name, (dims, values) in arrays.items()},
        coords={
            "arm": [one.arm.name for one in plan],
            "role": ("arm", [one.role for one in plan]),
            "of": ("arm", [one.of for one in plan]),
            "draw": ("arm", [one.draw for one in plan]),
            "series": ("arm", [one.arm.series for one in plan]),
            "against": ("arm", [one.arm.against for one in plan]),
            "equal_to": ("arm", [one.equal_to for one in plan]),
        },
    )
    kept = {name: value for name, value in record.items() if name != "identity"}
    return data.assign_attrs(record=json.dumps(kept))

"""Arms of caches that drop keys: policies at equal bytes, random ones that protect the same, and sinks taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import Cache, DynamicCache

from sinkscope.caches import EvictionCall, Policy, Protect, SinkSet, StreamingCache, evicting, policy_of
from sinkscope.caches.memory import held_bytes
from sinkscope.caches.notes import Note
from sinkscope.caches.policies import POLICIES, RandomKeys
from sinkscope.caches.policies.places import _mixed
from sinkscope.errors import InputError, unknown
from sinkscope.hooks import unwrapped
from sinkscope.measuring.evidence import find_tokens
from sinkscope.sinks import (
    Choice,
    Evidence,
    First,
    Measured,
    NothingChosenError,
    Online,
    Positions,
    Rows,
    Sum,
    Tokens,
    parse,
)
from sinkscope.trials.arm import Arm, Texts, ThroughCache, unchanged
from sinkscope.trials.feeding import feeding
from sinkscope.trials.run import run
from sinkscope.trials.texts import split
from sinkscope.trials.trial import SENTENCES, Trial, _nats, _negated

KIND = "eviction"
DEFAULT = ("streaming", "h2o", "snapkv", "keydiff")
STREAM = "stream"  # in the place of a policy: a `StreamingCache`, which renumbers positions
RECENT = 32  # newest tokens that stay, where budgets have the room
SINKS = 4  # first tokens of a `StreamingCache`
NEVER_DRAWN = 8  # the first places, where sinks are likely: none is kept in the place of a sink
SMALLEST_RECALL = 0.5  # of the full cache, below which recall says little about caches
PASSES = 8  # over one text, to find how many keys fit
When = Literal["prefill", "always"]
Budget = int | float
"""Keys per head (int), or a share of the context (float, above 0 and at most 1)."""


def eviction_trial(
    model: nn.Module,
    inputs: Any,
    policies: Sequence[str | Policy] = DEFAULT,
    budgets: Sequence[Budget] = (0.25,),
    *,
    context: int | None = None,
    protect: Choice | str | None = None,
    recent: int | None = None,
    when: When = "prefill",
    without_sinks: bool = False,
    calibrate_on: Any = None,
    controls: int = 1,
    seed: int = 0,
    about: Mapping[str, Any] | None = None,
    **options: Any,
) -> Trial:
    """What policies cost at equal bytes, compared with random ones at the same bytes that protect the same tokens.

    The context is read in one pass, after which a cache drops what its policy gives up; the rest is predicted from what
    is left, at the true positions.

    Args:
        model: A decoder that reads on from a cache.
        inputs: Ids (N, T) without padding. Where sinks are measured, some of the texts are for that (`trials.split`).
        policies: Names of `caches.POLICIES`, policies, or "stream" for a `StreamingCache`.
        budgets: Keys per head, or shares of the context; arms of a budget hold the bytes that so many plain keys take.
        context: Tokens that are read at once; default: half of a text.
        protect: Tokens that stay in every arm, controls included: a choice or its words. Default: "measured" sinks, or
            nothing where there are none; an explicit choice that chooses none is refused.
        recent: Newest tokens that stay in every arm; default 32, or a quarter of the smallest budget if that is less.
        when: "prefill": keys are dropped after the context; "always": at every token after it as well.
        without_sinks: Add an arm for each policy from which the protected tokens and its own first ones are taken
            away, with as many random tokens kept in their place.
        calibrate_on: Texts to measure sinks in; then all of `inputs` are scored.
        controls: Draws of the random policy.
        seed: Of all draws.
        about: More for the record.
        options: Of `trials.run`: needles, rounds, tolerance, batch_size, out, progress.

    Raises `InputError` for unknown policies, and for budgets that cannot hold what must stay at this context.
    """
    model = unwrapped(model)
    choice = Measured() if protect is None else parse(protect) if isinstance(protect, str) else protect
    measured = any(isinstance(part, Measured) and part.measurement is None for part in _parts(choice))
    texts = split(model, inputs, "chooses" if measured else "nothing", calibrate_on=calibrate_on if measured else None)
    ids = texts.scored.ids
    if ids is None:
        raise InputError("texts are read through a cache: give token ids")
    context = ids.shape[1] // 2 if context is None else context
    ThroughCache(context).check(texts.scored)
    notes = []
    try:
        protection = Protection.of(model, choice, texts.calibration, context)
    except NothingChosenError as error:
        if protect is not None:
            raise
        notes.append(f"Nothing is protected: {error}.")
        protection = Protection(context=context)
    setting = _Setting(model, ids[:1, :context], protection, _newest(recent, budgets, context), when, seed)
    arms, remarks = _arms(setting, policies, budgets, without_sinks=without_sinks)
    streams = any(arm.facts["policy"]["name"] == STREAM for arm in arms)  # such a cache shows a pass more than a token
    return run(
        model,
        texts.scored,
        arms,
        reading=ThroughCache(context, 1 if when == "always" or streams else None),
        controls=controls,
        calibrated_on=texts.record,
        seed=seed,
        about={
            **(about or {}),
            "kind": KIND,
            "protect": protection.describe(),
            "recent": setting.recent,
            "when": when,
            "notes": [*notes, *remarks],
        },
        **options,
    )


def policy_arms(
    model: nn.Module,
    ids: Int[Tensor, "text token"],
    policies: Sequence[str | Policy] = DEFAULT,
    budgets: Sequence[Budget] = (0.25,),
    *,
    context: int,
    protect: Choice | Tokens | str | None = None,
    recent: int | None = None,
    when: When = "prefill",
    without_sinks: bool = False,
    seed: int = 0,
) -> list[Arm]:
    """The arms of `eviction_trial` for a `trials.run` of one's own, with its arguments; protect=None protects nothing.

    The first text is read to see how many keys of each policy take the bytes of a budget. Sinks that are measured need
    texts of their own: give their `Tokens`. Raises `InputError` as `eviction_trial` does.
    """
    model = unwrapped(model)
    if isinstance(protect, Tokens):
        protection = Protection(None, protect, context=context)
    else:
        choice = parse(protect) if isinstance(protect, str) else protect
        if any(isinstance(part, Measured) and part.measurement is None for part in _parts(choice)):
            raise InputError(
                "measured: sinks are measured in texts of their own: protect=find_tokens(model, texts, 'measured')"
            )
        protection = Protection.of(model, choice, None, context)
    setting = _Setting(model, ids[:1, :context], protection, _newest(recent, budgets, context), when, seed)
    return _arms(setting, policies, budgets, without_sinks=without_sinks)[0]


@dataclass(frozen=True, eq=False)
class Protection:
    """Tokens that stay in every arm: some that hold for any text, some that are looked for in each, some online."""

    choice: Choice | None = None
    tokens: Tokens | None = None
    in_text: Choice | None = None
    online: Online | None = None
    context: int = 0
    known: dict[str, Tokens | None] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, choice: Choice | None, calibration: Texts | None, context: int) -> Protection:
        """What a choice protects; measured sinks are those of the calibration texts' contexts, by position.

        Raises `NothingChosenError` where there are none.
        """
        tokens: Tokens | None = None
        in_text: Choice | None = None
        online: Online | None = None
        for part in _parts(choice):
            if isinstance(part, Online):
                online = part
                continue
            if isinstance(part, Measured) and part.measurement is None:
                assert calibration is not None
                assert calibration.ids is not None
                one = find_tokens(model, calibration.ids[:, :context], replace(part, by="position"))
            elif isinstance(part, Measured | First | Positions):
                one = part.resolve(Evidence(Rows.plain([context])))
            else:
                in_text = part if in_text is None else in_text + part
                continue
            tokens = one if tokens is None else tokens | one
        return cls(choice, tokens, in_text, online, context)

    def on(self, model: nn.Module, texts: Texts) -> Tokens | None:
        """Those of these texts, as far as they are known before reading; None where there are none."""
        ids = texts.ids
        assert ids is not None
        ids = ids[:, : self.context]
        rows = Rows.plain([ids.shape[1]] * len(ids))
        tokens = None if self.tokens is None else self.tokens.on(rows)
        if self.in_text is None:
            return tokens
        key = Texts.of_ids(ids).digest()
        if key not in self.known:
            try:
                self.known[key] = find_tokens(model, ids, self.in_text).on(rows)
            except NothingChosenError:
                self.known[key] = None
        other = self.known[key]
        return tokens if other is None else other if tokens is None else tokens | other

    def sinks(self, tokens: Tokens | None) -> SinkSet:
        """What stays in a cache, with those of its texts."""
        parts = [] if tokens is None else [Stays(tokens)]
        parts += [] if self.online is None else [SinkSet.online(self.online.epsilon)]
        return parts[0] if len(parts) == 1 else Both(*parts) if parts else SinkSet.first(0)

    def describe(self) -> dict[str, Any]:
        found = {"words": "none" if self.choice is None and self.tokens is None else str(self.choice or "tokens")}
        return found if self.tokens is None else found | self.tokens.describe()


@dataclass(frozen=True, eq=False)
class Stays(SinkSet):
    """Tokens that are known beforehand, text by text and head by head."""

    tokens: Tokens

    @property
    def most(self) -> int | None:
        return int(self.tokens.mask.any(2).sum(-1).max(initial=0))

    @property
    def together(self) -> bool:
        return self.tokens.mask.shape[:2] == (1, 1)

    def among(self, call: EvictionCall) -> Bool[Tensor, "batch kv_heads key"]:
        mask = torch.from_numpy(self.tokens.layer(getattr(call.module, "layer_idx", 0))).to(call.places.device)
        mask = mask if mask.shape[1] == 1 else mask.unflatten(1, (-1, call.group)).any(2)
        where = call.positions.clamp(0, mask.shape[-1] - 1)
        inside = (call.positions >= 0) & (call.positions < mask.shape[-1])
        return mask.expand(*where.shape[:2], -1).gather(-1, where) & inside


@dataclass(frozen=True, eq=False)
class Both(SinkSet):
    """What either of two sets holds."""

    one: SinkSet
    other: SinkSet

    @property
    def needs(self) -> tuple[Note, ...]:
        return tuple(dict.fromkeys((*self.one.needs, *self.other.needs)))

    @property
    def together(self) -> bool:
        return self.one.together and self.other.together

    def among(self, call: EvictionCall) -> Bool[Tensor, "batch kv_heads key"]:
        return self.one.among(call) | self.other.among(call)


@dataclass(frozen=True)
class RandomByText(RandomKeys):
    """A random order of the places of each head, another one in each text; the first `whole` layers keep everything.

    `texts`: the number of each row's text, so that no result depends on the batch.
    """

    whole: int = 0
    texts: tuple[int, ...] = ()

    @property
    def skipped(self) -> int:
        return self.whole

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        device = call.places.device
        heads = torch.arange(call.places.shape[1], device=device)[:, None]
        text = torch.tensor(self.texts, device=device)[:, None, None]
        stream = _mixed((self.seed * 4099 + call.layer) * 4099 + heads) + _mixed(text)
        return _mixed(_mixed(stream) + call.positions).double()


@dataclass(frozen=True)
class Displaced(Protect):
    """`policy` without the tokens of `gone`, which go before all others; those of `sinks` and `recent` new ones stay."""

    gone: SinkSet = field(default_factory=SinkSet.first)

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        score = super().score(call)
        stays = self.sinks.among(call) | (call.places >= call.total - self.recent)
        return score.masked_fill(self.gone.among(call) & ~stays, torch.finfo(score.dtype).min)


@dataclass(frozen=True, eq=False)
class _Setting:
    """What the arms of a trial have in common; `text` is the context of one text, to see what caches hold."""

    model: nn.Module
    text: Int[Tensor, "1 token"]
    protection: Protection
    recent: int
    when: When
    seed: int

    @property
    def context(self) -> int:
        return self.text.shape[1]

    def held(self, arm: Arm) -> int:
        """Bytes after the context of one text."""
        with feeding(self.model, arm, self.text) as feed:
            feed.read(self.text)
            return held_bytes(feed.cache)

    def arm(self, name: str, policy: Policy, keys: int, *, displaced: bool = False, **options: Any) -> Arm:
        """A policy that keeps so many keys per head, and what stays in every arm."""

        @contextmanager
        def opened(model: nn.Module, texts: Texts) -> Iterator[Cache]:
            tokens = self.protection.on(model, texts)
            numbers = tuple(range(texts.rows.start, texts.rows.stop))
            used = replace(policy, texts=numbers) if isinstance(policy, RandomByText) else policy
            if displaced:
                gone = self._gone(policy, tokens, texts)
                instead = self._instead(gone, numbers)
                kept: Policy = Displaced(used, Stays(instead), self.recent, Stays(gone))
            else:
                kept = Protect(used, self.protection.sinks(tokens), self.recent)
            with evicting(model, kept, keys, self.when) as cache:
                yield cache

        return Arm(name, opened, **options)

    def stream(self, name: str, keys: int, **options: Any) -> Arm:
        """A `StreamingCache` of so many keys."""
        sinks = self.first_tokens

        @contextmanager
        def opened(model: nn.Module, texts: Texts) -> Iterator[Cache]:
            yield StreamingCache(model, sinks=sinks, window=keys - sinks)

        return Arm(name, opened, **options)

    @property
    def first_tokens(self) -> int:
        """Sinks of a `StreamingCache` that protects what is protected. Raises `InputError` where it cannot."""
        protection = self.protection
        if protection.in_text is not None or protection.online is not None:
            raise InputError(f"{STREAM} keeps first tokens, so it cannot protect '{protection.choice}': leave one out")
        positions = () if protection.tokens is None else protection.tokens.positions
        return max(SINKS, *(place + 1 for place in positions)) if positions else SINKS

    def least(self, policy: Policy, *, displaced: bool = False) -> int:
        """Keys that a policy needs at least, with what must stay."""
        sinks = self.protection.sinks(self.protection.tokens)
        count = sinks.most or 0
        if displaced:
            count = max(count, _own_first(policy))
        return max(policy.least, count + self.recent + 1)

    def _gone(self, policy: Policy, tokens: Tokens | None, texts: Texts) -> Tokens:
        """Protected tokens and a policy's own first ones, in all layers and heads."""
        ids = texts.ids
        assert ids is not None
        rows = Rows.plain([min(self.context, ids.shape[1])] * len(ids))
        mask = (rows.order >= 0) & (rows.order < _own_first(policy))
        if tokens is not None:
            mask = mask | tokens.any_head()
        return Tokens(mask[:, None, None], rows, (), "sinks")

    def _instead(self, gone: Tokens, numbers: Sequence[int]) -> Tokens:
        """As many random ones, drawn anew for each text: none of the first, and none that stays as a recent one."""
        rows, masks = gone.rows, []
        assert rows is not None
        free = (rows.order >= NEVER_DRAWN) & (rows.order < rows.order.max() + 1 - self.recent)
        for row, number in enumerate(numbers):
            place = slice(row, row + 1)
            drawn = gone.part(place).random(np.random.default_rng([self.seed, number]), free=free[place])
            masks.append(drawn.mask)
        return replace(gone, mask=np.concatenate(masks), chosen_by="random tokens in the place of sinks")


def _arms(
    setting: _Setting, policies: Sequence[str | Policy], budgets: Sequence[Budget], *, without_sinks: bool
) -> tuple[list[Arm], list[str]]:
    """An arm for each policy and budget, and what was changed to fit, in sentences."""
    if not policies or not budgets:
        raise InputError("give at least one policy and one budget")
    named = [_named(policy) for policy in policies]
    notes = dict.fromkeys(_whole_layers(setting, named))
    arms = []
    for budget in budgets:
        asked = keys_of(budget, setting.context)
        if asked >= setting.context:
            notes[f"A budget of {asked} keys drops nothing of a context of {setting.context} tokens."] = None
        random = RandomByText()
        _check_room(setting, f"budget {in_words(budget)}", asked, setting.least(random))
        limit = setting.held(setting.arm("random", random, asked))
        for name, policy in named:
            title = f"{name}@{in_words(budget)}"
            options: dict[str, Any] = {"series": name}
            facts = {"budget": in_words(budget), "asked_keys": asked, "bytes_limit": limit}
            if policy is None:
                sinks = setting.first_tokens
                make = partial(setting.stream, title)
                keys = _fitting(setting, title, make, asked, limit, sinks + max(1, setting.recent))
                about = {"name": STREAM, "sinks": sinks, "window": keys - sinks}
                whole = 0
            else:
                used = _fitted(policy, setting.recent)
                make = partial(setting.arm, title, used)
                keys = _fitting(setting, title, make, asked, limit, setting.least(used))
                about = {"name": name, **_fields(used)}
                whole = used.skipped
                notes |= dict.fromkeys(_remarks(name, policy, used, keys, setting.recent))
            if not isinstance(policy, RandomKeys):
                options["control"] = _control(setting, title, asked, limit, whole)
            facts |= {"keys": keys, "policy": about}
            arms.append(make(keys, facts=facts, **options))
            if without_sinks and policy is not None and not isinstance(policy, RandomKeys):
                arms += _without(setting, title, name, used, keys, facts)
    return arms, list(notes)


def _without(
    setting: _Setting, title: str, name: str, policy: Policy, keys: int, facts: Mapping[str, Any]
) -> list[Arm]:
    """The policy with its sinks taken away, where there are any that are known before reading."""
    if setting.protection.tokens is None and setting.protection.in_text is None and not _own_first(policy):
        return []
    if keys < (needed := setting.least(policy, displaced=True)):
        raise InputError(f"{title}: {keys} keys, and {needed} are needed for random tokens in the place of sinks")
    options = {"series": f"{name} without sinks", "facts": {**facts, "without_sinks_of": title}}
    return [setting.arm(f"{title} without sinks", policy, keys, displaced=True, **options)]


def _control(setting: _Setting, title: str, asked: int, limit: int, whole: int) -> Callable[[int, Texts], Arm]:
    """A random policy of the same bytes that protects the same, and keeps the same layers whole."""
    policy = RandomByText(whole=whole)
    keys = asked
    if whole:
        make = partial(setting.arm, f"random for {title}", policy)
        keys = _fitting(setting, f"random for {title}", make, asked, limit, setting.least(policy))

    def drawn(draw: int, texts: Texts) -> Arm:
        facts = {"keys": keys, "policy": {"name": "random", "seed": draw, "whole": whole}}
        same = ("random", keys, whole, draw)
        return setting.arm("random", replace(policy, seed=draw), keys, facts=facts, same=same)

    return drawn


def _fitting(setting: _Setting, title: str, make: Callable[[int], Arm], asked: int, limit: int, least: int) -> int:
    """The most keys with which an arm holds no more than `limit` bytes after the context.

    Raises `InputError` where what must stay, or the notes alone, take more.
    """
    _check_room(setting, title, asked, least)
    if asked >= setting.context:
        return asked
    sizes = {asked: setting.held(make(asked))}
    for _ in range(PASSES):
        points = sorted(sizes)
        slope = limit / asked
        if len(points) > 1:
            slope = (sizes[points[-1]] - sizes[points[0]]) / (points[-1] - points[0]) or slope
        fits = [keys for keys in points if sizes[keys] <= limit]
        start = fits[-1] if fits else points[0]
        step = int((limit - sizes[start]) // slope)
        keys = min(setting.context, max(least, start + step))
        if keys in sizes or (fits and any(start < other <= keys for other in points)):
            break
        sizes[keys] = setting.held(make(keys))
    fits = [keys for keys in sizes if sizes[keys] <= limit]
    if not fits:
        smallest = min(sizes, key=sizes.__getitem__)
        raise InputError(
            f"{title}: with {smallest} keys it holds {sizes[smallest]} bytes a text after a context of "
            f"{setting.context} tokens, and the budget is {limit}: layers that it leaves whole, and its notes, take too "
            "much; give a larger budget or a longer context"
        )
    return max(fits)


def _check_room(setting: _Setting, title: str, asked: int, least: int) -> None:
    if asked < least:
        raise InputError(
            f"{title}: {asked} of {setting.context} tokens are too few to keep, with {least - 1} that must stay "
            f"({setting.recent} recent ones among them): give a budget of at least {least}, or fewer recent tokens"
        )


def keys_of(budget: Budget, context: int) -> int:
    """Keys per head that a budget is for a context. Raises `InputError` for one that is none."""
    if isinstance(budget, bool) or budget <= 0 or (isinstance(budget, float) and budget > 1):
        raise InputError(f"budget {budget}: a number of keys of at least 1, or a share above 0 and at most 100%")
    return max(1, int(budget * context + 1e-9)) if isinstance(budget, float) else budget


def in_words(budget: Budget) -> str:
    """25% or 64."""
    return f"{100 * budget:g}%" if isinstance(budget, float) else str(budget)


def _newest(recent: int | None, budgets: Sequence[Budget], context: int) -> int:
    """Recent tokens that stay in every arm."""
    if recent is not None:
        return recent
    return min(RECENT, min((keys_of(budget, context) for budget in budgets), default=RECENT) // 4)


def _named(policy: str | Policy) -> tuple[str, Policy | None]:
    """A policy and its name; None for a `StreamingCache`."""
    if policy == STREAM:
        return STREAM, None
    if isinstance(policy, str) and policy not in POLICIES:
        raise unknown("policy", policy, [*POLICIES, STREAM])
    made = policy_of(policy)
    name = next((known for known, kind in POLICIES.items() if kind is type(made)), type(made).__name__)
    return name, RandomByText(made.seed) if type(made) is RandomKeys else made


def _fitted(policy: Policy, recent: int) -> Policy:
    """The policy with its own recent part, where it has one, as long as that of all arms."""
    names = {each.name for each in fields(policy)} if is_dataclass(policy) else set()
    if "recent" in names and isinstance(policy.recent, int):  # type: ignore[attr-defined]
        return replace(policy, recent=recent)  # type: ignore[type-var]
    if "window" in names and policy.least == policy.window + 1:  # type: ignore[attr-defined]
        return replace(policy, window=max(1, recent))  # type: ignore[type-var]
    return policy


def _fields(policy: Policy) -> dict[str, Any]:
    if not is_dataclass(policy):
        return {"type": type(policy).__name__}
    values = {each.name: getattr(policy, each.name) for each in fields(policy) if each.name not in ("texts",)}
    return {
        name: value if isinstance(value, str | int | float | None) else repr(value) for name, value in values.items()
    }


def _remarks(name: str, policy: Policy, used: Policy, keys: int, recent: int) -> Iterator[str]:
    """What differs from a policy's own settings, and what it keeps that others do not."""
    before, after = _fields(policy), _fields(used)
    for field_name, value in after.items():
        if value != before.get(field_name):
            yield f"{name} has {field_name} = {value} to fit the budget, by default {before[field_name]}."
    share = after.get("recent")
    if isinstance(share, float) and share:
        yield f"{name} keeps the newest {int(keys * share)} of its {keys} keys, the others the newest {recent}."


def _whole_layers(setting: _Setting, named: Sequence[tuple[str, Policy | None]]) -> Iterator[str]:
    """Which layers keep everything, and how much of all bytes they hold."""
    with feeding(setting.model, unchanged(), setting.text) as feed:
        feed.read(setting.text)
        held = [_held(layer) for layer in feed.cache.layers]
    with evicting(setting.model, RandomKeys(), setting.context) as cache:
        alone = cache.left_alone
    evicts = [index for index in range(len(held)) if index not in alone]
    if alone:
        share = 100 * sum(held[index] for index in alone) / max(1, sum(held))
        yield (
            f"Keys are dropped in {len(evicts)} of {len(held)} layers; the others (windows, states) hold {share:.0f} % "
            "of all bytes in every arm."
        )
    for name, policy in named:
        if policy is not None and policy.skipped:
            share = 100 * sum(held[index] for index in evicts[: policy.skipped]) / max(1, sum(held))
            yield (
                f"{name} and its control keep the first {policy.skipped} layers whole, {share:.0f} % of all bytes, "
                "and so much less in the others."
            )


def _held(layer: Any) -> int:
    cache = DynamicCache()
    cache.layers = [layer]
    return held_bytes(cache)


def _own_first(policy: Policy) -> int:
    """First tokens that a policy keeps by itself."""
    count = getattr(policy, "sinks", 0)
    return count if isinstance(count, int) else 0


def _parts(choice: Choice | None) -> tuple[Choice, ...]:
    return () if choice is None else choice.parts if isinstance(choice, Sum) else (choice,)


def _sentences(trial: Trial) -> list[str]:
    """Each policy compared with random keys at the same bytes; then what it loses with its sinks taken away."""
    facts = trial.record.get("arms", {})
    said = []
    for arm in trial.named("arm"):
        if whole := facts.get(arm, {}).get("without_sinks_of"):
            loss = trial.difference(arm, whole)
            what = f"'{whole}' with its sinks taken away and random tokens kept in their place"
            if loss.low > 0:
                said.append(f"{what} costs {_nats(loss)} nats more: it needs them.")
            else:
                said.append(f"{what} does not cost more beyond chance (difference {_nats(loss)} nats).")
        elif not trial.controls(arm) or trial.word(arm) == "breaks":
            said.append(trial.sentence(arm))
        else:
            gain = _negated(trial.difference(arm))
            if gain.low > 0:
                told = f"'{arm}' beats random at the same bytes by {_nats(gain)} nats"
            elif gain.high < 0:
                told = f"'{arm}' is worse than random at the same bytes, by {_nats(_negated(gain))} nats"
            else:
                told = f"'{arm}' cannot be told from random at the same bytes (difference {_nats(gain)} nats)"
            said.append(f"{told}; {trial.cost_in_words(arm)}.")
    if "recall" in trial.data:
        full = trial.mean(trial.arms[0], "recall").value
        rates = [f"{arm} {100 * trial.mean(arm, 'recall').value:.0f} %" for arm in trial.named("arm")]
        said.append(f"Recall: full {100 * full:.0f} %, {', '.join(rates)}.")
        if full < SMALLEST_RECALL:
            said.append("The model answers few questions with the full cache, so recall says little about caches.")
    return said


SENTENCES[KIND] = _sentences

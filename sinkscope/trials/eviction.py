"""Arms of caches that drop keys: policies at equal bytes, random ones that protect the same, and sinks taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import Cache, DynamicCache

from sinkscope.caches import (
    ENGINES,
    POLICIES,
    EvictionCall,
    Policy,
    Protect,
    RandomLike,
    Renumbered,
    ServedCache,
    Stream,
    Uniform,
    engine,
    evicting,
    held,
    keys_within,
    policy_of,
)
from sinkscope.caches.policies import RandomKeys
from sinkscope.caches.sinks import among
from sinkscope.caches.sizes import held_bytes
from sinkscope.errors import InputError, unknown
from sinkscope.hooks import unwrapped
from sinkscope.measurement import find_tokens
from sinkscope.sinks import (
    Choice,
    Evidence,
    First,
    Measured,
    NothingChosenError,
    Online,
    Positions,
    Rows,
    Tokens,
    parse,
    parts_of,
)
from sinkscope.trials.arm import Arm, Texts, ThroughCache, unchanged
from sinkscope.trials.feeding import feeding
from sinkscope.trials.run import run
from sinkscope.trials.texts import split
from sinkscope.trials.trial import SENTENCES, Trial
from sinkscope.trials.words import nats

KIND = "eviction"
DEFAULT = ("streaming", "h2o", "snapkv", "keydiff")
RECENT = 32  # newest tokens that stay, where budgets have the room
WHOLE = 2  # bytes of a number in 16 bits, which caches of engines are compared with
NEVER_DRAWN = 8  # the first places, where sinks are likely: none is kept in the place of a sink
SMALLEST_RECALL = 0.5  # of the full cache, below which recall says little about caches
UNEQUAL = 0.02  # of a budget's bytes: what an arm may hold more before it is said
When = Literal["prefill", "always"]
Budget = int | float
"""Keys per head (int), or a share of the context (float, above 0 and at most 1)."""


def eviction_trial(
    model: nn.Module,
    inputs: Any,
    policies: Sequence[str | Policy | Stream] = DEFAULT,
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
        policies: Names of `caches.POLICIES`, policies, "streaming-cache" for a `StreamingCache`, or names of
            `caches.ENGINES`: caches as engines run them. Those that only round have one arm, whatever the budgets.
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
        seed: For all draws.
        about: More for the record.
        options: Passed to `trials.run`: needles, rounds, tolerance, batch_size, out, progress.

    Raises `InputError` for unknown policies, and for budgets that cannot hold what must stay at this context.
    """
    model = unwrapped(model)
    choice = Measured() if protect is None else parse(protect) if isinstance(protect, str) else protect
    measured = _measures(choice)
    texts = split(model, inputs, "chooses" if measured else "nothing", calibrate_on=calibrate_on if measured else None)
    context = ThroughCache.of(texts.scored, context).context
    ids = texts.scored.ids
    assert ids is not None
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
    streams = any(
        arm.facts["policy"]["policy"] in ("StreamingCache", "EngineCache") for arm in arms
    )  # such a cache shows a pass more than a token
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
    policies: Sequence[str | Policy | Stream] = DEFAULT,
    budgets: Sequence[Budget] = (0.25,),
    *,
    context: int,
    protect: Choice | Tokens | str | None = None,
    recent: int | None = None,
    when: When = "prefill",
    without_sinks: bool = False,
    seed: int = 0,
) -> list[Arm]:
    """The arms of `eviction_trial`, for another call of `trials.run`.

    Args:
        model: A decoder that reads on from a cache.
        ids: The texts. The first one is read to see how many keys of each policy take the bytes of a budget.
        policies, budgets, recent, when, without_sinks: As in `eviction_trial`.
        context: Tokens that are read at once.
        protect: Tokens that stay in every arm; None for nothing. Measured sinks need other texts: give their `Tokens`,
            from `find_tokens`.
        seed: Seed of the random policy.

    Raises `InputError` as `eviction_trial` does.
    """
    model = unwrapped(model)
    if isinstance(protect, Tokens):
        protection = Protection(None, protect, context=context)
    else:
        choice = parse(protect) if isinstance(protect, str) else protect
        if _measures(choice):
            raise InputError(
                "measured: sinks are measured in texts of their own: protect=find_tokens(model, texts, 'measured')"
            )
        protection = Protection.of(model, choice, None, context)
    setting = _Setting(model, ids[:1, :context], protection, _newest(recent, budgets, context), when, seed)
    return _arms(setting, policies, budgets, without_sinks=without_sinks)[0]


def _measures(choice: Choice | None) -> bool:
    """Whether sinks are still to be measured."""
    parts = () if choice is None else parts_of(choice)
    return any(isinstance(part, Measured) and part.measurement is None for part in parts)


@dataclass(frozen=True, eq=False)
class Protection:
    """Tokens that stay in every arm: some that hold for any text, some that are looked for in each, some online."""

    choice: Choice | None = None
    tokens: Tokens | None = None
    in_text: Choice | None = None
    online: Online | None = None
    context: int = 0
    by_text: dict[str, Tokens | None] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, choice: Choice | None, calibration: Texts | None, context: int) -> Protection:
        """What a choice protects; measured sinks are those of the calibration texts' contexts, by position.

        Raises `NothingChosenError` where there are none.
        """
        tokens: Tokens | None = None
        in_text: Choice | None = None
        online: Online | None = None
        for part in () if choice is None else parts_of(choice):
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
        if key not in self.by_text:
            try:
                self.by_text[key] = find_tokens(model, ids, self.in_text).on(rows)
            except NothingChosenError:
                self.by_text[key] = None
        other = self.by_text[key]
        return tokens if other is None else other if tokens is None else tokens | other

    def around(self, policy: Policy, tokens: Tokens | None, recent: int) -> Policy:
        """The policy with what must stay."""
        return Protect(policy if self.online is None else Protect(policy, self.online, 0), tokens, recent)

    def describe(self) -> dict[str, Any]:
        about = {"words": "none" if self.choice is None and self.tokens is None else str(self.choice or "tokens")}
        return about if self.tokens is None else about | self.tokens.describe()


@dataclass(frozen=True)
class Displaced(Protect):
    """`policy` without the tokens `gone`, which go before all others; those of `protect` and `recent` new ones stay."""

    gone: Tokens | None = None

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        score = super().score(call)
        if self.gone is None:
            return score
        # Recent tokens stay, sinks or not. The minimum, not −inf: a key at −inf is not kept even where there is room.
        displaced = among(self.gone, call) & (call.places < call.total - self.recent)
        return score.masked_fill(displaced, torch.finfo(score.dtype).min)


@dataclass(frozen=True, eq=False)
class _Setting:
    """What the arms of a trial have in common; `text` is the context of one text, to see what layers hold."""

    model: nn.Module
    text: Int[Tensor, "1 token"]
    protection: Protection
    recent: int
    when: When
    seed: int

    @property
    def context(self) -> int:
        return self.text.shape[1]

    def arm(self, name: str, policy: Policy, keys: int, *, displaced: bool = False, **options: Any) -> Arm:
        """A policy that keeps `keys` keys per head, and what stays in every arm."""

        @contextmanager
        def opened(model: nn.Module, texts: Texts) -> Iterator[Cache]:
            tokens = self.protection.on(model, texts)
            numbers = tuple(range(texts.rows.start, texts.rows.stop))
            used = replace(policy, texts=numbers) if isinstance(policy, RandomKeys | RandomLike) else policy
            if displaced:
                # Random tokens are protected in their place, so as many keys as before are left to the policy's choice.
                replaced = self._displaced(policy, tokens, texts)
                kept: Policy = Displaced(used, self._instead(replaced, numbers), self.recent, replaced)
            else:
                kept = self.protection.around(used, tokens, self.recent)
            with evicting(model, kept, keys, self.when) as cache:
                yield cache

        return Arm(name, opened, first_pass="calls", **options)

    def stream(self, name: str, stream: Stream, keys: int | None, **options: Any) -> Arm:
        """A stream that holds `keys` keys, or a cache that keeps all (None)."""

        @contextmanager
        def opened(model: nn.Module, texts: Texts) -> Iterator[Cache]:
            yield stream.cache(model, keys)  # type: ignore[arg-type]

        return Arm(name, opened, **options)

    def prepared(self, policy: Policy | Stream) -> Policy | Stream:
        """The policy as it is used, as far as this is known before a text.

        Raises `InputError` where a stream would have to protect other tokens than its first.
        """
        protection = self.protection
        if isinstance(policy, Policy):
            return protection.around(policy.fitted(self.recent), protection.tokens, self.recent)
        if protection.in_text is not None or protection.online is not None:
            raise InputError(
                f"{policy.name} keeps its first tokens and the newest, so it cannot protect '{protection.choice}': "
                "leave one of them out"
            )
        positions = () if protection.tokens is None else protection.tokens.positions
        return policy.keeping(max((place + 1 for place in positions), default=0))

    def least(self, policy: Policy, *, displaced: bool = False) -> int:
        """Keys that a policy needs at least, with what must stay."""
        displaced_count = _own_first(policy) if displaced else 0
        protected = self.protection.around(policy, self.protection.tokens, self.recent).least
        return max(policy.least + displaced_count, protected + displaced_count)

    def _displaced(self, policy: Policy, tokens: Tokens | None, texts: Texts) -> Tokens:
        """Protected tokens and a policy's own first ones, in all layers and heads."""
        ids = texts.ids
        assert ids is not None
        rows = Rows.plain([min(self.context, ids.shape[1])] * len(ids))
        mask = (rows.order >= 0) & (rows.order < _own_first(policy))
        if tokens is not None:
            mask = mask | tokens.any_head()
        return Tokens(mask[:, None, None], rows, (), "sinks")

    def _instead(self, displaced: Tokens, numbers: Sequence[int]) -> Tokens:
        """Equally many random tokens, drawn for each text: none of the first, and none that stays as a recent one."""
        rows, masks = displaced.rows, []
        assert rows is not None
        free = (rows.order >= NEVER_DRAWN) & (rows.order < rows.order.max() + 1 - self.recent)
        for row, number in enumerate(numbers):
            place = slice(row, row + 1)
            # Seeded by the text's number, so that draws do not depend on batches.
            drawn = displaced.part(place).random(np.random.default_rng([self.seed, number]), free=free[place])
            masks.append(drawn.mask)
        return replace(displaced, mask=np.concatenate(masks), chosen_by="random tokens in the place of sinks")


def _arms(
    setting: _Setting, policies: Sequence[str | Policy | Stream], budgets: Sequence[Budget], *, without_sinks: bool
) -> tuple[list[Arm], list[str]]:
    """An arm for each policy and budget, and what was changed to fit, in sentences."""
    if not policies or not budgets:
        raise InputError("give at least one policy and one budget")
    named = [_named(policy) for policy in policies]
    rounding = [(name, one) for name, one in named if isinstance(one, ServedCache) and not one.streams]
    named = [(name, one) for name, one in named if (name, one) not in rounding]
    notes = dict.fromkeys(_whole_layers(setting, [(name, one) for name, one in named if isinstance(one, Policy)]))
    arms = [
        setting.stream(name, one, None, facts={"policy": {"name": name, **one.describe()}}, series=name)
        for name, one in rounding
    ]
    if rounding and (size := next(setting.model.parameters()).element_size()) != WHOLE:
        of_16 = f"shares of rounded caches are {size / WHOLE:g} times as large"
        notes[f"The full cache holds {size} bytes a number: of one in 16 bits, {of_16}."] = None
    for budget in budgets:
        budget_keys = keys_of(budget, setting.context)
        if budget_keys >= setting.context:
            notes[f"A budget of {budget_keys} keys drops nothing of a context of {setting.context} tokens."] = None
        _check_room(setting, f"budget {in_words(budget)}", budget_keys, setting.least(RandomKeys()))
        random = setting.prepared(RandomKeys())
        share = min(1.0, held(random, setting.model, budget_keys, setting.context, setting.when).share)
        for name, policy in named:
            title = f"{name}@{in_words(budget)}"
            used = setting.prepared(policy)
            _check_room(setting, title, budget_keys, used.least)
            keys = budget_keys
            # Equal bytes rather than equal keys: some policies store more than keys, or keep whole layers.
            if budget_keys < setting.context:
                try:
                    keys = keys_within(share, used, setting.model, setting.context, setting.when)
                except InputError as error:
                    raise InputError(f"{title}: {error}") from error
            facts: dict[str, Any] = {
                "budget": in_words(budget),
                "asked_keys": budget_keys,
                "keys": keys,
                "share": share,
            }
            options: dict[str, Any] = {"series": name}
            if isinstance(policy, Renumbered | ServedCache):
                assert isinstance(used, Renumbered | ServedCache)
                facts["policy"] = {"name": name, **used.describe(keys)}
                # A stream drops a key with every token, so what is compared with it must not drop once and then grow.
                control = _control(replace(setting, when="always"), RandomKeys(), budget_keys)
                arms.append(setting.stream(title, used, keys, facts=facts, control=control, **options))
                continue
            assert isinstance(used, Policy)
            smallest = used.spread(Uniform(keys)).around(used.least - 1).number
            if smallest is not None and smallest < used.least:
                raise InputError(
                    f"{title}: spread over layers and heads, {keys} keys may leave a head {smallest}, and each needs "
                    f"{used.least}: give a larger budget, or fewer recent tokens"
                )
            fitted = policy.fitted(setting.recent)
            facts["policy"] = about = {"name": name, **fitted.describe(keys)}
            notes |= dict.fromkeys(_remarks(name, about, keys, setting.recent))
            if not isinstance(policy, RandomKeys):
                like = _differs(fitted, keys)
                options["control"] = _control(
                    setting, RandomLike(fitted) if like else RandomKeys(), keys if like else budget_keys
                )
            arms.append(setting.arm(title, fitted, keys, facts=facts, **options))
            if without_sinks and not isinstance(policy, RandomKeys):
                arms += _without(setting, title, name, fitted, keys, facts)
    return arms, list(notes)


def _differs(policy: Policy, keys: int) -> bool:
    """Whether a policy spends its budget otherwise than the same number in every layer and head."""
    spread = policy.spread(Uniform(keys)) != Uniform(keys)
    return bool(spread or policy.skipped or policy.drops or policy.merges or policy.rounding)


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


def _control(setting: _Setting, policy: RandomKeys | RandomLike, keys: int) -> Callable[[int, Texts], Arm]:
    """Random keys, other ones in each text, at the same bytes and with the same tokens protected."""

    def drawn(draw: int, texts: Texts) -> Arm:
        used = replace(policy, seed=draw)
        facts = {"keys": keys, "when": setting.when, "policy": {"name": "random", **used.describe(keys)}}
        return setting.arm("random", used, keys, facts=facts, same=("random", setting.when, repr(used), keys))

    return drawn


def _check_room(setting: _Setting, title: str, keys: int, least: int) -> None:
    if keys < least:
        raise InputError(
            f"{title}: {keys} of {setting.context} tokens are too few to keep, with {least - 1} that must stay "
            f"({setting.recent} recent ones among them): give a budget of at least {least}, or fewer recent tokens"
        )


def keys_of(budget: Budget, context: int) -> int:
    """The keys per head of a budget. Raises `InputError` for a number or share out of range."""
    if isinstance(budget, bool) or not budget > 0 or (isinstance(budget, float) and budget > 1):
        raise InputError(f"budget {budget}: a number of keys of at least 1, or a share above 0 and at most 100%")
    # 0.29 · 100 is 28.999… in floating point: rounding must not cost a key.
    return max(1, int(budget * context + 1e-9)) if isinstance(budget, float) else budget


def in_words(budget: Budget) -> str:
    """25% or 64."""
    return f"{100 * budget:g}%" if isinstance(budget, float) else str(budget)


def _newest(recent: int | None, budgets: Sequence[Budget], context: int) -> int:
    """Recent tokens that stay in every arm."""
    if recent is not None:
        return recent
    return min(RECENT, min((keys_of(budget, context) for budget in budgets), default=RECENT) // 4)


def _named(policy: str | Policy | Stream) -> tuple[str, Policy | Stream]:
    """A policy and its name."""
    if isinstance(policy, Renumbered | ServedCache):
        return policy.name, policy
    if policy == Renumbered.name:
        return Renumbered.name, Renumbered()
    if isinstance(policy, str) and policy in ENGINES:
        return policy, engine(policy)
    if isinstance(policy, str) and policy not in POLICIES:
        raise unknown("policy", policy, [*POLICIES, Renumbered.name, *ENGINES])
    made = policy_of(policy)
    return next((registered for registered, kind in POLICIES.items() if kind is type(made)), type(made).__name__), made


def _remarks(name: str, about: Mapping[str, Any], keys: int, recent: int) -> Iterator[str]:
    """What differs from a policy's own settings, and what it keeps that others do not."""
    inner = about.get("of", {})
    changed = {**inner.get("changed_from", {}), **about.get("changed_from", {})}
    values = {**inner, **about}
    for changed_name, before in changed.items():
        yield f"{name} has {changed_name} = {values[changed_name]} to fit the budget, by default {before}."
    if about.get("newest", 0) > recent + 1:
        yield f"{name} keeps the newest {about['newest']} of its {keys} keys, the others the newest {recent}."


def _whole_layers(setting: _Setting, named: Sequence[tuple[str, Policy]]) -> Iterator[str]:
    """Which layers keep everything, and how much of all bytes they hold."""
    with feeding(setting.model, unchanged(), setting.text) as feed:
        feed.read(setting.text)
        sizes = [_size(layer) for layer in feed.cache.layers]
    with evicting(setting.model, RandomKeys(), setting.context) as cache:
        alone = cache.left_alone
    evicts = [index for index in range(len(sizes)) if index not in alone]
    if alone:
        share = 100 * sum(sizes[index] for index in alone) / max(1, sum(sizes))
        yield (
            f"Keys are dropped in {len(evicts)} of {len(sizes)} layers; the others (windows, states) hold {share:.0f} "
            "% of all bytes in every arm."
        )
    for name, policy in named:
        if policy.skipped:
            share = 100 * sum(sizes[index] for index in evicts[: policy.skipped]) / max(1, sum(sizes))
            yield (
                f"{name} and its control keep the first {policy.skipped} layers whole, {share:.0f} % of all bytes, "
                "and so much less in the others."
            )


def _size(layer: Any) -> int:
    cache = DynamicCache()
    cache.layers = [layer]
    return held_bytes(cache)


def _own_first(policy: Policy) -> int:
    """How many first tokens a policy keeps on its own."""
    while isinstance(inner := getattr(policy, "policy", None), Policy):
        policy = inner
    count = getattr(policy, "sinks", 0)
    return count if isinstance(count, int) else 0


def _sentences(trial: Trial) -> list[str]:
    """Each policy compared with random keys at the same bytes, the one that gains most first; then what it loses with
    its sinks taken away.
    """
    facts = trial.record.get("arms", {})
    lines = []

    def place(arm: str) -> tuple[bool, float]:
        compared = bool(trial.controls(arm)) and not facts.get(arm, {}).get("without_sinks_of")
        return not compared, trial.difference(arm).high if compared else 0.0  # at least this much less than random

    for arm in sorted(trial.named("arm"), key=place):
        if whole := facts.get(arm, {}).get("without_sinks_of"):
            loss = trial.difference(arm, whole)
            what = f"'{whole}' with its sinks taken away and random tokens kept in their place"
            if loss.low > 0:
                lines.append(f"{what} costs {nats(loss)} nats more: it needs them.")
            else:
                lines.append(f"{what} does not cost more beyond chance (difference {nats(loss)} nats).")
        elif not trial.controls(arm) or trial.word(arm) == "breaks":
            lines.append(trial.sentence(arm))
        else:
            gain, random = -trial.difference(arm), _random(trial, arm, facts.get(arm, {}).get("keys"))
            if gain.low > 0:
                text = f"'{arm}' beats {random} by {nats(gain)} nats"
            elif gain.high < 0:
                text = f"'{arm}' is worse than {random} by {nats(-gain)} nats"
            else:
                text = f"'{arm}' cannot be told from {random} (difference {nats(gain)} nats)"
            lines.append(f"{text}; {trial.cost_in_words(arm)}.")
    lines += _unequal(trial, facts)
    if "recall" in trial.data:
        full = trial.mean(trial.arms[0], "recall").value
        rates = [f"{arm} {100 * trial.mean(arm, 'recall').value:.0f} %" for arm in trial.named("arm")]
        lines.append(f"Recall: full {100 * full:.0f} %, {', '.join(rates)}.")
        if full < SMALLEST_RECALL:
            lines.append("The model answers few questions with the full cache, so recall says little about caches.")
    return lines


def _held(trial: Trial, arm: str) -> float:
    """Bytes of the cache of a text after its context."""
    return float(trial.data["bytes"].sel(arm=arm)) if "bytes" in trial.data else float("nan")


def _random(trial: Trial, arm: str, keys: int | None) -> str:
    """What the controls of an arm are. Bytes are of whole keys, and a policy may choose how many each head keeps: rows
    are as long as that of the longest head."""
    more = _held(trial, trial.controls(arm)[0]) / _held(trial, arm) - 1
    if keys and abs(more) > max(UNEQUAL, 1 / keys):
        return f"random, which holds {100 * abs(more):.0f} % {'more' if more > 0 else 'fewer'} bytes,"
    return "random at the same bytes"


def _unequal(trial: Trial, facts: Mapping[str, Any]) -> Iterator[str]:
    """Arms that hold more than their budget: heads that keep unlike numbers take the room of the longest."""
    for arm in trial.named("arm"):
        excess = _held(trial, arm) / (facts.get(arm, {}).get("share", float("nan")) * _held(trial, trial.arms[0])) - 1
        if excess > UNEQUAL:
            yield f"'{arm}' holds {100 * excess:.0f} % more bytes than its budget."


SENTENCES[KIND] = _sentences

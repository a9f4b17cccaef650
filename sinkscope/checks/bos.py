"""Do I send BOS right: what tokenizer, template and servers put in front, and what none, one, two or another costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import Cache

from sinkscope.checks.row import ADVISED, Answered, Row
from sinkscope.checks.section import CheckSection, Progress
from sinkscope.checks.subject import CheckedModel, TextSet, begins_with
from sinkscope.data import ordinary_tokens, seeded, vocabulary_of
from sinkscope.hooks import device_of
from sinkscope.trials import REFERENCE, Arm, OnePass, Texts, Trial, run, unchanged

NUMBERS = {0: "no BOS", 1: "one BOS", 2: "two BOS"}
OTHER = "another token"


def applies(subject: CheckedModel) -> str:
    """Empty for a causal decoder with a tokenizer."""
    return subject.reads_text() or subject.decodes()


def run_section(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    """What is put in front, and what each way costs against what the tokenizer does by itself."""
    assert texts.plain is not None
    model, bos = subject.model, subject.bos
    added, written = begins_with(subject.tokenizer) if bos is not None else 0, _written(subject)
    usual = NUMBERS[min(added, 2)]
    rows = _random_first(subject, len(texts.plain))
    arms = [_arm(OTHER, rows)]
    if bos is not None:
        arms += [_arm(NUMBERS[count], torch.full((len(texts.plain), count), bos)) for count in (1, 2)]
    if added:
        arms.append(unchanged(NUMBERS[0]))
    # The reference reads bare texts. Where the tokenizer adds a BOS, the arm that does the same takes its place.
    against = usual if added else REFERENCE
    arms = [Arm(one.name, one.open, against=REFERENCE if one.name == against else against) for one in arms]
    trial = run(
        model,
        texts.plain,
        arms,
        reading=OnePass(),
        controls=0,
        score=("kl", "nats", "agreement"),
        batch_size=subject.batch_size,
        seed=subject.seed,
        about={"kind": "bos"},
        progress=progress,
    )
    names = [name for name in (*NUMBERS.values(), OTHER) if name in trial.arms and name != usual]
    found = [_row(trial, name, usual) for name in names]
    twice = added >= 2
    answer = [_said(subject, added, written), _priced(found, usual)]
    chat = {} if written is None else {"template_adds": written}
    if twice:
        found = [Row("twice", "the tokenizer puts two BOS before every text", flags=("bos-twice",)), *found]
    elif written and added:
        rows_twice = "a rendered chat that is tokenized once more begins with two BOS"
        found = [*found, Row("chat-twice", rows_twice, flags=("bos-twice-chat",))]
    facts: dict[str, Any] = {"tokenizer_adds": added, "bos": bos, **chat}
    return Answered(" ".join(filter(None, answer)), tuple(found), facts)


def _written(subject: CheckedModel) -> int | None:
    """How many BOS the chat template writes; None without a template or a BOS."""
    if not getattr(subject.tokenizer, "chat_template", None) or subject.bos is None:
        return None
    ids = subject.tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=True, return_dict=False)
    return next((place for place, token in enumerate(ids) if token != subject.bos), len(ids))


def _said(subject: CheckedModel, added: int, written: int | None) -> str:
    """What the tokenizer, the template and a server put in front."""
    if subject.bos is None:
        return "The tokenizer has no BOS."
    name = subject.spelled(subject.bos)
    amount = {0: "none", 1: "one", 2: "two"}
    said = f"The tokenizer adds {amount[min(added, 2)]} ({name})"
    if written is not None:
        said += f", the chat template {amount[min(written, 2)]}"
    served = "completions get what the tokenizer adds"
    served += "" if written is None else ", chat what the template writes"
    if added and written:
        served += ", and a rendered chat that is sent to completions gets two"
    return f"{said}. On a server {served}."


def _priced(rows: Sequence[Row], usual: str) -> str:
    """What each way costs against what the tokenizer does, and what to do."""
    priced = [row for row in rows if row.number is not None]
    said = ", ".join(f"{row.finding} {row.number.value:+.3f}" for row in priced if row.number is not None)
    better = [row for row in priced if row.advice.startswith("send")]
    best = min(better, key=lambda row: row.number.value if row.number else 0.0, default=None)
    said += " (predictions change, the loss does not)" if _same_loss(priced) else ""
    todo = "Leave it as it is" if best is None else f"{best.advice[:1].upper()}{best.advice[1:]}"
    return f"In nats a token against {usual}: {said}. {todo}."


def _same_loss(rows: Sequence[Row]) -> bool:
    """Whether predictions change in every row, and the loss in none."""
    return bool(rows) and all("the loss does not" in row.why for row in rows)


def _row(trial: Trial, name: str, usual: str) -> Row:
    grade, lost = trial.grade(name), trial.cost(name, "nats")
    values = trial.values(name, "nats") - trial.values(_against(trial, name), "nats")
    advice = ""
    if name != OTHER and lost.high < 0:
        advice = f"send {name}: it predicts better than {usual}"
    elif name != OTHER and grade.word in ADVISED and lost.low <= 0:
        advice = f"as good as {usual}"
    why = grade.why
    if grade.word not in ADVISED and lost.low <= 0 <= lost.high:
        why = f"predictions change (KL {trial.cost(name).value:.2f}) and the loss does not"
    return Row(
        name.replace(" ", "-"),
        name,
        lost,
        f"nats lost a token against {usual}",
        trial.texts,
        grade.word,
        why,
        advice,
        values=tuple(values.tolist()),
    )


def _against(trial: Trial, name: str) -> str:
    return str(trial.data["against"].sel(arm=name).values)


def _random_first(subject: CheckedModel, count: int) -> Int[Tensor, "text 1"]:
    """An ordinary token for each text, drawn anew for each."""
    ordinary = ordinary_tokens(subject.tokenizer, vocabulary_of(subject.model))
    drawn = torch.randint(len(ordinary), (count, 1), generator=seeded("bos", subject.seed))
    return ordinary[drawn]


def _arm(name: str, first: Int[Tensor, "text token"]) -> Arm:
    """An arm that reads each text with tokens in front, whose own predictions are left out."""

    @contextmanager
    def opened(model: nn.Module, texts: Texts) -> Iterator[Cache | None]:
        rows = first[texts.rows].to(device_of(model))

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, {**kwargs, "input_ids": torch.cat([rows, kwargs["input_ids"]], 1)}

        def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            output.logits = output.logits[:, rows.shape[1] :]
            return output

        handles = model.register_forward_pre_hook(before, with_kwargs=True), model.register_forward_hook(after)
        try:
            yield None
        finally:
            for handle in handles:
                handle.remove()

    return Arm(name, opened, facts={"first": "BOS" if name != OTHER else "random", "tokens": int(first.shape[1])})


SECTION = CheckSection("bos", "BOS and template", "default", applies, 4.0, run_section)

"""Is the BOS right: what tokenizer, template and servers put in front, and what no, one or two BOS cost."""

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
from sinkscope.checks.subject import CheckedModel, TextSet, leading
from sinkscope.data import ordinary_tokens, seeded, vocabulary_of
from sinkscope.data.tokenizer import in_chat
from sinkscope.errors import InputError
from sinkscope.hooks import device_of
from sinkscope.trials import REFERENCE, Arm, OnePass, Texts, Trial, run, unchanged

NUMBERS = {0: "no BOS", 1: "one BOS", 2: "two BOS"}
OTHER = "another token"


def obstacle(subject: CheckedModel) -> str:
    """Empty for a causal decoder with a tokenizer."""
    return subject.text_obstacle() or subject.decoder_obstacle()


def run_section(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    """What is put in front of a text, and the cost of each variant relative to what the tokenizer does."""
    model, bos = subject.model, subject.bos
    added, written = subject.tokenizer_adds, _bos_in_template(subject)
    usual = NUMBERS[min(added, 2)]
    arms = [_arm(OTHER, _random_tokens(subject, len(texts.ids)))]
    if bos is not None:
        if bos >= (size := vocabulary_of(model)):
            raise InputError(
                f"the tokenizer's BOS {subject.token_text(bos)} (id {bos}) is outside the vocabulary of {size}"
            )
        arms += [_arm(NUMBERS[count], torch.full((len(texts.ids), count), bos)) for count in (1, 2)]
    if added:
        arms.append(unchanged(NUMBERS[0]))
    # The reference reads plain texts. If the tokenizer adds a BOS, arms are compared with the arm that adds it too.
    against = usual if added else REFERENCE
    arms = [Arm(arm.name, arm.open, against=REFERENCE if arm.name == against else against) for arm in arms]
    trial = run(
        model,
        texts.ids,
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
    rows = [_row(trial, name, usual) for name in names]
    answer = f"{_sources(subject, added, written)} {_costs(rows, usual)}"
    if added >= 2:
        rows.insert(0, Row("twice", "the tokenizer puts two BOS before every text", flags=("bos-twice",)))
    if written and added:
        finding = f"a rendered chat that is tokenized once more begins with {_several(added + written)} BOS"
        rows.append(Row("chat-twice", finding, flags=("bos-twice-chat",)))
    if subject.template_fault:
        rows.insert(0, Row("template", subject.template_fault, flags=("template-broken",)))
    facts: dict[str, Any] = {"tokenizer_adds": added, "bos": bos}
    if written is not None:
        facts["template_adds"] = written
    better = sorted((row for row in rows if row.number and row.number.high < 0), key=lambda row: row.number.value)  # type: ignore[union-attr]
    advised_by = tuple(row.key for row in better)
    otherwise = "Leave it as it is."
    if added >= 2:
        otherwise = "Let the tokenizer add one BOS."
    elif subject.template_fault:
        otherwise = "Mend the chat template."
    return Answered(answer, tuple(rows), facts, advised_by=advised_by, otherwise=otherwise)


def _several(count: int) -> str:
    return {2: "two", 3: "three", 4: "four"}.get(count, str(count))


def _bos_in_template(subject: CheckedModel) -> int | None:
    """How many BOS the chat template writes; None without a BOS or a template that can be filled."""
    if not getattr(subject.tokenizer, "chat_template", None) or subject.bos is None or subject.template_fault:
        return None
    ids = in_chat(subject.tokenizer, [{"role": "user", "content": "a"}], tokenize=True, return_dict=False)
    return leading(subject.bos, ids)


def _sources(subject: CheckedModel, added: int, written: int | None) -> str:
    """How many BOS the tokenizer, the template and a server put in front."""
    if subject.bos is None:
        return "The tokenizer has no BOS."
    count = {0: "none", 1: "one", 2: "two"}
    local = f"The tokenizer adds {count[min(added, 2)]} ({subject.token_text(subject.bos)})"
    served = "completions get what the tokenizer adds"
    if written is not None:
        local += f", the chat template {count[min(written, 2)]}"
        served += ", chat what the template writes"
    if added and written:
        served += f", and a rendered chat that is sent to completions gets {_several(added + written)}"
    fault = f" {subject.template_fault[:1].upper()}{subject.template_fault[1:]}." if subject.template_fault else ""
    return f"{local}. On a server {served}.{fault}"


def _costs(rows: Sequence[Row], usual: str) -> str:
    """The cost of each variant relative to what the tokenizer does."""
    numbers = {row: row.number.value for row in rows if row.number is not None}
    costs = ", ".join(f"{row.finding} {number:+.3f}" for row, number in numbers.items())
    if all("the loss does not" in row.why for row in numbers):
        costs += " (predictions change, the loss does not)"
    return f"In nats a token against {usual}: {costs}."


def _row(trial: Trial, name: str, usual: str) -> Row:
    grade, cost = trial.grade(name), trial.cost(name, "nats")
    values = trial.values(name, "nats") - trial.values(str(trial.data["against"].sel(arm=name).values), "nats")
    advice = ""
    if name != OTHER and cost.high < 0:
        advice = f"send {name}: it predicts better than {usual}"
    elif name != OTHER and grade.word in ADVISED and cost.low <= 0:
        advice = f"as good as {usual}"
    word, why = grade.word, grade.why
    if word not in ADVISED and cost.high < 0:
        # What the tokenizer does is no reference for what is right: a lower loss is no cost, however far it is from it.
        word, why = "free", f"predictions change (KL {trial.cost(name).value:.2f}), for the better"
    elif word not in ADVISED and cost.low <= 0 <= cost.high:
        why = f"predictions change (KL {trial.cost(name).value:.2f}) and the loss does not"
    return Row(
        name.replace(" ", "-"),
        name,
        cost,
        f"nats lost a token against {usual}",
        trial.texts,
        word,
        why,
        advice,
        values=tuple(values.tolist()),
    )


def _random_tokens(subject: CheckedModel, count: int) -> Int[Tensor, "text 1"]:
    """One random ordinary token for each text."""
    ordinary = ordinary_tokens(subject.tokenizer, vocabulary_of(subject.model))
    drawn = torch.randint(len(ordinary), (count, 1), generator=seeded("bos", subject.seed))
    return ordinary[drawn]


def _arm(name: str, first: Int[Tensor, "text token"]) -> Arm:
    """An arm that reads each text after the tokens in `first`, and leaves out the predictions at these tokens."""

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


SECTION = CheckSection(
    "bos",
    "BOS and template",
    "default",
    obstacle,
    ("twice", "chat-twice", "template", *(name.replace(" ", "-") for name in (*NUMBERS.values(), OTHER))),
    4.0,
    run_section,
    flags=("bos-twice", "bos-twice-chat", "template-broken"),
    plain=True,
)

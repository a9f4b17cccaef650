"""Protected tokens, which stay in full precision and are part of no range: which columns of a pass they are.

What is protected is a choice of `sinkscope.sinks` or its words, or the `Tokens` that it chose in certain texts.
Quantizers protect a token in all layers and heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn import functional

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Pass, Passes, Samples, arguments, cache_of, check_order, unwrapped
from sinkscope.measurement import find_tokens, rows_of
from sinkscope.model.columns import UNKNOWN, TokenColumns, columns_of, every_column, own_columns
from sinkscope.sinks import WORDS, Choice, Measured, Tokens, parse

Protect = Choice | Tokens
Kind = TypeVar("Kind")


def protect_of(protect: Protect | str | None) -> Protect | None:
    """What is protected, with words ("first:4") read. Raises `InputError` for anything else than a choice or tokens."""
    if isinstance(protect, str):
        return parse(protect)
    if protect is None or isinstance(protect, Choice | Tokens):
        return protect
    raise InputError(
        f"protect is a {type(protect).__name__}: expected a choice of tokens such as First(4), its words ({WORDS}), "
        "Tokens or None"
    )


def resolved(protect: Protect, model: nn.Module, inputs: Mapping[str, Any]) -> Tokens:
    """The tokens of these texts, whole rows. Raises `InputError` as `find_tokens` does."""
    tokens = protect if isinstance(protect, Tokens) else find_tokens(model, inputs, protect)
    return tokens.on(rows_of(columns_of(model, inputs)))


def in_a_pass(protect: Protect) -> bool:
    """Whether a single pass shows them: positions and ids, and tokens that are already chosen."""
    if isinstance(protect, Tokens):
        return True
    return protect.in_a_pass or (isinstance(protect, Measured) and protect.measurement is not None)


def resolved_for_passes(protect: Protect | str | None, model: nn.Module, inputs: Mapping[str, Any]) -> Protect | None:
    """What is protected, with a choice that needs whole texts resolved in these.

    Raises `InputError` as `protect_of` and `resolved` do.
    """
    protect = protect_of(protect)
    return protect if protect is None or in_a_pass(protect) else resolved(protect, model, inputs)


def described(protect: Protect | str | None) -> dict[str, Any] | None:
    """What is protected, as JSON-able data. Raises `InputError` as `protect_of` does."""
    protect = protect_of(protect)
    if protect is None or isinstance(protect, Tokens):
        return None if protect is None else protect.describe()
    return {"chosen_by": str(protect)}


def among(protect: Protect, columns: TokenColumns) -> Bool[Tensor, "batch position"]:
    """Which columns of a pass are protected; padding never is.

    Raises `InputError` for a choice that needs whole texts, and for tokens of texts that the pass does not read: it
    must run over these rows, whole, in chunks or through a cache. A pass over the common beginning of rows with
    different protected tokens is refused. A row of the pass that several known texts fit is the longest of them. Tokens
    generated after the end of a known row are not protected.
    """
    if isinstance(protect, Measured) and protect.measurement is not None:
        protect = protect.measurement.sinks(epsilon=protect.epsilon, by=protect.by)
    if not isinstance(protect, Tokens):
        return cast(Tensor, protect.places(columns.order, columns.ids, columns.real))
    chosen = torch.from_numpy(np.array(protect.any_head())).to(columns.order.device)
    if protect.rows is None:
        inside = (columns.order >= 0) & (columns.order < chosen.shape[1])
        # Clamped only to index safely: `inside` excludes what lies beyond.
        return chosen[0][columns.order.clamp(0, chosen.shape[1] - 1)] & inside & columns.real
    alike = _alike(protect, columns)
    if not bool(alike.any(-1).all()):
        row = int((~alike.any(-1)).nonzero()[0])
        raise InputError(
            f"row {row} of this pass is not one of the {len(chosen)} texts in which tokens were chosen: choose them in "
            "the texts that the model reads (find_tokens)"
        )
    # By `index`, not by `order`: known rows count their tokens over all documents of a row.
    index = columns.index.clamp(0, chosen.shape[1] - 1)
    inside = columns.real & (columns.index >= 0) & (columns.index < chosen.shape[1])
    # argmax takes the first text that fits; `_check_one` refuses rows where that choice matters and is still open.
    mask = chosen[alike.int().argmax(-1)].gather(1, index) & inside
    _check_one(chosen, alike, index, inside, mask, protect, columns)
    return mask


def random_tokens(
    protect: Protect | str | None, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]
) -> Tokens:
    """As many random tokens as are protected in each row of `inputs`: the control of protecting them.

    Raises `InputError` if nothing is protected, and for rows with too few other tokens.
    """
    if (protect := protect_of(protect)) is None:
        raise InputError(
            "nothing is protected, so no random tokens can be protected instead: give protect=..., such as First(1)"
        )
    rng = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
    return resolved(protect, model, inputs).random(rng)


def matched_tokens(tokens: Tokens, rng: np.random.Generator, context: int | None = None) -> Tokens:
    """The matched control (`Tokens.random`) in texts of which the first `context` tokens are cached at once.

    As many random tokens among those and among the later ones: a token that is not cached yet takes no bytes, and no
    query reads it rounded. None for texts that are read in one pass. Raises `InputError` as `Tokens.random` does.
    """
    if context is None:
        return tokens.random(rng)
    cached = np.broadcast_to(np.arange(tokens.mask.shape[-1]) < context, tokens.any_head().shape)
    parts = [(replace(tokens, mask=tokens.mask & side[:, None, None]), side) for side in (cached, ~cached)]
    drawn = [part.random(rng, free=side) for part, side in parts if part.mask.any()]
    return drawn[0] | drawn[-1] if drawn else tokens.random(rng)


class ProtectedInPass:
    """Which tokens of each pass are protected, until `stack` closes: in whole passes, chunks and cached decoding.

        protected = ProtectedInPass(model, self.protect, stack)
        ... inside a hook: fake_quantize(x, grid, protected.exempt(x))

    `protect` None protects nothing. The columns are those of the changed stack (`Stream.of`), so use it for tensors of
    its blocks only. Raises `InputError` at once for a choice that needs whole texts; in a pass, for texts other than
    those of chosen `Tokens`, and if beam search permuted the cache.
    """

    def __init__(self, model: nn.Module, protect: Protect | str | None, stack: ExitStack) -> None:
        protect = protect_of(protect)
        if protect is not None and not in_a_pass(protect):
            raise InputError(
                f"'{protect}' needs whole texts, which a pass does not show: give "
                "protect=find_tokens(model, texts, choice)"
            )
        self.protect = protect
        self._model = unwrapped(model)
        self._samples: Samples | None = None
        self._columns: TokenColumns | None = None  # since the first in the cache
        self._new: TokenColumns | None = None
        self._now: Tensor | None = None
        self._passes = Passes(self._model, self._begin, self._end)
        self._passes.attach(stack, first=True)

    @property
    def now(self) -> Bool[Tensor, "batch position"]:
        """Which columns of this pass are protected; padding is not."""
        return self._of_pass(self._now)

    @property
    def real(self) -> Bool[Tensor, "batch position"]:
        """Which columns of this pass are not padding."""
        return self._of_pass(self._new).real

    @property
    def so_far(self) -> Bool[Tensor, "batch column"]:
        """Which columns are protected, since the first in the cache; padding is not."""
        return self._among(self._of_pass(self._columns))

    @property
    def columns(self) -> TokenColumns:
        """All columns so far, since the first in the cache."""
        return self._of_pass(self._columns)

    @property
    def real_so_far(self) -> Bool[Tensor, "batch column"]:
        """Which columns are not padding, since the first in the cache."""
        return self._of_pass(self._columns).real

    def exempt(self, x: Tensor) -> Bool[Tensor, "..."]:
        """What a quantizer leaves alone in x (batch, position, …) or (batch · position, …): protected tokens and
        padding.

        Broadcasts to x. Raises `UnsupportedModelError` for a tensor over other tokens, such as routed ones.
        """
        left = (self.now | ~self.real).to(x.device)
        if x.shape[:2] == left.shape:
            return left.view(*left.shape, *[1] * (x.ndim - 2))
        if x.shape[0] == left.numel():
            return left.view(-1, *[1] * (x.ndim - 1))
        raise UnsupportedModelError(
            f"a tensor {tuple(x.shape)} in a pass of {left.shape[0]} rows of {left.shape[1]} columns: its tokens "
            "are others (routed to an expert, or of another stack), so it is unknown which of them are protected"
        )

    def _of_pass(self, value: Kind | None) -> Kind:
        """A value of the current pass. Raises `InputError` outside of passes."""
        self._passes.now  # noqa: B018
        assert value is not None
        return value

    def _begin(self, begun: Pass, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        forward = begun.forward
        check_order(forward)
        if self._samples is None or not self._samples.continues(forward):
            self._samples = Samples(forward.batch, forward.seen, prefix=forward.prefix)
        passed = arguments(self._model, args, kwargs)
        self._columns = every_column(self._model, forward, passed, self._earlier(self._samples))
        self._new = own_columns(self._columns, forward)
        self._now = self._among(self._new)

    def _end(self, done: Pass, output: Any) -> None:
        assert self._samples is not None
        assert self._columns is not None
        self._samples.extend(done.forward, self._columns.index.shape[1], cache_of(output))

    def _among(self, columns: TokenColumns) -> Bool[Tensor, "batch position"]:
        return torch.zeros_like(columns.real) if self.protect is None else among(self.protect, columns)

    @staticmethod
    def _earlier(samples: Samples) -> Int[Tensor, "batch seen"] | None:
        """The ids of everything before this pass, if all of it was seen."""
        if samples.first or not samples.ids:
            return None
        return functional.pad(torch.cat(samples.ids, 1), (samples.prefix, 0), value=UNKNOWN)


def _alike(tokens: Tokens, columns: TokenColumns) -> Bool[Tensor, "batch row"]:
    """Which of the known texts each row of a pass can be; consecutive texts if the pass can be a run of them.

    By ids if both have them; otherwise the pass must run over all of the texts, whole.
    """
    rows = tokens.rows
    assert rows is not None
    real = torch.from_numpy(np.array(rows.real)).to(columns.order.device)
    if rows.ids is None or columns.text is None:
        if columns.start or not np.array_equal(rows_of(columns).order, rows.order):
            raise InputError(
                "these rows have no ids, so a pass must run over exactly the rows in which tokens were chosen, whole: "
                "give tokens.part(...) for some of them"
            )
        return torch.eye(len(rows), dtype=torch.bool, device=real.device)
    stored_ids = torch.from_numpy(np.array(rows.ids)).to(columns.text.device)
    text = columns.text
    width = max(text.shape[1], stored_ids.shape[1])
    stored_ids, real = (functional.pad(x, (0, width - x.shape[1])) for x in (stored_ids, real))
    text = functional.pad(text, (0, width - text.shape[1]), value=UNKNOWN)
    # (batch, row, token): texts are compared as far as the pass has read, and at most to their own ends.
    visible = torch.arange(width, device=text.device) < columns.so_far[:, None]
    alike = ((text[:, None] == stored_ids[None]) | ~visible[:, None] | ~real[None]).all(-1)
    # How many of the row's tokens each text explains; a text that a longer one continues gives way to it.
    covered = (visible[:, None] & real[None]).sum(-1).where(alike, -1)
    alike &= covered == covered.amax(-1, keepdim=True)
    row_count, count = alike.shape
    starts = count - row_count + 1
    if starts < 1:
        return alike
    # blocks[s]: whether the rows of the pass can be texts s, s + 1, …. If some s fits, only such runs count, so that
    # rows that begin alike are told apart by their order.
    blocks = torch.stack([alike[row, row : row + starts] for row in range(row_count)]).all(0)
    if not bool(blocks.any()):
        return alike
    together = torch.zeros_like(alike)
    for start in blocks.nonzero().flatten().tolist():
        together[torch.arange(row_count), torch.arange(start, start + row_count)] = True
    return together


def _check_one(
    chosen: Tensor, alike: Tensor, index: Tensor, inside: Tensor, mask: Tensor, tokens: Tokens, columns: TokenColumns
) -> None:
    """Raises `InputError` if rows with the same beginning protect different tokens, and the pass ends within it.

    If rows are the same to their ends, any of them will do.
    """
    assert tokens.rows is not None
    lengths = torch.from_numpy(np.array(tokens.rows.real.sum(-1))).to(index.device)
    for row in (alike.sum(-1) > 1).nonzero().flatten().tolist():
        others = alike[row].nonzero().flatten()
        masks = chosen[others][:, index[row]] & inside[row]
        whole = bool((lengths[others] <= columns.so_far[row]).all())
        if not whole and not bool((masks == mask[row]).all()):
            raise InputError(
                f"rows {', '.join(map(str, others[:4].tolist()))} begin alike and protect different tokens there, so "
                f"it is unknown which of them row {row} of this pass is: give tokens.part(...) of one of them"
            )

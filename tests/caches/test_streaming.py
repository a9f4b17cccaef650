"""Streaming gives what a model's own modules make of the kept tokens, in a loop and inside unmodified `generate`."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from sinkscope.caches import StreamingCache, positions
from sinkscope.caches import turning as together
from sinkscope.errors import InputError
from tests.caches import contract
from tests.caches.contract import TOLERANCE, error, ids, looped
from tests.caches.families import STREAMS, slow_but
from tests.families.registry import FAMILIES

# One of each kind: half, interleaved, the other way, latent, ALiBi twice, a window beside, states, learned sinks.
FEW = ("llama", "cohere", "nanochat", "deepseek_v3", "bloom", "mpt", "gemma3", "falcon_h1", "gpt_oss", "gptj")


@pytest.fixture(scope="module")
def llama() -> Any:
    return FAMILIES["llama"].build("sdpa")


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(("llama", "cohere", "deepseek_v3", "mpt"), FEW))
def test_it_agrees_with_the_oracle(name: str) -> None:
    row = contract.check(name, STREAMS[name].hosts[-1])
    assert row.loop <= TOLERANCE
    assert row.generated <= TOLERANCE


@pytest.mark.slow
def test_the_oracle_notices_what_no_cache_would_do(llama: Any) -> None:
    """Other sinks or another window than the oracle's are far from it."""
    wanted = looped(llama, ids(), use=True)
    for sinks, window in ((2, 5), (2, 7), (1, 7), (0, 8)):
        assert error(looped(llama, ids(), use=False, sinks=sinks, window=window), wanted) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "mpt"])
def test_it_agrees_with_the_oracle_for_longer_than_the_buffer_is(name: str) -> None:
    model = contract.built(name, STREAMS[name].hosts[-1])
    assert error(*(looped(model, ids(1, 160), use) for use in (False, True))) <= TOLERANCE


@torch.no_grad()
def stepped(model: Any, tokens: Tensor, cache: Any, start: int = 0, **given: Any) -> Tensor:
    """Logits of every token, read one by one from `start` on."""
    found = []
    for place in range(start, tokens.shape[1]):
        more = {name: mask[:, : place + 1] for name, mask in given.items()}
        found.append(model(input_ids=tokens[:, place : place + 1], past_key_values=cache, use_cache=True, **more)[0])
    return torch.cat(found, 1)


@pytest.mark.parametrize("sinks", [0, 1, 3])
def test_a_window_that_holds_everything_changes_nothing(llama: Any, sinks: int) -> None:
    tokens = ids(2)
    with torch.no_grad():
        whole = llama(tokens).logits
    assert error(stepped(llama, tokens, StreamingCache(llama, sinks, tokens.shape[1])), whole) <= TOLERANCE


@pytest.mark.slow
def test_without_sinks_it_is_a_sliding_window(llama: Any) -> None:
    """Mistral's own window of as many tokens, with the same weights, for longer than the buffer is."""
    tokens = ids(2, 150)
    mistral = FAMILIES["mistral"].build("sdpa")
    mistral.load_state_dict(llama.state_dict())
    assert mistral.config.sliding_window == 5
    with torch.no_grad():
        wanted = mistral(tokens).logits
    assert error(stepped(llama, tokens, StreamingCache(llama, 0, 5)), wanted) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    slow_but(("llama", "mpt", "bloom"), ("llama", "mpt", "bloom", "cohere", "deepseek_v3", "gemma3", "falcon_h1")),
)
def test_rows_with_padding_are_those_without(name: str) -> None:
    """Rows that start dropping tokens at different times, one of them before the others have begun."""
    model, tokens = contract.built(name, STREAMS[name].hosts[-1]), ids(3, 40)
    pads = (0, 5, 9) if name == "falcon_h1" else (0, 9, 25)  # states take padding for text behind the first pass
    mask = torch.stack([(torch.arange(40) >= pad).long() for pad in pads])
    whole = StreamingCache(model, 2, 6)
    with torch.no_grad():  # a prompt of 12, then token by token
        model(input_ids=tokens[:, :12], attention_mask=mask[:, :12], past_key_values=whole, use_cache=True)
    found = stepped(model, tokens, whole, 12, attention_mask=mask)
    for row, pad in enumerate(pads):
        alone = StreamingCache(model, 2, 6)
        if pad < 12:
            with torch.no_grad():
                model(input_ids=tokens[row : row + 1, pad:12], past_key_values=alone, use_cache=True)
        wanted = stepped(model, tokens[row : row + 1], alone, max(pad, 12)) if pad <= 12 else None
        if wanted is None:
            wanted = stepped(model, tokens[row : row + 1, pad:], alone)
        assert error(found[row, -wanted.shape[1] :], wanted[0]) <= 3 * TOLERANCE


@pytest.mark.parametrize("name", ["llama", "mpt", "bloom"])
def test_a_mask_that_hides_nothing_changes_nothing(name: str) -> None:
    """Tokenizers give one, and BLOOM makes its ALiBi as wide as that: over tokens that are gone."""
    model, tokens = contract.built(name, STREAMS[name].hosts[-1]), ids(2, 30)
    plain = stepped(model, tokens, StreamingCache(model, 2, 6))
    masked = stepped(model, tokens, StreamingCache(model, 2, 6), attention_mask=torch.ones_like(tokens))
    assert error(masked, plain) <= TOLERANCE
    both = StreamingCache(model, 2, 6)
    with torch.no_grad():  # a second turn of several tokens behind what is kept
        model(input_ids=tokens[:, :20], past_key_values=both, use_cache=True)
        twin = deepcopy(both)
        given = {"input_ids": tokens[:, 20:], "use_cache": True}
        wanted = model(**given, past_key_values=both).logits
        found = model(**given, attention_mask=torch.ones_like(tokens), past_key_values=twin).logits
    assert error(found, wanted) <= TOLERANCE


@pytest.mark.parametrize("name", ["bloom", "mpt"])
@pytest.mark.parametrize("distance", ["ceiling", "original"])
def test_alibi_has_one_distance(name: str, distance: Any) -> None:
    model = contract.built(name, STREAMS[name].hosts[-1])
    with pytest.raises(InputError, match=f"^distance = '{distance}': the ALiBi of family '{name}' counts the keys"):
        StreamingCache(model, 2, 6, distance=distance)


def test_padded_prompts_are_written_on_as_alone(llama: Any) -> None:
    tokens = ids(2, 14)
    mask = torch.ones_like(tokens).index_put_((torch.tensor(1), torch.arange(9)), torch.tensor(0))
    options: dict[str, Any] = {"max_new_tokens": 25, "do_sample": False, "pad_token_id": 0, "min_new_tokens": 25}
    cache = StreamingCache(llama, 2, 6)
    both = llama.generate(tokens, attention_mask=mask, past_key_values=cache, **options)
    alone = llama.generate(tokens[1:, 9:], past_key_values=StreamingCache(llama, 2, 6), **options)
    assert torch.equal(both[1, 9:], alone[0])


@pytest.mark.parametrize("distance", ["cache", "ceiling", "original"])
def test_sinks_stand_at_the_distance_that_was_asked_for(llama: Any, distance: Any) -> None:
    """The first layer's sink logits are those of a query and keys turned to that distance."""
    cache = StreamingCache(llama, 2, 6, distance=distance)
    given: list[Tensor] = []
    shown: list[Tensor] = []
    layer = cache.followed[0]
    update = layer.update

    def noting(keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> Any:
        given.append(keys.clone())
        seen = update(keys, values, *args, **kwargs)
        shown.append(seen[0].clone())
        return seen

    layer.update = noting  # type: ignore[method-assign]
    stepped(llama, ids(1, 20), cache)
    query, rotation = 19, layer.rotation.keys
    assert rotation is not None
    for sink in range(2):
        at = {"cache": 7 - sink, "ceiling": 6, "original": query - sink}[distance]
        wanted = rotation.turn(given[sink], torch.tensor(query - at - sink))
        torch.testing.assert_close(shown[-1][:, :, sink : sink + 1], wanted, rtol=0, atol=1e-5)
    assert layer.places.tolist() == [[[0, 1, *range(14, 20)]]]


def test_far_out_the_angles_are_as_accurate_as_at_the_beginning(llama: Any) -> None:
    """A stream whose places are ten million further on gives the same logits."""
    tokens, far = ids(1, 60), 10_000_000
    near, cache = StreamingCache(llama, 2, 6), StreamingCache(llama, 2, 6)
    wanted = stepped(llama, tokens, near)
    first = stepped(llama, tokens[:, :30], cache)
    for layer in cache.followed:
        layer._seen += far
    cache._origin.base += far  # as if it had moved all the way, with the window turned back each time
    found = torch.cat([first, stepped(llama, tokens[:, 30:], cache)], 1)
    assert cache.get_seq_length() == far + 60
    assert error(found, wanted) <= TOLERANCE


def test_positions_are_counted_from_a_new_origin(llama: Any) -> None:
    tokens = ids(1, 60)
    plain, moving = StreamingCache(llama, 2, 6), StreamingCache(llama, 2, 6)
    moving._origin.limit = 16
    given: list[int] = []
    hook = llama.model.register_forward_pre_hook(
        lambda module, args, kwargs: given.append(int(kwargs["position_ids"])), with_kwargs=True
    )
    try:
        found = stepped(llama, tokens, moving)
    finally:
        hook.remove()
    assert max(given) < 16
    assert given[40] < given[14]
    assert error(found, stepped(llama, tokens, plain)) <= TOLERANCE


@pytest.mark.slow
def test_a_table_of_sines_is_never_left() -> None:
    """GPT-J looks its angles up in as many rows as it has positions."""
    model = STREAMS["gptj"].build("eager")
    assert model.config.n_positions == 64
    tokens = ids(1, 90)
    found = stepped(model, tokens, StreamingCache(model, 2, 6))
    window = StreamingCache(model, 2, 6)
    again = stepped(model, torch.cat([tokens[:, :2], tokens[:, -60:]], 1), window)
    assert found.isfinite().all()
    assert found.shape == (1, 90, again.shape[2])


def test_windows_beside_are_turned_back_too() -> None:
    """Layers that keep a window of their own follow the origin."""
    model = FAMILIES["gemma3"].build("sdpa")
    tokens = ids(1, 50)
    plain, moving = StreamingCache(model, 2, 6), StreamingCache(model, 2, 6)
    moving._origin.limit = 16
    assert error(stepped(model, tokens, moving), stepped(model, tokens, plain)) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("distance", ["ceiling", "original"])
def test_other_distances_follow_the_origin(llama: Any, distance: Any) -> None:
    tokens = ids(1, 50)
    plain, moving = (StreamingCache(llama, 2, 6, distance=distance) for _ in range(2))
    moving._origin.limit = 16
    assert error(stepped(llama, tokens, moving), stepped(llama, tokens, plain)) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_streams(dtype: torch.dtype) -> None:
    model = FAMILIES["llama"].build("sdpa", dtype=dtype)
    tokens = ids(1, 60)
    found = stepped(model, tokens, StreamingCache(model, 2, 6)).float()
    whole = FAMILIES["llama"].build("sdpa")
    wanted = stepped(whole, tokens, StreamingCache(whole, 2, 6))
    assert error(found, wanted) < 0.1


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("distance", ["cache", "ceiling", "original"])
def test_sinks_turned_ahead_are_those_turned_in_time(monkeypatch: pytest.MonkeyPatch, distance: Any) -> None:
    """Across blocks of places, a new origin, a copy, passes of several tokens and a new text."""
    model = FAMILIES["llama"].build("sdpa")
    monkeypatch.setattr(positions, "FARTHEST", 30)
    text = torch.randint(3, 90, (2, 90), generator=torch.Generator().manual_seed(1))
    found = []
    for ahead in (1, 16):
        monkeypatch.setattr(together, "AHEAD", ahead)
        cache, logits = StreamingCache(model, 2, 6, distance), []
        for start, stop in pairwise([0, *range(5, 61), *range(64, 91)]):
            logits.append(model(text[:, start:stop], past_key_values=cache).logits[:, -1])
            if stop == 70:
                cache = deepcopy(cache)
        cache.reset()
        logits += [model(text[:, t : t + 1], past_key_values=cache).logits[:, -1] for t in range(40, 70)]
        found.append(torch.stack(logits))
    torch.testing.assert_close(found[1], found[0], atol=1e-6, rtol=1e-5)

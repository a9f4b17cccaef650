"""The conditions that conftest.py promises to every other test."""

from __future__ import annotations

import os
import socket
import warnings
from contextlib import ExitStack

import pytest
import torch
from jaxtyping import TypeCheckError
from transformers import AutoConfig, LlamaForCausalLM

from sinkscope.attention import attend
from sinkscope.errors import InputError
from sinkscope.files import cache_dir
from sinkscope.measurement import observe
from tests.plugin import attention_as_before
from tests.shapes import ONE_OF


def test_the_network_is_closed() -> None:
    with pytest.raises(ConnectionRefusedError, match="tests have no network"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    with pytest.raises(OSError, match="couldn't find them in the cached files"):
        AutoConfig.from_pretrained("gpt2")


def test_this_machine_can_be_reached() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=1) as client,
    ):
        assert client.getpeername() == server.getsockname()


def test_warnings_are_errors() -> None:
    with pytest.raises(UserWarning, match="careful"):
        warnings.warn("careful", stacklevel=1)


@pytest.mark.skipif("SINKSCOPE_NO_SHAPE_CHECKS" in os.environ, reason="SINKSCOPE_NO_SHAPE_CHECKS is set")
def test_shapes_are_checked() -> None:
    query = torch.zeros(1, 2, 3, 4)
    attend(query, query, query, "softmax")
    found = []
    for _ in range(ONE_OF):  # one of so many calls is looked at, where other tests have made many
        with pytest.raises((TypeCheckError, InputError)) as caught:
            attend(query, query[0], query, "softmax")
        found.append(caught)
    assert any(each.type is TypeCheckError and each.match("key") for each in found)


def test_a_disk_is_not_waited_for() -> None:
    assert os.fsync(-1) is None, "no disk has such a file"


def test_caches_are_no_users() -> None:
    assert "sinkscope-tests-" in str(cache_dir())
    assert "sinkscope-tests-" in os.environ["HF_HOME"]


def test_a_model_that_stays_observed_is_noticed(tiny_llama: LlamaForCausalLM) -> None:
    with ExitStack() as left, pytest.raises(AssertionError, match="leaves a model observed"), attention_as_before():
        left.enter_context(observe(tiny_llama))


drawn: list[float] = []


@pytest.mark.parametrize("run", [1, 2])
def test_every_test_draws_the_same_numbers(run: int) -> None:
    drawn.append(torch.rand(()).item())
    assert len(set(drawn)) == 1


def test_one_thread_a_worker() -> None:
    assert torch.get_num_threads() == 1
    assert os.environ["OMP_NUM_THREADS"] == "1"


@torch.no_grad()
def test_the_tiny_llama_attends_far_from_uniformly(tiny_llama: LlamaForCausalLM) -> None:
    tiny_llama.set_attn_implementation("eager")
    maps = tiny_llama(torch.arange(20)[None], output_attentions=True).attentions
    tiny_llama.set_attn_implementation("sdpa")
    strongest = torch.stack(maps)[..., 10:, :].amax(-1)
    assert strongest.median() > 0.3

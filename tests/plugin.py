"""What every test stands on: no network, one thread a worker, fixed seeds, shapes checked, caches of its own."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import random
import shutil
import socket
import sys
import tempfile
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

# Read when the libraries are imported, and inherited by subprocesses.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
}
if "PYTEST_XDIST_WORKER" not in os.environ:  # the workers of a run share the caches of the process that started them
    home = os.environ.get("SINKSCOPE_CACHE") or os.path.expanduser("~/.cache/sinkscope")
    os.environ.setdefault("SINKSCOPE_REAL", f"{home}/real")  # of tests/real, which keep what they fetch
    caches = tempfile.mkdtemp(prefix="sinkscope-tests-")
    atexit.register(shutil.rmtree, caches, ignore_errors=True)
    os.environ |= {"SINKSCOPE_CACHE": f"{caches}/sinkscope", "HF_HOME": f"{caches}/huggingface"}

if not os.environ.get("SINKSCOPE_NO_SHAPE_CHECKS"):
    from tests.shapes import install

    install("sinkscope")


# A disk takes milliseconds to write a file through, and nobody cuts a test's power. Tests of it bring their own.
os.fsync = lambda handle: None

# pytest's own handlers are off (`-p no:logging`): they visit the thousand loggers of the libraries six times a test.
logging.getLogger().addHandler(logging.NullHandler())
# No deadline: machines are slow at times. The same examples each time, so that no change fails on what is not its own.
hypothesis.settings.register_profile("same", max_examples=30, deadline=None, derandomize=True)
hypothesis.settings.register_profile("new", max_examples=300, deadline=None)  # `--hypothesis-profile new` looks further
hypothesis.settings.load_profile("same")
gc.disable()  # until everything is imported


def pytest_runtest_setup() -> None:
    """Tables are as wide as COLUMNS says, which a terminal sets, and some library in the process of the tests."""
    os.environ.pop("COLUMNS", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """What CI asks for."""
    says = (
        "run one in N of each slow test's cases, and one in six of a file's slow tests without cases; always the same"
    )
    parser.addoption("--every", type=int, default=1, metavar="N", help=says)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """No tier takes a job for releases: neither `not slow` nor, in the Makefile, `slow and not release`."""
    slow = []
    for item in items:
        if item.get_closest_marker("release"):
            item.add_marker(pytest.mark.slow)
        elif item.get_closest_marker("slow"):
            slow.append(item.nodeid)
    left_out = set(slow) - chosen(config.option.every, slow)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]


def chosen(every: int, names: list[str]) -> set[str]:
    """Choose about one in `every` of a test's cases, one in six of a file's tests without cases, and at least one.

    A test's cases show one property many times over; the tests of a file are of different ones. By names, so that a
    test or a case that is added moves no other.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        test, case, _ = name.partition("[")
        groups.setdefault(test if case else test.partition("::")[0], []).append(name)
    found = set()
    for of, group in groups.items():
        share = every if "::" in of else min(every, 6)
        found |= {name for name in group if zlib.crc32(name.encode()) % share == 0} or {group[0]}
    return found


def pytest_collection_finish() -> None:
    """The garbage collector passes over a million objects of the libraries and the tests, which stay till the end."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)  # at every 700 new objects it took a thirtieth of the time
    gc.enable()


# torch and transformers are imported where they are used: the process that only starts the workers needs neither.
@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws the same numbers, whatever ran before it."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    if torch.accelerator.is_available():
        torch.manual_seed(0)
    else:  # which `torch.manual_seed` would note, with its whole stack, for accelerators that may come up later
        torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that would leave this machine fails at once."""
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: object) -> None:
        host = address[0] if isinstance(address, tuple) else None
        if self.family != socket.AF_UNIX and host not in ("127.0.0.1", "::1", "localhost"):
            raise ConnectionRefusedError(f"tests have no network: {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Observing or changing attention replaces a lookup in the whole process until it ends: each test has to end it."""
    before = _lookup()
    yield
    after = _lookup()
    first_import = before is None and str(getattr(after, "__module__", "")).startswith("transformers.")
    assert after is before or first_import, "this test leaves a model observed or changed"


def _lookup() -> object:
    transformers = sys.modules.get("transformers.modeling_utils")
    return transformers and vars(transformers.AttentionInterface).get("get_interface")


@pytest.fixture(scope="session")
def tiny_llama() -> LlamaForCausalLM:
    """Two layers of random weights, grouped heads, attention far from uniform. Shared: leave it as it is."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=101,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight *= 16
            layer.self_attn.k_proj.weight *= 16
    return model


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What the package has logged so far."""
    said: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("sinkscope")
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield said
    logger.removeHandler(handler)
    logger.setLevel(level)

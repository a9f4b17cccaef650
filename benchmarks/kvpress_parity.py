"""Our policies beside kvpress's on the same tensors: largest difference of scores, and kept keys that both agree on.

kvpress is made for transformers before 5.3, which sinkscope does not support, so two environments take turns:

    python -m benchmarks.kvpress_parity save FOLDER            # where sinkscope is: a tiny model, a text, our scores
    OTHER/bin/python benchmarks/kvpress_parity.py check FOLDER # where kvpress 0.5.4 is: its scores, and the table

The second part imports nothing of sinkscope. It writes results/benchmarks/kvpress_parity.json.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LENGTH, LONG, SHARE, LAYERS = 200, 2048, 0.25, 2
SIZES = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": LAYERS,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 4096,
}  # fmt: skip
NAMES = ("streaming", "key-norm", "keydiff", "lagkv", "snapkv", "tova", "observed", "expected")
NOTES = {
    "streaming": "different scores: place, or 1 and 0",
    "key-norm": "keys of the same token have equal norms: among equals ours keeps the newest, `topk` any",
    "lagkv": "scores are ranks within a part, equal in all parts: among equals ours keeps the newest, `topk` any",
    "tova": "kvpress always keeps the last token",
    "observed": "kvpress needs eager attention for it",
    "expected": "ours rotates queries back by the measured rotation, theirs rebuilds them from hidden states",
}


def save(folder: Path) -> None:
    """A tiny random model, a text, and each policy's scores of it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from sinkscope.caches import EvictionCall, Policy, Protect, evicting
    from sinkscope.caches.policies import ExpectedAttention, LagKV, SnapKV, policy_of

    class Noting(Protect):
        """The policy itself, whose scores are noted."""

        def score(self, call: EvictionCall) -> Tensor:
            noted.append(self.policy.score(call))
            return noted[-1]

    noted: list[Tensor] = []
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter.mul_(8)
    model.save_pretrained(folder / "model")
    ids, long = (torch.randint(3, 97, (1, n)) for n in (LENGTH, LONG))
    own = {"lagkv": LagKV(4, 16), "snapkv": SnapKV(32, 5), "expected": ExpectedAttention(4, 64)}
    found: dict[str, Any] = {"ids": ids, "long": long, "seconds": {}}
    found["versions"] = {package: version(package) for package in ("sinkscope", "torch", "transformers")}
    for name in NAMES:
        policy: Policy = own.get(name) or policy_of(name)
        noted.clear()
        with evicting(model, Noting(policy, None, 0), SHARE) as cache, torch.no_grad():
            model(ids, past_key_values=cache)
        found[name] = {"scores": torch.stack(noted), "kept": torch.stack([layer.places for layer in cache.kept])}

        def compressed(policy: Policy = policy) -> None:
            with evicting(model, policy, SHARE) as cache, torch.no_grad():
                model(long, past_key_values=cache)

        found["seconds"][name] = _seconds(compressed)
    found["seconds"]["plain"] = _seconds(lambda: _plain(model, long))
    torch.save(found, folder / "ours.pt")


def check(folder: Path) -> None:
    """kvpress on the same model and text, and what both agree on."""
    import kvpress  # type: ignore[import-not-found,unused-ignore]
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    ours = torch.load(folder / "ours.pt", weights_only=True)
    ratio = 1 - SHARE
    presses = {
        "streaming": kvpress.StreamingLLMPress(ratio, n_sink=4),
        "key-norm": kvpress.KnormPress(ratio),
        "keydiff": kvpress.KeyDiffPress(ratio),
        "lagkv": kvpress.LagKVPress(ratio, n_sink=4, lag_size=16),
        "snapkv": kvpress.SnapKVPress(ratio, window_size=32, kernel_size=5),
        "tova": kvpress.TOVAPress(ratio),
        "observed": kvpress.ObservedAttentionPress(ratio),
        "expected": kvpress.ExpectedAttentionPress(ratio, n_sink=4, n_future_positions=64),
    }
    model = AutoModelForCausalLM.from_pretrained(folder / "model").eval()
    plain = {"ours": ours["seconds"]["plain"], "theirs": _seconds(lambda: _plain(model, ours["long"]))}
    rows: list[dict[str, Any]] = [{"policy": "nothing evicted", **plain}]
    for name, press in presses.items():
        host = "eager" if name == "observed" else "sdpa"
        model = AutoModelForCausalLM.from_pretrained(folder / "model", attn_implementation=host).eval()
        scores: list[Tensor] = []
        score = press.score

        def noted(*args: Any, of: Any = score, into: list[Tensor] = scores, **kwargs: Any) -> Tensor:
            into.append(of(*args, **kwargs))
            return into[-1]

        press.score = noted
        with torch.no_grad(), press(model):
            model(ours["ids"])
        theirs, own = torch.stack(scores), ours[name]["scores"]
        forced = name in ("snapkv", "tova", "expected")  # kvpress gives what must stay the highest score and 1
        both = own.isfinite() & ((theirs < theirs.amax() - 0.5) if forced else True)
        apart = float((theirs - own)[both].abs().max())
        kept = theirs.topk(int(LENGTH * SHARE), -1).indices
        hits = (kept[..., :, None] == ours[name]["kept"][..., None, :]).any(-1).float().mean()
        del press.score

        def compressed(press: Any = press, model: Any = model) -> None:
            with torch.no_grad(), press(model):
                model(ours["long"])

        row = {"policy": name, "kept_in_common": float(hits), "ours": ours["seconds"][name]}
        row |= {} if name == "streaming" else {"scores_apart": apart}
        rows.append(row | {"theirs": _seconds(compressed), "note": NOTES.get(name, "")})
    packages = ("kvpress", "torch", "transformers")
    sizes = {"tokens": LENGTH, "long": LONG, "share": SHARE, "heads": SIZES["num_attention_heads"]}
    found = {**sizes, "kv_heads": SIZES["num_key_value_heads"], "rows": rows}
    found["versions"] = {"theirs": {package: version(package) for package in packages}, "ours": ours["versions"]}
    path = Path(__file__).parents[1] / "results" / "benchmarks" / "kvpress_parity.json"
    path.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written: {path}")


@torch.no_grad()
def _plain(model: Any, ids: Tensor) -> None:
    model(ids, use_cache=True)


def _seconds(run: Callable[[], object], rounds: int = 5) -> float:
    run()
    found = []
    for _ in range(rounds):
        start = time.thread_time()
        run()
        found.append(time.thread_time() - start)
    return sorted(found)[rounds // 2]


if __name__ == "__main__":
    if len(sys.argv) == 3:
        torch.set_num_threads(1)
        target = Path(sys.argv[2])
        target.mkdir(parents=True, exist_ok=True)
        {"save": save, "check": check}[sys.argv[1]](target)
    else:  # as `make bench` calls it
        print(__doc__)

"""What the page of the zoo says around its tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BEFORE = """# The zoo

Every attention operation here is a value, an `AttentionSpec`, made of pieces that combine freely. A name in the
catalog is a line that makes such a value; its options are the line's parameters. The same value trains in the lab
model, decodes with a cache, goes onto a hub model and is measured by every observer.

```bash
sinkscope zoo                       # every operation: formula, what a row sums to, source
sinkscope zoo clipped_softmax       # one of them: options, published effect, the path that would run
sinkscope train nano --set attention=softmax_scaled --set attention.alpha=0.2 --plan
```

```python
import sinkscope as ss
from sinkscope.attention import ENTRIES, resolve

spec = ENTRIES["softmax_scaled"].make(alpha=0.2)
assert spec == resolve({"name": "softmax_scaled", "alpha": 0.2})  # the spelling of recipes and of LabConfig
assert ss.attention.name_of(spec) == "softmax_scaled(alpha=0.2)"
```

## How pieces combine

These are the fields of a spec, in the order in which they act:

| field | pieces | what it does |
|---|---|---|
| `query_key` | `QueryKeyNorm` | normalizes queries and keys, before rotation |
| `value_gate` | `ValueGate` | gates values by the block's input, before the cache |
| `temperature` | `LogLength` | scales scores with the number of visible tokens |
| `similarity` | `DotProduct`, `Kernel` | makes scores, with a feature map after rotation or without one |
| `first_key` | `FirstKeyLogit` | adds a learned logit to the scores on the first token of a row |
| `decay` | `ForgettingGate` | lowers scores by the gates between key and query |
| `slots` | `ZeroSlot`, `LogitSlot`, `SuffixSlot`, `KeySlot`, `LatentSlots` | what a query may attend to \
besides tokens; any number |
| `normalizer` | `Softmax`, `ScaledSoftmax`, `PowerSoftmax`, `ClippedSoftmax`, `Softpick`, `Sigmoid`, `PowerSigmoid`, \
`Elu`, `Relu`, `Linear`, `StickBreaking` | turns scores into weights |
| `difference` | `Difference` | subtracts a second map from the first |
| `output` | `ValueBias`, `HeadGate`, `ElementGate`, `Exclusive` | what happens to the aggregated values; any number |
| `mask` | `Causal`, `Full`, `Window`, `Prefix`, `Document`, `Strict`, `Without`, `Alone`, combined by `&` and `\\|` | \
who sees whom |

A combination without a name is written out:

```python
import torch

from sinkscope.attention import AttentionSpec, Causal, ElementGate, KeySlot, QueryKeyNorm, Sigmoid, Window, ZeroSlot
from sinkscope.model import LabConfig, LabForCausalLM

nameless = {
    "a key-value bias under sigmoid": AttentionSpec(normalizer=Sigmoid(), slots=(KeySlot(value="learned"),)),
    "off-by-one in a window": AttentionSpec(slots=(ZeroSlot(),), mask=Causal() & Window(256)),
    "a gate and qk-norm": AttentionSpec(query_key=QueryKeyNorm(), output=(ElementGate(openness=0.9),)),
}
for spec in nameless.values():
    config = LabConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, attention=spec)
    ss.measure(LabForCausalLM(config), torch.randint(0, 50, (2, 16)))
```

In a recipe, or on the command line, a spec is the dict that `spec.to_dict()` gives:

```bash
sinkscope train nano --set "attention={normalizer: {kind: sigmoid}, slots: [{kind: key, value: learned}]}" --plan
```

## How to read the tables

s = q·k / √d are the scaled scores of a query and the keys that it sees, n is the number of these keys, σ is the
logistic function. Sink₁ and Sink_\\* are the published sink rates of the first token and of a learned slot, both with a
threshold of 0.3.

*A row of weights*: what the weights of one query sum to. *The sink rate reads* them `raw` where mass goes to a slot
or is dropped, and `renormalized` (|w| / Σ|w|) in families whose rows do not sum to one by design. For an α-scaled
softmax and for p-norms this is our choice; the paper does not say.

*CPU* and *GPU*: what computes a long sequence, each in O(T) memory. `SDPA` is torch's fused kernel, exact here
because a slot is one more key. Under a mask that is more than the triangle (windows, documents, prefixes, padding) it
takes a block of queries at a time, on the keys that they can reach: on a CPU the flash kernel with its own backward
pass, on a GPU SDPA with the blocks computed again in the backward pass. A window of 256 takes half of the causal
triangle's time at T = 2048 on one CPU thread, and from T = 2048 to 8192 the peak memory of forward and backward grows
from 18 to 67 MB, that of differential attention from 80 to 304 MB (`benchmarks/attention_masks.py`). There is no
FlexAttention path. `streamed` takes a block of queries at a time, with its derivative in closed form.
`query chunks` also takes a block at a time, and computes every block again in the backward pass; with a position bias
(ALiBi, relative positions) every operation takes this path. `explain(spec, query)` says which path yours takes, and
why.

On a CUDA GPU with Triton, sigmoid, ELU, ReLU and softpick attention take a fused kernel instead of `streamed`, if it is
exact there. The first call compares it with the formulas, in values and gradients at odd lengths; this takes seconds,
and the outcome is kept in the cache (`$SINKSCOPE_CACHE`, else `~/.cache/sinkscope`) for this GPU and these versions of
torch, Triton and sinkscope. Where a kernel disagrees or fails, one warning says so and `streamed` runs; so it does
under `torch.compile`, which does not trace these kernels. `make kernels` compares all of them at once and
prints the table.

*Published effect* quotes the source; it was not reproduced here. Sources are listed in [the
bibliography](bibliography.md). *Secondary*: taken from third parties' notes or a README, so a digit may be off. *From
memory*: not checked against the text.
"""

AFTER = """
## What is refused, and why

Pieces that make no sense together are refused when the spec is made:

{refused}

What depends on a model's sizes is refused when the operation is built: `d_a` above the head's width, key-value heads
that do not divide the heads, a gate's slices that do not divide the width, a difference of heads whose width is not a
multiple of 4. Asking for a path that would not be exact is refused too. [Extending](extending.md) shows how to write
an operation of your own.

## What else a model can vary

These are fields of `LabConfig`, and of recipes under `model.` (`--set model.position=alibi`). Each combines with every
operation:

| field | choices |
|---|---|
| `position` | `rotary` (with `rope_theta`, `rope_fraction`, `rope_scale`), `none`, `learned`, `sinusoidal`, \
`relative_t5`, `relative_paper`, `alibi` |
| `restart_positions` | positions start again in each packed document |
| `sink_tokens` | learned tokens before every sequence |
| `norm` | `rmsnorm`, `layernorm`, `none` |
| `norm_placement` | `pre`, `post`, `sandwich`, `outlier_protected` |
| `residual_gain` | the factor of every residual branch |
| `ffn` | `swiglu`, `geglu`, `reglu`, `swish`, `gelu`, `relu`, `linear`, `none` (with `ffn_match_parameters`) |
| `head_combination` | `concat`, `add` |
| `weight_reparam` | `none`, `sigma` |
| `attention_every` | every n-th layer attends, from `attention_offset`; the others are Mamba layers |
| `kv_layers` | which layer's keys and values each layer reads; `kv_iterations` finds the fixed point |
| `is_causal` | `False`: a bidirectional model |
"""

KERNEL: dict[str, Any] = {"similarity": {"kind": "kernel", "feature": "elu"}, "normalizer": {"kind": "linear"}}
DIFFERENCE: dict[str, Any] = {"difference": {}}
REFUSED: tuple[Mapping[str, Any], ...] = (
    {"normalizer": {"kind": "sigmoid"}, "slots": [{"kind": "zero"}]},
    {"normalizer": {"kind": "sigmoid", "normalized": True}, "slots": [{"kind": "suffix"}]},
    {"normalizer": {"kind": "linear", "divisor": "sum"}},
    {"similarity": {"kind": "kernel", "feature": "elu"}},
    KERNEL | {"temperature": {}},
    KERNEL | {"slots": [{"kind": "key", "value": "learned"}]},
    KERNEL | {"decay": {}},
    DIFFERENCE | {"slots": [{"kind": "key"}]},
    DIFFERENCE | {"query_key": {}},
)

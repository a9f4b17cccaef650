"""All families that are checked, by kind: one registry.

`FAMILIES` dispatch through transformers' attention interface; `COLLECTED` have attention of their own and are measured
from the maps that they return; `REFUSED` are those whose numbers would be wrong.
"""

from sinkscope.probes.contracts.families import legacy
from sinkscope.probes.contracts.families.decoders import DENSE, MIXTURES
from sinkscope.probes.contracts.families.encoders import ENCODERS
from sinkscope.probes.contracts.families.hybrids import HYBRIDS
from sinkscope.probes.contracts.families.images import IMAGE_ENCODERS, LISTENERS
from sinkscope.probes.contracts.families.latent import INDEXED, LATENTS
from sinkscope.probes.contracts.families.multimodal import MULTIMODAL
from sinkscope.probes.contracts.families.pairs import PAIRS
from sinkscope.probes.contracts.families.sinks import COMPRESSED_KEYS, SINKS
from sinkscope.probes.contracts.families.windows import WINDOWS
from sinkscope.probes.contracts.family import Family, Host

KINDS: dict[str, dict[str, Family]] = {
    "decoders": DENSE,
    "mixtures of experts": MIXTURES,
    "windows, chunks and softcaps": WINDOWS,
    "learned sinks": SINKS,
    "latent attention": LATENTS,
    "keys chosen by an index": INDEXED,
    "hybrids and output gates": HYBRIDS,
    "encoders": ENCODERS,
    "encoder-decoders": PAIRS,
    "images": IMAGE_ENCODERS,
    "sound": LISTENERS,
    "several towers": MULTIMODAL,
}
FAMILIES: dict[str, Family] = {name: family for kind in KINDS.values() for name, family in kind.items()}
COLLECTED: dict[str, Family] = legacy.COLLECTED
REFUSED: dict[str, Family] = {**COMPRESSED_KEYS, **legacy.REFUSED}

__all__ = ["COLLECTED", "FAMILIES", "KINDS", "REFUSED", "Family", "Host"]

"""All families that are checked, by kind: one registry.

`FAMILIES` dispatch through transformers' attention interface, and so do `ENTRIES`, which attend to keys that are no
tokens beside those that are; `COLLECTED` have attention of their own and are measured from the maps that they return;
`REFUSED` are those whose numbers would be wrong.
"""

from tests.families.family import Family, Host
from tests.families.registry import legacy
from tests.families.registry.decoders import DENSE, MIXTURES
from tests.families.registry.encoders import ENCODERS
from tests.families.registry.hybrids import HYBRIDS
from tests.families.registry.images import IMAGE_ENCODERS, LISTENERS
from tests.families.registry.latent import INDEXED, LATENTS
from tests.families.registry.multimodal import MULTIMODAL
from tests.families.registry.pairs import PAIRS
from tests.families.registry.sinks import ENTRIES, SINKS
from tests.families.registry.windows import WINDOWS

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
REFUSED: dict[str, Family] = legacy.REFUSED

__all__ = ["COLLECTED", "ENTRIES", "FAMILIES", "KINDS", "REFUSED", "Family", "Host"]

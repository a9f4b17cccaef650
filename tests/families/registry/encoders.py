"""Encoders of text."""

from __future__ import annotations

from tests.families.family import Family
from tests.families.inputs import VOCABULARY
from tests.families.registry.sizes import MASKED, SHARED, TEXT

ENCODERS: dict[str, Family] = {
    "bert": Family("BertConfig", TEXT, auto=MASKED, sharpness=20.0),
    "roberta": Family("RobertaConfig", TEXT, auto=MASKED),
    "xlm_roberta": Family("XLMRobertaConfig", TEXT, auto=MASKED),
    "albert": Family("AlbertConfig", TEXT, auto=MASKED, sharpness=40.0),
    "electra": Family("ElectraConfig", {**TEXT, "embedding_size": 32}, auto=MASKED, sharpness=20.0),
    "distilbert": Family(
        "DistilBertConfig",
        {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
        | {"max_position_embeddings": 64},
        auto=MASKED,
        sharpness=20.0,
    ),
    "modernbert": Family(
        "ModernBertConfig", {**TEXT, "local_attention": 6, "global_attn_every_n_layers": 2}, auto=MASKED
    ),
    "nomic_bert": Family("NomicBertConfig", TEXT, auto=MASKED, sharpness=20.0),
    "eurobert": Family("EuroBertConfig", SHARED, auto=MASKED, sharpness=20.0),
    "layoutlm": Family("LayoutLMConfig", TEXT, auto=MASKED, sharpness=20.0),
    "markuplm": Family(
        "MarkupLMConfig",
        {**TEXT, "max_depth": 5, "xpath_unit_hidden_size": 4},
        auto="AutoModel",
        hosts=("eager",),
        sharpness=20.0,
    ),
    "splinter": Family("SplinterConfig", TEXT, auto="AutoModel", hosts=("eager",), sharpness=20.0),
    "esm": Family("EsmConfig", {**TEXT, "mask_token_id": 1}, auto=MASKED),
    "clip_text": Family("CLIPTextConfig", TEXT, auto="AutoModel"),
}

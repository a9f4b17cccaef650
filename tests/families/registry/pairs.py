"""Encoder-decoders, of text and of speech."""

from __future__ import annotations

from tests.families.family import Family
from tests.families.inputs import FRAMES, MELS, VOCABULARY
from tests.families.registry.sizes import GROUPED, PAIRED, T5, TWO_SIDES, TWOFOLD

GEMMA = {**GROUPED, "sliding_window": 5, "query_pre_attn_scalar": 8}

PAIRS: dict[str, Family] = {
    "t5": Family("T5Config", T5, auto=PAIRED, kind="pairs", sharpness=2.0),
    "mt5": Family("MT5Config", T5, auto=PAIRED, kind="pairs", sharpness=2.0),
    "umt5": Family("UMT5Config", T5, auto=PAIRED, kind="pairs", sharpness=2.0),
    "switch_transformers": Family(
        "SwitchTransformersConfig",
        {**T5, "num_decoder_layers": 2, "num_experts": 2},
        auto=PAIRED,
        kind="pairs",
        hosts=("eager",),
        sharpness=2.0,
    ),
    "longt5": Family(
        "LongT5Config", {**T5, "local_radius": 3}, auto=PAIRED, kind="pairs", hosts=("eager",), sharpness=2.0
    ),
    "t5gemma": Family(
        "T5GemmaConfig",
        {"encoder": GEMMA, "decoder": GEMMA, "vocab_size": VOCABULARY},
        auto=PAIRED,
        kind="pairs",
        hosts=("eager",),
    ),
    "bart": Family("BartConfig", TWOFOLD, auto=PAIRED, kind="pairs"),
    "mbart": Family("MBartConfig", TWOFOLD, auto=PAIRED, kind="pairs"),
    "m2m_100": Family("M2M100Config", TWOFOLD, auto=PAIRED, kind="pairs", sharpness=24.0),
    "marian": Family(
        "MarianConfig", {**TWOFOLD, "decoder_start_token_id": 0}, auto=PAIRED, kind="pairs", sharpness=40.0
    ),
    "pegasus": Family("PegasusConfig", TWOFOLD, auto=PAIRED, kind="pairs", sharpness=40.0),
    "whisper": Family(
        "WhisperConfig",
        {**TWO_SIDES, "num_mel_bins": MELS, "max_source_positions": FRAMES // 2, "max_target_positions": 64}
        | {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
        auto="AutoModelForSpeechSeq2Seq",
        kind="spectrograms",
    ),
}

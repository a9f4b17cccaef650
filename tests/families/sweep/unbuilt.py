"""Model types that have no tiny model here, and why."""

from __future__ import annotations


def _of(reason: str, *kinds: str) -> dict[str, str]:
    return dict.fromkeys(kinds, reason)


SESSIONS = "its forward takes a session of a video, made by its processor frame by frame"

UNBUILT: dict[str, str] = {
    **_of("needs natten", "dinat"),
    **_of("needs detectron2", "layoutlmv2"),
    **_of("needs torchaudio", "higgs_audio_v2_tokenizer"),
    **_of(SESSIONS, "edgetam_video", "sam2_video", "sam3_tracker_video", "sam3_video"),
    **_of(
        "its own code makes no model: no layer has keys of its own, and its text model wants one that has",
        *("gemma4_assistant", "gemma4_unified_assistant"),
    ),
    **_of("its own code adds up positions of one sample only, and the sweep gives it two", "tvp"),
}

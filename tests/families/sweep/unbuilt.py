"""Model types that have no tiny model here, and why."""

from __future__ import annotations


def _of(reason: str, *kinds: str) -> dict[str, str]:
    return dict.fromkeys(kinds, reason)


SESSIONS = "its forward takes a session of a video, made by its processor frame by frame"
STAGES = "a backbone with stages, and a neck or decoder, whose sizes hang together in ways that the rule does not know"
CODEC = "a codec of sound, whose strides, filters and codebooks hang together in ways that the rule does not know"

UNBUILT: dict[str, str] = {
    **_of(
        "needs timm",
        *("edgetam", "edgetam_vision_model", "fast_vlm", "gemma3n", "pe_audio_video", "pe_video", "perception_lm"),
        *("timm_backbone", "timm_wrapper"),
    ),
    **_of("its head enlarges maps by widths that the rule does not fit", "eomt", "eomt_dinov3"),
    **_of("needs natten", "dinat"),
    **_of("needs detectron2", "layoutlmv2"),
    **_of("needs torchaudio", "higgs_audio_v2_tokenizer"),
    **_of(SESSIONS, "edgetam_video", "sam2_video", "sam3_tracker_video", "sam3_video"),
    **_of(
        STAGES,
        *("depth_pro", "efficientloftr", "omdet-turbo", "pp_doclayout_v2"),
        *("pp_doclayout_v3", "pp_ocrv5_mobile_det", "pp_ocrv5_mobile_rec", "pp_ocrv5_server_det"),
        *("pp_ocrv5_server_rec", "pp_ocrv6_medium_det", "pp_ocrv6_small_det", "pp_ocrv6_small_rec"),
        *("pp_ocrv6_tiny_rec", "sam3_tracker", "slanet", "uvdoc", "tvp", "chmv2"),
    ),
    **_of(
        CODEC,
        *("neucodec", "xcodec", "xcodec2"),
    ),
    **_of("matches pairs of images by keypoints that another model finds", "lightglue", "superglue"),
    **_of("is several models that call each other and has no forward of its own", "bark"),
    **_of("a speech model and a vocoder, whose widths the rule does not fit", "fastspeech2_conformer_with_hifigan"),
    **_of(
        "drafts for another model, whose caches or states it is given",
        *("gemma4_assistant", "gemma4_unified_assistant", "muse_glimmer_assistant"),
    ),
    **_of("its smallest parts have more than 100 million parameters", "vibevoice", "vibevoice_asr"),
    **_of(
        "takes frames of sound of a shape that its processor makes and the rule does not know",
        *("clvp", "kyutai_speech_to_text", "voxtral_realtime_text"),
    ),
    **_of("takes states and actions of a robot, or marks of options, beside its text", "pi0", "jev"),
    **_of("takes a second picture with its labels as a prompt", "seggpt"),
    **_of("its tiles and positions have sizes that the rule does not know", "granite4_vision", "sapiens2"),
}

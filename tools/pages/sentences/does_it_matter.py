"""What SmolLM2's sink turns out to be, on two sets of texts, and other changes of it."""

from __future__ import annotations

from tools.pages.stored import arms, ends, one, quoted, read

PAGE = "docs/does_it_matter.md"
PROSE, CODE = "real/trials/intervene-prose", "real/trials/intervene-code"


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    return [*_short(), *_in_chat(), *_figure(), *_other_changes()]


def _short() -> list[str]:
    found, stored = arms("real/intervene_smollm2"), read("real/intervene_smollm2")["result"]
    sink = stored["sink"]
    before, hidden = sink["afterwards"]["full"], sink["afterwards"]["hide-sink"]
    return [
        f"on {stored['texts']} texts of {stored['tokens']} tokens of the shipped prose",
        "both change predictions more (by "
        f"{found['mean-sink']['beats_by']:.2f} and {found['swap-sink']['beats_by']:.2f} in KL)",
        f"Without its value the model loses {found['mute-sink']['lost']:.2f} nats per token, and "
        f"{found['fold-logit']['lost']:.2f} with a constant logit but no value",
        f"1 / (1 − weight), about {1 / (1 - sink['mass']):.1f} here",
        f"removing a mass of {sink['moved']:.2f} from the sink costs less than",
        f"the largest sink rate is {hidden['rate']:.1f} %, at position {hidden['position']} (before: "
        f"{before['rate']:.0f} % at position {before['position']})",
    ]


def _in_chat() -> list[str]:
    prose, code, stored = arms(PROSE), arms(CODE), read(PROSE)["result"]
    fold = [found["fold-sink"] for found in (prose, code)]
    more = {row["lost"] - found["random for fold-sink"]["lost"] for row, found in zip(fold, (prose, code), strict=True)}
    costs = [f"{row['lost']:.3f}" for row in fold]
    short, *long = (_trimmed(place) for place in ("real/intervene_smollm2", PROSE, CODE))
    return [
        f"on {stored['texts']} texts of {stored['tokens']} tokens of prose, and of code, as a user's message "
        f"(constants from {stored['calibrated_on']['texts']} others",
        f"per head in the sink's place costs {one(costs)} nats of prose "
        f"({' to '.join(ends(fold[0], 'lost', 3))}) and of code ({' to '.join(ends(fold[1], 'lost', 3))}), "
        f"{max(more):.3f} more than folding another token",
        f"Removing a mass of {stored['sink']['moved']:.2f} from the sink costs about half of what removing it from "
        f"other tokens costs: {long[0][0]} nats less of prose ({long[0][2]} to {long[0][1]}), {long[1][0]} of code "
        f"({long[1][2]} to {long[1][1]}). So it did on the shorter texts, by {short[0]} ({short[2]} to {short[1]}).",
    ]


def _trimmed(place: str) -> list[str]:
    """How much less it costs to take mass from the sink than from other tokens."""
    return [end.lstrip("-") for end in quoted(place, "costs less than the same mass on other tokens")]


def _figure() -> list[str]:
    found = arms("real/intervene_smollm2")
    kl = {name: row["kl"] for name, row in found.items() if row["role"] == "arm"}
    return [f"hiding the sink {kl.pop('hide-sink'):.1f}, muting it {kl.pop('mute-sink'):.1f}"]


def _other_changes() -> list[str]:
    onset = read("real/trials/remove-onset-prose")["result"]["sink"]["afterwards"]
    heads = [arms(f"real/trials/zero-sink-heads-{corpus}") for corpus in ("prose", "code")]
    lost = [found["zero-sink-heads"]["lost"] for found in heads]
    others = [row["lost"] for found in heads for row in found.values() if row["role"] == "control"]
    bands = [
        row["lost"]
        for corpus in ("prose", "code")
        for row in arms(f"real/trials/suppress-bands-{corpus}").values()
        if row["role"] == "control"
    ]
    view = [
        read(f"real/trials/first-view-{corpus}")["result"]["sink"]["afterwards"]["first-view"]["rate_of_old"]
        for corpus in ("prose", "code")
    ]
    return [
        f"takes the sink rate of position 0 from {onset['full']['rate']:.0f} to "
        f"{onset['remove-onset']['rate']:.0f} % on",
        f"cost less ({lost[0]:.2f} and {lost[1]:.2f} nats) when zeroed than twenty others do ({min(others):.2f} to "
        f"{max(others):.2f})",
        f"random directions, as many, cost {min(bands):.1f} to {max(bands):.1f} nats",
        f"goes from no head to {view[0]:.0f} % of heads on prose and {view[1]:.0f} % on code",
    ]

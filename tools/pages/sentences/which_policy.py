"""What caches that drop or round keys cost SmolLM2, and what its sink is worth to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tools.pages.stored import arms, bare, ends, listed, quoted, read

PAGE = "docs/which_policy.md"
TRIALS = "real/trials/cache"
CORPORA = ("prose", "code")
SHARES = ("10%", "25%", "50%")


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    return [
        *_setup(),
        *_policies(),
        *_engines(),
        *_rounded(),
        *_long(),
        *_recall(),
        *_seen(),
        *_sinks(),
        *_recall_model(),
    ]


def _setup() -> list[str]:
    tenth, quarter, half = (read(f"{TRIALS}-{share.rstrip('%')}-prose")["result"] for share in SHARES)
    long, engines = (read(f"{TRIALS}-{name}-prose")["result"] for name in ("long", "engines"))
    (kept,) = quarter["protect"]["positions"]
    newest = [long["facts"][f"h2o@{share}"]["policy"]["newest"] for share in SHARES]
    return [
        f"{quarter['texts']} texts of {quarter['tokens']} tokens of each of two corpora in its chat format "
        f"({long['texts']} of {long['tokens']:,} tokens; {engines['texts']} for engines' streams)",
        f"Position {kept} and the newest {quarter['recent']} tokens ({_newest_of_h2o(quarter)} for H2O; at a tenth of "
        f"the bytes {tenth['recent']} and {_newest_of_h2o(tenth)}, at half {half['recent']} and "
        f"{_newest_of_h2o(half)}; of long texts {long['recent']}, and {newest[0]}, {newest[1]} and {newest[2]}) stay",
    ]


def _newest_of_h2o(result: dict[str, Any]) -> int:
    (newest,) = (each["policy"]["newest"] for arm, each in result["facts"].items() if arm.startswith("h2o@"))
    return int(newest)


def _policies() -> list[str]:
    result = read(f"{TRIALS}-25-prose")["result"]
    return [
        f"with {result['texts']} texts it can be told",
        f"None is free: each costs more than {bare(result['tolerance'], 2)} nats per token",
    ]


def _engines() -> list[str]:
    found, texts = arms(f"{TRIALS}-engines-prose"), read(f"{TRIALS}-engines-prose")["result"]["texts"]
    more = found["random for llama.cpp@25%"]["bytes"] / found["llama.cpp@25%"]["bytes"] - 1
    return [
        f"Of engines' streams ({texts} texts of each, a quarter of the bytes)",
        f"from random keys, which hold {100 * more:.0f} % more bytes",
    ]


def _rounded() -> list[str]:
    found = arms(f"{TRIALS}-rounded-prose")
    share = found["llama.cpp-q4_0"]["bytes"] / (found["full"]["bytes"] / 2)  # held in fp32 there
    return [f"about as much as H2O at half of the bytes, for {100 * share:.0f} % of them"]


def _long() -> list[str]:
    result = read(f"{TRIALS}-long-prose")["result"]
    h2o, snapkv = ([_kl(policy, share, "prose") for share in SHARES] for policy in ("h2o", "snapkv"))
    h2o_code, snapkv_code = ([_kl(policy, share, "code") for share in SHARES] for policy in ("h2o", "snapkv"))
    on_code = read(f"{TRIALS}-long-code")["result"]["texts"]
    return [
        f"Of texts of {result['tokens']:,} tokens ({result['texts']} of documentation, the last "
        f"{result['tokens'] - result['reading']['context']} predicted) the same shares cost less in the mean, which "
        f"{result['texts']} texts hardly tell: H2O a KL of {h2o[0]} at a tenth, {h2o[1]} at a quarter and {h2o[2]} at "
        f"half, SnapKV {snapkv[0]}, {snapkv[1]} and {snapkv[2]}. On {on_code} texts of code they cost about what they "
        f"cost of short ones: H2O {h2o_code[0]}, {h2o_code[1]} and {h2o_code[2]}, SnapKV {snapkv_code[0]}, "
        f"{snapkv_code[1]} and {snapkv_code[2]}.",
        f"which of them is better cannot be told with {on_code} texts",
    ]


def _kl(policy: str, share: str, corpus: str) -> str:
    return bare(arms(f"{TRIALS}-long-{corpus}")[f"{policy}@{share}"]["kl"], 2)


def _recall() -> list[str]:
    prose, code = (arms(f"{TRIALS}-needles-{corpus}") for corpus in CORPORA)
    chats = [read(f"{TRIALS}-needles-{corpus}")["result"]["needles"][0] for corpus in CORPORA]
    half = [
        [_answered(found[f"{arm}@50%"]) for arm in ("snapkv", "keydiff", "h2o", "random for h2o")]
        for found in (prose, code)
    ]
    quarter = (row["recall"] for found in (prose, code) for row in _dropping(found) if row["arm"].endswith("@25%"))
    return [
        f"after eviction ({chats[0]} texts of documentation, {chats[1]} of code) are few here: SmolLM2 answers "
        f"{_answered(prose['full'])} with its full cache, on code {_answered(code['full'])}. With half of the bytes it "
        f"answers {half[0][0]} through SnapKV, {half[0][1]} through KeyDiff, {half[0][2]} through H2O and {half[0][3]} "
        f"through random keys, on code {half[1][0]}, {half[1][1]}, {half[1][2]} and {half[1][3]}; with a quarter none "
        f"more than {100 * max(quarter):.0f} %",
    ]


def _answered(row: dict[str, Any]) -> str:
    low, high = ends(row, "recall", 0, 100)
    return f"{100 * row['recall']:.0f} % ({low} to {high})"


def _dropping(found: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (row for row in found.values() if row["role"] in ("arm", "control"))


def _seen() -> list[str]:
    full = [arms(f"{TRIALS}-needles-{corpus}")["full"]["recall_seen"] for corpus in CORPORA]
    snapkv, h2o, random = (_least_and_most(arm) for arm in ("snapkv@", "h2o@", "random for "))
    return [
        f"is answered, among the values asked for, in {snapkv} % through SnapKV (full cache {100 * full[0]:.0f} and "
        f"{100 * full[1]:.0f} %), {h2o} % through H2O and {random} % through random keys",
    ]


def _least_and_most(arm: str) -> str:
    """In percent, of answers to questions that were seen, over budgets and corpora."""
    rows = (row for corpus in CORPORA for row in _dropping(arms(f"{TRIALS}-needles-{corpus}")))
    shares = [100 * row["recall_seen"] for row in rows if row["arm"].startswith(arm)]
    return f"{min(shares):.0f} to {max(shares):.0f}"


def _sinks() -> list[str]:
    streaming, keydiff = ([_more(policy, corpus) for corpus in CORPORA] for policy in ("streaming", "keydiff"))
    (prose, *ends_prose), (code, *ends_code) = streaming
    kept = [listed(map(str, read(f"{TRIALS}-sinks-{corpus}")["result"]["protect"]["positions"])) for corpus in CORPORA]
    return [
        f"positions {kept[0]} of prose, {kept[1]} of code, as measured on other texts",
        f"streaming costs SmolLM2 {prose} nats more on prose ({' to '.join(ends_prose)}) and {code} on code "
        f"({' to '.join(ends_code)}), KeyDiff {_interval(keydiff[0])} and {_interval(keydiff[1])}",
    ]


def _more(policy: str, corpus: str) -> tuple[str, str, str]:
    """What a policy costs more without the sink."""
    words = f"'{policy}@25%' with its sinks taken away and random tokens kept in their place costs"
    return quoted(f"{TRIALS}-sinks-{corpus}", words)


def _interval(found: tuple[str, str, str]) -> str:
    value, low, high = found
    return f"{value} ({low} to {high})"


def _recall_model() -> list[str]:
    parameters = read("models/nano-recall")["parameters"]
    return [f"is a Llama of two layers and {parameters / 1e6:.1f} million parameters"]

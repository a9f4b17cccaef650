"""Right functions agree, and planted mistakes are found and named."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

import sinkscope.attention as zoo
from sinkscope.attention.oracle import CASES, DEFECTS, Case, exact
from sinkscope.attention.oracle.comparing import allowed, drawn
from sinkscope.errors import InputError

CPU = torch.device("cpu")
BY_NAME = {case.name: case for case in CASES}
FEW = [BY_NAME[name] for name in ("plain", "sink", "sink, window", "softcap", "grouped heads", "chunk of a prefill")]


def dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scaling: float,
    causal: bool,
    window: int | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    wrong: str = "",
) -> tuple[Tensor, Tensor]:
    """Attention over whole maps in the dtype's fp32, and its log-sum-exp over tokens; `wrong` plants a mistake."""
    group, heads = query.shape[1] // key.shape[1], torch.arange(query.shape[1])
    chosen = heads % key.shape[1] if wrong == "interleaved" else heads // group
    key, value = key[:, chosen].float(), value[:, chosen].float()
    scores = scaling * query.float() @ key.mT
    distance = torch.arange(query.shape[2])[:, None] - torch.arange(key.shape[2])
    distance = distance + (0 if wrong == "top left" else key.shape[2] - query.shape[2])
    hidden = (distance < 0) if causal else torch.zeros_like(distance, dtype=torch.bool)
    if window is not None:
        hidden = hidden | (distance.abs() >= window + (wrong == "wide window"))
    if cu_seqlens is not None and wrong != "one text":
        text = torch.bucketize(torch.arange(key.shape[2]), cu_seqlens[1:].long(), right=True)
        hidden = hidden | (text[:, None] != text)
    if wrong == "cap last":
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if wrong != "cap last":
        scores = scores.masked_fill(hidden, -torch.inf)
    empty = hidden.all(-1)[:, None]
    if wrong != "not a number":
        scores = scores.masked_fill(empty, 0.0)
    tokens = torch.logsumexp(scores, -1)
    if wrong != "lse of nothing":
        tokens = tokens.masked_fill(empty[..., 0], -torch.inf)
    returned = tokens.detach() if wrong == "lse detached" else tokens

    def left(output: Tensor) -> Tensor:
        return (output if wrong in ("uniform", "not a number") else output.masked_fill(empty, 0.0)).to(query.dtype)

    if sink is None or wrong == "drop":
        return left(torch.softmax(scores, -1) @ value), returned
    if wrong == "sink's dtype":
        scores = scores.to(sink.dtype).float()
    column = sink.float()[:, None, None].expand(*scores.shape[:3], 1)
    if wrong == "detached":
        output = torch.softmax(scores, -1) @ value * torch.sigmoid(tokens.detach()[..., None] - column)
    elif wrong == "overflow":
        output = (scores.exp() / (scores.exp().sum(-1, keepdim=True) + column.exp())) @ value
    else:
        output = torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1] @ value
    total = torch.logaddexp(tokens, column[..., 0])
    mixed = wrong == "lse both" and window is not None
    return left(output), total if wrong == "lse total" or mixed else returned


def found(function: Callable, **options) -> zoo.Parity:
    return zoo.parity(function, quiet=True, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_right_function_agrees_in_all_cases(dtype):
    result = found(dense, dtypes=[dtype], lse="tokens")
    assert result.ok, str(result)
    assert not result.missing
    assert result.check(complete=True) is result
    assert {name for row in result.rows for name in row.errors} == {
        "output",
        "lse",
        "dquery",
        "dkey",
        "dvalue",
        "dsink",
        "dlse",
    }


def test_a_log_sum_exp_without_a_gradient_is_found():
    cases = [BY_NAME[name] for name in ("plain", "sink")]
    detached = functools.partial(dense, wrong="lse detached")
    result = found(detached, cases=cases)
    assert [row.outcome for row in result.rows] == ["differs", "differs"]
    assert all("its lse has no gradient" in row.note for row in result.rows)
    assert found(detached, cases=cases, without=["lse_gradient"]).ok
    assert found(detached, cases=cases, gradients=False).ok


def test_a_wrong_gradient_of_the_log_sum_exp_is_found():
    def halved(*args: Tensor, **kwargs: object) -> tuple[Tensor, Tensor]:
        output, lse = dense(*args, **kwargs)
        return output, lse.detach() + 0.5 * (lse - lse.detach())

    [row] = found(halved, cases=[BY_NAME["plain"]]).rows
    assert (row.outcome, row.note.partition(" is off")[0]) == ("differs", "dlse")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("more queries than keys", "uniform"),
        ("more queries than keys", "not a number"),
        ("sink, more queries than keys", "uniform"),
    ],
)
def test_queries_that_see_nothing_get_nothing(name, wrong):
    assert found(dense, cases=[BY_NAME[name]]).ok
    [row] = found(functools.partial(dense, wrong=wrong), cases=[BY_NAME[name]]).rows
    assert row.outcome == "differs"
    assert wrong == "uniform" or row.note == "its output is not finite"


def test_the_log_sum_exp_of_no_keys_is_the_sink() -> None:
    """Over tokens and sink; over tokens alone it is −∞. By it outputs of several parts of the keys are joined."""
    case = BY_NAME["sink, more queries than keys"]
    total = functools.partial(dense, wrong="lse total")

    def low(*args: Tensor, **kwargs: object) -> tuple[Tensor, Tensor]:
        output, lse = total(*args, **kwargs)
        return output, torch.where(lse == kwargs["sink"][:, None], -torch.inf, lse)

    def of_tokens(*args: Tensor, sink: Tensor, **kwargs: object) -> tuple[Tensor, Tensor]:
        output, lse = dense(*args, sink=sink, **kwargs)
        return output, torch.where(lse.isinf(), sink[:, None], lse)

    cases = [BY_NAME["sink"], case]
    for function, stated in ((dense, "tokens"), (dense, None), (total, "total"), (total, None)):
        assert found(function, lse=stated, cases=cases).ok
    nothing = functools.partial(dense, wrong="lse of nothing")
    for function, stated in ((low, "total"), (low, None), (of_tokens, "tokens"), (of_tokens, None), (nothing, None)):
        result = found(function, lse=stated, cases=cases, gradients=False)
        assert [row.case for row in result.wrong] == [case.name], str(result)
        assert "of a query that sees no key is" in result.wrong[0].note


def test_a_log_sum_exp_over_the_sink_has_a_gradient_in_it() -> None:
    def held(*args: Tensor, sink: Tensor, **kwargs: object) -> tuple[Tensor, Tensor]:
        output, _ = dense(*args, sink=sink, wrong="lse total", **kwargs)
        return output, dense(*args, sink=sink.detach(), wrong="lse total", **kwargs)[1]

    cases = [BY_NAME["sink"], BY_NAME["sink, more queries than keys"]]
    assert [row.errors["dlse"] > row.limit for row in found(held, lse="total", cases=cases).wrong] == [True, True]
    assert found(functools.partial(dense, wrong="lse total"), lse="total", cases=cases).ok


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("keys of 192, values of 128", lambda q, k, v, o: dense(q, k, v, **o | {"scaling": v.shape[-1] ** -0.5})),
        ("keys of 192, values of 128", lambda q, k, v, o: dense(q, k, F.pad(v, (0, 64)), **o)),
        ("sink in bfloat16", lambda q, k, v, o: dense(q, k, v, wrong="sink's dtype", **o)),
        ("sink in bfloat16", lambda q, k, v, o: dense(q, k, v, **o | {"sink": o["sink"].view(torch.int16).float()})),
    ],
)
def test_widths_and_dtypes_of_large_models(name: str, broken: Callable) -> None:
    case = BY_NAME[name]
    assert found(dense, cases=[case]).ok
    assert not found(lambda q, k, v, **options: broken(q, k, v, options), cases=[case], gradients=False).ok


@pytest.mark.parametrize("name", ["packed texts", "sink, packed texts"])
def test_packed_texts_that_see_each_other_are_found(name):
    assert found(dense, cases=[BY_NAME[name]]).ok
    [row] = found(functools.partial(dense, wrong="one text"), cases=[BY_NAME[name]]).rows
    assert (row.outcome, row.note.partition(";")[0]) == ("differs", "sees other packed texts")
    plain = zoo.parity(lambda query, key, value, *, scaling, causal: query, cases=[BY_NAME[name]], quiet=True)
    assert plain.rows[0].outcome == "not supported"


@pytest.mark.parametrize("given", [3, None])
def test_what_is_no_function_is_refused_in_one_line(given):
    with pytest.raises(InputError, match="expected an attention function, got"):
        zoo.parity(given, quiet=True)


@pytest.mark.slow
def test_either_convention_of_a_log_sum_exp_is_found():
    total = functools.partial(dense, wrong="lse total")
    assert found(total).ok
    assert found(total, lse="total").ok
    assert found(dense).ok
    for function, stated, words in (
        (total, "tokens", "over tokens and sink, declared over tokens alone"),
        (dense, "total", "over tokens alone, declared over tokens and sink"),
    ):
        wrong = found(function, lse=stated).wrong
        assert wrong
        assert all(row.case.startswith("sink") and words in row.note for row in wrong)


@pytest.mark.slow
def test_a_convention_that_changes_is_found():
    wrong = found(functools.partial(dense, wrong="lse both")).wrong
    assert wrong
    assert all("window" in row.case and "found in other cases over tokens alone" in row.note for row in wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("wrong", "where", "words"),
    [
        ("drop", "sink", "drops the sink"),
        ("wide window", "window", "a window one wider"),
        ("cap last", "softcap", "caps after the mask"),
        ("interleaved", "grouped heads", "in turn"),
        ("top left", "chunk of a prefill", "aligns the triangle at the top left"),
    ],
)
def test_planted_mistakes_are_found_and_named(wrong, where, words, dtype):
    result = found(functools.partial(dense, wrong=wrong), dtypes=[dtype], gradients=False)
    assert not result.ok
    row = next(row for row in result.rows if row.case == where)
    assert row.outcome == "differs"
    assert words in row.note
    harmless = [BY_NAME[name] for name in ("plain", "odd length", "bidirectional", "own scaling")]
    assert found(functools.partial(dense, wrong=wrong), dtypes=[dtype], cases=harmless).ok


@pytest.mark.slow
def test_a_gradient_that_does_not_flow_through_the_log_sum_exp():
    """Outputs are right: sigmoid(lse − sink) with an lse that has no gradient."""
    wrong = functools.partial(dense, wrong="detached")
    assert found(wrong, gradients=False).ok
    assert {row.case for row in found(wrong).wrong} >= {"sink", "sink, window"}
    assert all("sink" in row.case for row in found(wrong).wrong)


@pytest.mark.slow
def test_logits_that_overflow():
    row = next(
        row for row in found(functools.partial(dense, wrong="overflow")).rows if row.case == "sink, large logits"
    )
    assert (row.outcome, row.note) == ("differs", "its output is not finite")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("defect", DEFECTS)
def test_every_defect_shows_by_ten_limits(defect, dtype):
    """Sinks, windows and caps are large enough to be seen in the dtype: no defect hides in rounding."""
    seen = 0.0
    for case in CASES:
        if all(feature in case.features for feature in DEFECTS[defect]):
            problem = drawn(case, dtype, CPU)
            right = exact(problem).output
            error = (exact(problem, defect).output - right).abs().max() / right.abs().max()
            seen = max(seen, error.item() / allowed(problem, dtype))
    assert seen > 10


def test_a_sink_takes_a_fifth_to_four_fifths():
    for case in CASES:
        if case.sink in ("beside", "far"):
            solved = exact(drawn(case, torch.bfloat16, CPU))
            taken = 1 - (solved.tokens - solved.total).exp().mean((0, 2))
            assert taken.min() > 0.1
            assert taken.max() < 0.9


def test_what_is_not_supported_is_listed_and_never_passes():
    def small(query, key, value, *, scaling, causal):
        return dense(query, key, value, scaling=scaling, causal=causal)[0]

    result = found(small)
    assert result.ok
    assert {row.case for row in result.missing} == {
        case.name for case in CASES if case.sink or case.window or case.softcap or case.texts
    }
    assert next(row for row in result.missing if row.case == "sink").note == "takes no 'sink'"
    with pytest.raises(zoo.Disagreement, match="not supported; takes no 'cu_seqlens'"):
        result.check(complete=True)
    rows = json.loads(json.dumps(result.to_json(), allow_nan=False))["rows"]
    assert [row["limit"] is None for row in rows] == [row in result.missing for row in result.rows]

    def picky(query, key, value, *, softcap=None, **options):
        if softcap is not None:
            raise NotImplementedError("no softcap on this device")
        return dense(query, key, value, **options)

    rows = {row.case: row for row in found(picky, without=["sink"]).rows}
    assert (rows["softcap"].outcome, rows["softcap"].note) == ("not supported", "no softcap on this device")
    assert rows["sink, window"].note == "declared without 'sink'"
    assert rows["window"].outcome == "agrees"


def test_options_that_are_swallowed_are_no_support():
    """What serving engines do: a keyword is taken, and nothing is done with it."""

    def swallowing(query, key, value, *, scaling, causal, **ignored):
        return dense(query, key, value, scaling=scaling, causal=causal)[0]

    result = found(swallowing, gradients=False)
    assert {row.case for row in result.wrong} >= {case.name for case in CASES if case.window and case.queries > 1}
    named = {row.case: row.note for row in result.rows}
    assert named["sink"] == "drops the sink"
    assert named["window"] == "ignores the window"
    assert named["softcap"] == "ignores the softcap"


def test_a_function_that_raises_is_a_finding_of_its_row():
    def broken(query, key, value, *, scaling, causal):
        if not causal:
            raise RuntimeError("illegal\nmemory access")
        return dense(query, key, value, scaling=scaling, causal=causal)[0][..., :1]

    rows = {row.case: row for row in found(broken).rows}
    assert (rows["bidirectional"].outcome, rows["bidirectional"].note) == (
        "raised",
        "RuntimeError: illegal memory access",
    )
    assert "expected (2, 4, 37, 32)" in rows["plain"].note
    with pytest.raises(zoo.Disagreement, match="plain in float32: raised"):
        found(broken).check()


def test_a_function_without_a_backward_pass_says_so():
    def forward_only(*tensors, **options):
        with torch.no_grad():
            return dense(*tensors, **options)[0]

    assert not found(forward_only, cases=FEW).ok
    assert "pass gradients=False" in found(forward_only, cases=FEW).rows[0].note
    assert found(forward_only, cases=FEW, gradients=False).check(complete=True)
    assert found(forward_only, cases=FEW, without=["gradients"]).ok


def test_the_ways_of_calling_that_libraries_have():
    torchs = found(F.scaled_dot_product_attention, style="sdpa")
    assert torchs.ok
    assert {row.case for row in torchs.missing} == {case.name for case in CASES if case.sink or case.softcap}
    eager = found(
        eager_attention_forward, style="transformers", without=["softcap"], cases=[c for c in CASES if c.sink]
    )
    assert eager.ok, str(eager)
    sdpa = found(sdpa_attention_forward, style="transformers", gradients=False)
    named = {row.case: row for row in sdpa.rows}
    assert named["sink"].note == "drops the sink"
    assert named["softcap"].outcome in ("raised", "differs")
    assert not [row for row in sdpa.wrong if "sink" not in row.case and "softcap" not in row.case]


def ours(query, key, value, *, scaling, causal, window=None, sink=None):
    """Our own operations, on their fast paths."""
    mask = (zoo.Causal() if causal else zoo.Full()) & (zoo.Full() if window is None else zoo.Window(window))
    spec = zoo.AttentionSpec(mask=mask, slots=() if sink is None else (zoo.LogitSlot(),))
    parameters = None if sink is None else {"slot_modules.0.logit": sink}
    return zoo.attend(query, key, value, spec, parameters, scaling=scaling, path="fast").output


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_our_own_fast_paths_agree(dtype):
    result = found(ours, dtypes=[dtype], without=["empty"])  # which are refused: queries are the last of the keys
    assert result.ok, str(result)


def test_it_is_printed_as_text_and_html(capsys):
    result = zoo.parity(functools.partial(dense, wrong="drop"), cases=FEW)
    assert "differs" in capsys.readouterr().out
    assert "4 agrees, 2 differs" in result.summary
    assert "drops the sink" in str(result)
    page = result._repr_html_()
    assert page.count("<tr") == 1 + len(FEW)
    assert "drops the sink" in page


def test_what_a_function_raises_is_text_in_a_notebook():
    def broken(*args, **options):
        raise ValueError("<script>alert(1)</script>")

    page = zoo.parity(broken, cases=FEW)._repr_html_()
    assert "&lt;script&gt;" in page
    assert "<script>" not in page


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"style": "sdpaa"}, "did you mean 'sdpa'"),
        ({"without": ["sinks"]}, "did you mean 'sink'"),
        ({"lse": "all"}, "unknown lse 'all'"),
        ({"cases": []}, "nothing to compare"),
        ({"dtypes": []}, "nothing to compare"),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(InputError, match=words):
        zoo.parity(dense, **options)


def test_a_comparison_of_nothing_is_not_ok():
    result = found(dense, without=["sink"], cases=[Case("sink", sink="beside")])
    assert not result.ok
    with pytest.raises(zoo.Disagreement, match="no case was compared"):
        result.check()

"""Equal keys are equal runs."""

from __future__ import annotations

from dataclasses import replace

from sinkscope.experiments import Variation, keys


def test_one_run_has_one_key_and_its_seeds_share_it(small):
    question = small()
    one, two = keys(question, "nano").values()
    assert one != two
    same = replace(
        question, variations=(Variation("uno", {"attention": "softmax"}), Variation("due", {"eval_every": 7}))
    )
    assert list(keys(same, "nano").values()) == [one, one]
    assert keys(small("wider", {"attention": "k_bias"}), "nano")["one"] == one


def test_other_text_and_other_steps_are_other_runs(small):
    question = small()
    other = replace(
        question,
        variations=tuple(
            Variation(f"{n}", c)
            for n, c in enumerate(({}, {"data.train_share": 0.5}, {"steps": 13}, {"data.bos": "none"}))
        ),
    )
    found = keys(other, "nano")
    assert len(set(found.values())) == 4
    assert keys(replace(other, not_at={"nano": "no"}), "nano") == {}

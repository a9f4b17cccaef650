"""`sinkscope lm-eval`: lm-eval's own command line, with the model `sinkscope` registered."""

from __future__ import annotations

import sys
from typing import Any

import typer


def lm_eval(context: typer.Context) -> None:
    """Run lm-eval with the model sinkscope: any model, with an operation attached and through a cache policy.

    All further options are lm-eval's: --model sinkscope --model_args pretrained=nano,attach=softmax_off_by_one,
    cache=snapkv,budget=64 --tasks NAME. Without a cache lm-eval scores in one dense pass, on which no policy acts.
    """
    from sinkscope.trials.harness import register

    register()
    from lm_eval.__main__ import cli_evaluate

    before: list[Any] = sys.argv
    sys.argv = ["lm_eval", *context.args]
    try:
        cli_evaluate()
    finally:
        sys.argv = before

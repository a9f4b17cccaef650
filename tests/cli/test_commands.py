"""What all commands have in common, however they are added."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel
from typer.core import TyperOption

from sinkscope.cli import cache, calibrate, experiment, generate, intervene, measure, options, quantize, train
from sinkscope.cli.app import _command
from sinkscope.cli.command import Command, When, with_options
from sinkscope.errors import InputError


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        yield from (
            commands(command, (*path, name)) if hasattr(command, "commands") else [(" ".join((*path, name)), command)]
        )


TRIALS = (
    ("intervene", "--what", "hide-sink"),
    ("cache", "--policy", "snapkv", "--budget", "50%"),
    ("quantize", "--scheme", "kv4-kivi"),
)
ALL = {name: command for name, command in commands(_command()) if not command.hidden}
FIRST = 15  # options in the first panel of help, at most


def single_valued(command: Any) -> list[TyperOption]:
    options = [param for param in command.params if isinstance(param, TyperOption)]
    return [param for param in options if not (param.multiple or param.is_flag or param.count)]


@pytest.mark.parametrize("name", ALL)
def test_every_command_is_of_the_one_class(name: str):
    assert isinstance(ALL[name], Command)


@pytest.mark.parametrize("name", [name for name in ALL if single_valued(ALL[name])])
def test_an_option_of_one_value_is_refused_twice(name: str):
    for param in single_valued(ALL[name]):
        option = param.opts[-1]
        with pytest.raises(InputError, match=f"^{param.opts[0]} is given 2 times and takes one value$"):
            ALL[name].make_context(name, [option, "1", option, "2"])


def test_options_of_many_values_may_be_repeated(sinkscope, tmp_path: Path):
    assert "given 2 times" not in sinkscope("train", tmp_path / "no", "--set", "a=1", "--set", "b=2").error


@pytest.mark.parametrize("name", ALL)
def test_help_shows_few_options_first(name: str):
    command = ALL[name]
    context = command.context_class(command, info_name=name)
    shown = [param for param in command.get_params(context) if not getattr(param, "hidden", False)]
    panels = [param.rich_help_panel for param in shown if isinstance(param, TyperOption)]
    assert panels.count(None) <= FIRST
    assert set(panels) <= {None, "Advanced"}


BEFORE_TORCH = (
    (("measure", "./absent"), "no such folder: './absent'"),
    (("measure", "nano", "./absent"), "no such folder: './absent'"),
    (("generate", "absent.gguf"), "no such file: 'absent.gguf'"),
    (("cache", "a/b/c"), "no such folder: 'a/b/c'"),
    (("train", "absent.yaml"), "cannot read recipe absent.yaml: No such file"),
    (("measure", "absent.yaml"), "cannot read survey absent.yaml: No such file"),
    (("measure", "wrong.yaml"), "unknown survey field 'modells': did you mean 'models'?"),
    (("measure", "nano", "--text", "absent.txt"), "cannot read absent.txt: no such file or folder"),
)


def test_wrong_paths_and_files_are_refused_before_torch_is_imported(tmp_path: Path):
    (tmp_path / "wrong.yaml").write_text("modells: [nano]\n")
    code = (
        "import sys; from sinkscope.cli import main\n"
        f"for arguments in {[list(arguments) for arguments, _ in BEFORE_TORCH]!r}:\n"
        "    main(arguments)\n"
        "    print('torch' in sys.modules, '|', file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300, cwd=tmp_path
    )
    *answers, _ = done.stderr.split("|\n")
    for answer, (arguments, message) in zip(answers, BEFORE_TORCH, strict=True):
        assert message in answer, arguments
        assert answer.endswith("False "), arguments


def test_a_gguf_file_that_is_none_is_refused_before_torch_is_imported(sinkscope, tmp_path: Path):
    (tmp_path / "a.gguf").write_bytes(b"PK")
    assert "is not a GGUF file" in sinkscope("measure", tmp_path / "a.gguf").error


READ_BY_EVERY_RUN = {
    *("allow_extra_args", "as_json", "budget", "chat", "choose_on", "compare", "complete", "config", "controls"),
    *(
        "dtypes",
        "endless",
        "epsilon",
        "every",
        "exhaustive",
        "figure",
        "figure",
        "full",
        "gradients",
        "hazards",
        "help",
        "hours",
    ),
    *("checkpoints", "inputs", "lse", "max_tokens", "method", "name", "objective", "observers", "only_plan", "out"),
    *("overrides", "plan_only", "policy", "position", "protect", "quick", "recent", "results", "resume", "reuse"),
    *("rounds", "save", "scale", "scheme", "scored", "seeds", "spare", "stream", "style", "task", "temperature"),
    *("tolerance", "values", "what", "when", "windows", "without", "workers", "backend", "cache", "prompt", "device"),
    *("compiled", "against", "count", "engine", "fail_on", "only", "skipped", "submit"),
    *("text", "dtype", "revision", "trust_remote_code", "device_map", "attn", "samples", "tokens"),
}
"""Names of options that, in some command, every run reads. A new option is named here, or says when it is read."""

UNREAD: list[tuple[When, dict[str, list[str]]]] = [
    (options.READS_TEXT, {"": ["nano", "--images", "."]}),
    (options.READS_WORDS, {"": ["nano", "--input", "random"]}),
    (options.READS_NATURAL, {"": ["nano", "--input", "random"]}),
    (options.READS_CORPUS, {"": ["nano", "--text", "."]}),
    (options.HAS_SPLITS, {"": ["nano", "--corpus", "prose"]}),
    (options.READS_ROWS, {"": ["nano"]}),
    (options.READS_MEDIA, {"": ["nano"]}),
    (options.DRAWS, {"measure": ["nano", "--images", "."]}),
    (options.MEASURES, {"measure": ["a.nc", "b.nc"]}),
    (
        options.PRINTS,
        {
            "": ["nano", "--json"],
            "experiment verdict": ["--all", "--json"],
            "quantize": ["nano", "--scheme", "w8", "--json"],
        },
    ),
    (options.ON_THE_HUB, {"": ["nano"]}),
    (measure.ONE_RUN, {"": ["nano", "--text", "."]}),
    (measure.ONE_MODEL, {"": ["nano", "nano-recall"]}),
    (measure.MANY_MODELS, {"": ["nano"]}),
    (cache.PROTECTS, {"": ["nano", "--protect", "none"]}),
    (cache.READS_TEXT, {"": ["nano-recall"]}),
    (calibrate.HAS_POSITION, {"": ["nano", "--method", "act"]}),
    (calibrate.CHOOSES_HEADS, {"": ["nano", "--method", "var"]}),
    (generate.STREAMS, {"": ["nano"]}),
    (generate.SAMPLES, {"": ["nano", "--temperature", "0"]}),
    (generate.ROUNDS, {"": ["nano"]}),
    (intervene.ON_ARMS, {"": ["nano", "--what", "zero-massive"]}),
    (intervene.ON_HEADS, {"": ["nano", "--what", "zero-massive"]}),
    (intervene.ON_LAYERS, {"": ["nano", "--what", "zero-massive"]}),
    (intervene.ON_OTHERS, {"": ["nano"]}),
    (intervene.ON_TWO, {"": ["nano", "--what", "zero-massive"]}),
    (intervene.ON_BANDS, {"": ["nano", "--what", "zero-massive"]}),
    (quantize.RUNS_TRIAL, {"": ["nano", "--hazards"]}),
    (quantize.ROUNDS_CACHES, {"": ["nano", "--scheme", "w8"]}),
    (quantize.ROUNDS_MAPS, {"": ["nano", "--scheme", "kv4-head"]}),
    (quantize.CALIBRATES, {"": ["nano", "--scheme", "w8"]}),
    (quantize.ONE_SCHEME, {"": ["nano", "--scheme", "w8,w4"]}),
    (quantize.PROTECTS, {"": ["nano", "--scheme", "w8a8-tensor", "--protect", "none"]}),
    (train.SEVERAL_PROCESSES, {"": ["nano"]}),
    (experiment.TRAINS, {"": ["fixed-token", "--backend", "none"]}),
    (experiment.JUDGES_ALL, {"": ["fixed-token"]}),
]
"""Of each condition, command lines that do not meet it."""


def with_value(param: TyperOption) -> list[str]:
    """The option as it is typed, with a value that it takes."""
    if param.is_flag:
        return [param.opts[0]]
    kind = str(param.type_descriptor.annotation)
    choices = re.findall(r"'(.*?)'", kind) if "Literal" in kind else []
    value = next((value for part, value in (("int", "2"), ("float", "0.5"), ("Path", ".")) if part in kind), "1.1")
    value = choices[0] if choices else value
    return [param.opts[0], {"parallel": "ddp", "rescue": "90"}.get(str(param.name), value)]


@pytest.mark.parametrize("name", ALL)
def test_every_option_says_when_it_is_read_or_always_is(name: str):
    options = {param.name for param in ALL[name].params if isinstance(param, TyperOption)}
    assert options - READ_BY_EVERY_RUN - {*ALL[name].conditions} == set()


def line_without(name: str, when: When) -> list[str] | None:
    """Arguments with which the command does not meet a condition; None where it always does."""
    lines = next(lines for condition, lines in UNREAD if condition is when)
    line = lines.get(name, lines.get(""))
    known = {option for param in ALL[name].params for option in param.opts}
    if line is None or not {word for word in line if word.startswith("--")} <= known:
        return None
    required = {"calibrate": ["--method", "act"]}.get(name, [])
    return line if "--method" in line else [*line, *required]


REFUSED = [
    pytest.param(name, option, when, line, id=f"{name} {option} {' '.join(when.why.split()[:4])}")
    for name, command in ALL.items()
    for option, conditions in command.conditions.items()
    for when in conditions
    if (line := line_without(name, when)) is not None
]


@pytest.mark.parametrize("command", TRIALS, ids=[command[0] for command in TRIALS])
def test_texts_that_do_not_fit_the_model_are_refused_before_anything_is_timed(
    sinkscope, model, text, tmp_path, command
):
    """A model without room for the tokens that its chat template adds, and one with a table of 8 positions."""
    chatty, short = tmp_path / "chatty", tmp_path / "short"
    for folder in (chatty, short):
        shutil.copytree(model, folder)
    tokenizer = AutoTokenizer.from_pretrained(model)
    size = len(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|turn|>"]})
    tokenizer.chat_template = "<|turn|>{{ messages[0].content }}"
    tokenizer.save_pretrained(chatty)
    GPT2LMHeadModel(GPT2Config(vocab_size=size, n_embd=8, n_layer=1, n_head=1, n_positions=8)).save_pretrained(short)
    read = ("--text", text, "--tokens", 16, "--samples", 4)
    answer = sinkscope(command[0], chatty, *command[1:], *read)
    assert (
        f"token id {size} (sample 0, position 0) is outside the vocabulary of {size} tokens; --raw-text" in answer.error
    )
    answer = sinkscope(command[0], short, *command[1:], *read)
    assert "16 tokens, but the model has positions for 8: use at most 8" in answer.error


@pytest.mark.parametrize(("name", "option", "when", "line"), REFUSED)
def test_an_option_that_a_run_does_not_read_is_refused(
    name: str, option: str, when: When, line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for saved in (word for word in line if word.endswith(".nc")):
        (tmp_path / saved).touch()
    param = next(param for param in ALL[name].params if param.name == option)
    context = ALL[name].make_context(name, [*line, *with_value(param)])
    with pytest.raises(InputError) as refused:
        ALL[name].invoke(context)
    assert not when.holds(context.params)
    unmet = [each for each in ALL[name].conditions[option] if not each.holds(context.params)]
    assert str(refused.value) == f"{param.opts[0]} {unmet[0].why.format_map(context.params)}"


def test_a_refused_option_is_called_what_it_was_called():
    context = ALL["measure"].make_context("measure", ["nano", "--input", "random", "--raw-text"])
    with pytest.raises(InputError, match=r"^--raw-text goes with natural input"):
        ALL["measure"].invoke(context)


def test_an_option_may_stand_at_its_default_where_it_is_not_read(sinkscope, tmp_path: Path):
    command = ALL["generate"]
    context = command.make_context("generate", ["absent/absent/absent"])
    with pytest.raises(InputError, match="no such folder"):
        command.invoke(context)


def test_a_group_of_options_is_expanded_with_the_defaults_of_its_default_value():
    called = []

    def command(before: int = 1, inputs: options.InputOptions = options.InputOptions(tokens=128)) -> None:  # noqa: B008
        called.append((before, inputs))

    expanded = with_options(command)
    parameters = inspect.signature(expanded).parameters
    assert next(iter(parameters)) == "before"
    assert parameters["tokens"].default == 128
    values = {name: each.default for name, each in parameters.items()}
    expanded(**values | {"samples": 7})
    assert called == [(1, options.InputOptions(tokens=128, samples=7))]
    with pytest.raises(InputError, match="exclude each other"):
        expanded(**values | {"images": Path("a"), "audio": Path("b")})

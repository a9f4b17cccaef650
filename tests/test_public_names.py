"""What `import sinkscope` offers, and what it costs."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import LlamaForCausalLM

import sinkscope as ss


def python(code: str) -> str:
    """What a fresh interpreter prints; its errors are ours."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def every_module() -> list[ModuleType]:
    names = [module.name for module in pkgutil.walk_packages(ss.__path__, "sinkscope.")]
    if find_spec("triton") is None:
        names = [name for name in names if not name.startswith("sinkscope.attention.kernels.")]
    return [importlib.import_module(name) for name in names if not name.endswith("__main__")]


def test_importing_the_package_imports_nothing_heavy() -> None:
    loaded = python("import sys, sinkscope; print(*sys.modules)").split()
    assert {name for name in loaded if name.startswith("sinkscope")} == {"sinkscope"}
    assert {"torch", "transformers", "numpy", "pydantic"}.isdisjoint(loaded)


def test_every_name_is_listed() -> None:
    assert dir(ss) == sorted(ss.__all__)
    assert {"measure", "observe", "compare", "load", "train", "SinkCallback", "attention"} <= set(dir(ss))


def test_no_module_stands_in_the_way_of_a_name() -> None:
    functions = {name for name in ss.__all__ if not inspect.ismodule(getattr(ss, name))}
    assert functions.isdisjoint(module.name for module in pkgutil.iter_modules(ss.__path__))
    for room in every_module():
        modules = {name for name in getattr(room, "__all__", ()) if inspect.ismodule(getattr(room, name))}
        assert room is ss or modules == set(), room.__name__


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(ss.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {name.asname: f"{line.module}.{name.name}" for line in block.body for name in line.names}
    homes = {name: f"{home}.{name}" for name, home in ss._HOME.items()}
    assert seen == {name: f"sinkscope.{name}" for name in ss._ROOMS} | homes


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'sinkscope' has no attribute 'mesure'") as raised:
        ss.mesure  # noqa: B018
    assert (raised.value.name, raised.value.obj) == ("mesure", ss)


def refuses(call: Callable[[], object]) -> None:
    with pytest.raises(ss.InputError, match="nanno"):
        call()


def test_every_name_can_be_called_after_every_module_was_imported(tiny_llama: LlamaForCausalLM) -> None:
    every_module()
    tokens = torch.randint(0, 101, (3, 12))
    observers = [ss.HiddenNorms(), ss.QueryKeyValueNorms(), ss.QueryKeyAngles(), ss.SlotReceived()]
    with ss.observe(tiny_llama, ss.AttentionReceived(positions="first:2"), *observers[:2]) as seen:
        tiny_llama(tokens)
    assert isinstance(seen.measurement(), ss.Measurement)
    measured = ss.measure(tiny_llama, tokens)
    assert 0 <= measured.sink_rate(epsilon=0.3, position=0) <= 100
    ss.compare(measured, measured)
    refuses(lambda: ss.load("nanno"))
    refuses(lambda: ss.train("nanno"))
    assert issubclass(ss.InputError, ValueError)


@pytest.mark.parametrize(
    ("room", "old", "name"),
    [
        ("attention", "Tokens", "TokenAxis"),
        ("attention", "Prefix", "VisiblePrefix"),
        ("data", "Document", "TextDocument"),
        ("data", "Reading", "InputReading"),
        ("measurement", "read", "read_call"),
    ],
)
def test_names_of_before_warn_and_are_the_new_ones(room: str, old: str, name: str) -> None:
    module = importlib.import_module(f"sinkscope.{room}")
    with pytest.warns(DeprecationWarning, match=rf"sinkscope\.{room}\.{old} is sinkscope\.{room}\.{name} now"):
        assert getattr(module, old) is getattr(module, name)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = module.nothing_of_the_kind


def test_effect_is_read_and_no_longer_listed() -> None:
    assert ss.effect is importlib.import_module("sinkscope.trials.changes").effect
    assert "effect" not in dir(ss)


def test_batches_of_before_call_a_function() -> None:
    rows: list[slice] = []
    with pytest.warns(DeprecationWarning, match="FittingBatches"):
        ss.hooks.in_batches(rows.append, 5, 2)
    assert rows == [slice(0, 2), slice(2, 4), slice(4, 5)]


@pytest.mark.parametrize(
    ("old", "name"),
    [("probes", "measure"), ("measuring", "find_tokens"), ("measurements", "Measurement"), ("metrics", "sink_rate")],
)
def test_rooms_of_before_are_read_and_name_the_new_one(old: str, name: str) -> None:
    new = "sinkscope.measurement.metrics" if old == "metrics" else "sinkscope.measurement"
    with pytest.warns(DeprecationWarning, match=f"sinkscope.{old}.{name} is {new}.{name} now"):
        found = getattr(getattr(ss, old), name)
    assert found is getattr(importlib.import_module(new), name)


TESTED_ELSEWHERE = {
    "`spared=`, `spare_sink=`": "tests/interventions/test_controls.py",
    "`quantization.QHitter`": "tests/caches/policies/test_q_hitter.py",
    "`m.report(path)`": "tests/measurement/test_tables_and_figures_out.py",
    "`sinkscope survey`, `sinkscope compare A B`": "tests/cli/test_measure_many.py",
    "`--spare`, `intervene --spare-sink`": "tests/cli/test_generate.py",
    "`cache --windows N`": "tests/cli/test_cache.py",
    "`intervene --what forbid-sink`": "tests/cli/test_intervene.py",
    "`study.nc`, `comparison.nc`, `choice.nc`, `effect.json`": "tests/trials/test_schemes.py",
}
FORMER = {  # by the first name of a row: code with a former name, and with the new one
    "sinkscope.probes": {
        "ss.probes.measure": "ss.measure",
        "ss.measuring.find_tokens": "ss.find_tokens",
        "ss.measurements.Measurement": "ss.Measurement",
    },
    "sinkscope.metrics": {"ss.metrics.sink_rate": "ss.measurement.metrics.sink_rate"},
    "sinkscope.metrics.lift": {
        "ss.metrics.lift": "ss.measurement.metrics.step",
        "ss.metrics.boost": "ss.measurement.metrics.lift",
    },
    "sinkscope.ranks": {
        "ss.ranks.ranks": "ss.statistics.ranks.ranks",
        "ss.spectral.spectral_bands": "importlib.import_module('sinkscope.statistics.spectral').spectral_bands",
    },
    "attention.Tokens": {
        "ss.attention.Tokens": "ss.attention.TokenAxis",
        "ss.attention.Prefix": "ss.attention.VisiblePrefix",
    },
    "measurement.read": {"ss.measurement.read": "ss.measurement.read_call"},
    "hooks.in_batches": {"ss.hooks.in_batches(str, 0, 2)": "None"},
    "data.Document": {"ss.data.Document": "ss.data.TextDocument", "ss.data.Reading": "ss.data.InputReading"},
    "ss.effect": {
        "ss.interventions.effect": "ss.trials.changed",
        "ss.interventions.Effect": "ss.trials.Trial",
    },
    "evaluate.compare_caches": {
        "ss.evaluate.compare_caches": "ss.evaluate._compare_caches",
        "ss.evaluate.CacheComparison": "ss.trials.Trial",
    },
    "evaluate.arm": {"ss.evaluate.arm": "ss.evaluate._arm", "ss.evaluate.full": "ss.evaluate._full"},
    "quantization.study": {
        "ss.quantization.study": "ss.trials.scheme_trial",
        "ss.quantization.Study": "ss.trials.Trial",
    },
    "quantization.Columns": {"ss.quantization.Columns": "ss.model.columns.TokenColumns"},
    "quantization.MeasuredSinks": {
        "ss.quantization.MeasuredSinks": "ss.sinks.Measured",
        "ss.quantization.FirstTokens": "ss.sinks.First",
        "ss.quantization.OutlyingTokens()": "ss.sinks.Outliers()",
        "ss.quantization.SpikeTokens": "ss.sinks.Spikes",
    },
    "quantization.Positions((0, 5))": {
        "ss.quantization.Positions((0, 5))": "ss.sinks.Positions(0, 5)",
        "ss.quantization.Tokens((2,))": "ss.sinks.TokenIds(2)",
    },
    "calibration.choose": {
        "ss.calibration.choose": "ss.trials.calibration_trial",
        "ss.calibration.Choice": "ss.trials.StoredChoice",
    },
    "calibration.ACT": {
        **{
            f"ss.calibration.{name}": f"ss.interventions.{name}"
            for name in ("ACT", "Reweigh", "Temperature", "VisualRedistribution", "keep", "release")
        },
        "ss.calibration.save": "ss.interventions.save_calibrated",
    },
    "calibration.Option": {
        **{f"ss.calibration.{name}": f"ss.trials.{name}" for name in ("Option", "Chosen", "zero_tuning")},
        "ss.calibration.search": "ss.trials.choose_heads",
        "ss.calibration.scores": "ss.trials.text_scores",
        "ss.calibration.METHODS": "ss.trials.CALIBRATIONS",
    },
    "SinkSet.of": {
        "ss.caches.SinkSet.of(None)": "ss.sinks.Measured(0.3)",
        "ss.caches.SinkSet.online()": "ss.sinks.Online(0.3)",
        "ss.caches.SinkSet.first(2)": "ss.sinks.First(2)",
        "ss.caches.SinkSet.tokens([2])": "ss.sinks.TokenIds(2)",
    },
    "survey.survey": {
        "ss.survey.survey": "ss.measurement.measure_models",
        "ss.survey.load_spec": "ss.measurement.load_survey",
        **{f"ss.survey.{name}": f"ss.measurement.Survey{name}" for name in ("Entry", "Row", "Progress")},
    },
    "experiments.read": {
        "ss.experiments.read": "ss.experiments.read_findings",
        "ss.experiments.Progress": "ss.experiments.SweepProgress",
    },
}


def renames() -> list[tuple[str, str]]:
    """The rows of the changelog's table of names: old and new."""
    table = (Path(__file__).parents[1] / "CHANGELOG.md").read_text(encoding="utf-8").partition("| old | new |\n")[2]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[1:] if line.startswith("|")]
    return [(old, new) for old, new in rows]


def test_every_former_name_of_the_changelog_works_or_is_said_to_be_gone() -> None:
    kept = [old for old, new in renames() if not new.startswith("gone")]
    tested = [old for old in kept if old in TESTED_ELSEWHERE or old.split("`")[1] in FORMER]
    assert kept == tested
    assert len(kept) == len(FORMER) + len(TESTED_ELSEWHERE)
    assert all((Path(__file__).parents[1] / file).is_file() for file in TESTED_ELSEWHERE.values())


@pytest.mark.parametrize(("old", "new"), [pair for row in FORMER.values() for pair in row.items()])
def test_a_former_name_warns_once_where_it_is_used_and_is_the_new_one(old: str, new: str) -> None:
    names = {"ss": ss, "importlib": importlib}
    for module in ("evaluate", "survey", "calibration", "model.columns"):
        importlib.import_module(f"sinkscope.{module}")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = eval(old, names)
    assert [each.category for each in warned] == [DeprecationWarning]
    assert [each.filename for each in warned] == ["<string>"]
    assert found == eval(new, names)

from __future__ import annotations

from pathlib import Path

import pytest

from sinkscope.attention import CATALOG, ENTRIES, AttentionSpec
from sinkscope.errors import InputError
from sinkscope.training import RECIPES, Recipe, load_recipe

WRONG = {
    "optimizer.lrr=1": "unknown recipe field 'optimizer.lrr': did you mean 'optimizer.lr'?",
    "step=1": "unknown recipe field 'step': did you mean 'steps'?",
    "model.hiden_size=3": "unknown recipe field 'model.hiden_size': did you mean 'model.hidden_size'?",
    "data.corpsu=x": "unknown recipe field 'data.corpsu': did you mean 'data.corpus'?",
    "schedule.min_lr=1": "unknown recipe field 'schedule.min_lr': choose from schedule.kind, schedule.warmup",
    "schedule.kind=cosin": "unknown recipe field 'schedule.kind' 'cosin': did you mean 'cosine'?",
    "optimizer.name=adanw": "unknown recipe field 'optimizer.name' 'adanw': did you mean 'adamw'?",
    "attention=sigmod": "unknown attention operation 'sigmod': did you mean 'sigmoid'?",
    "attention.alpha=0.2": "attention operation 'softmax' has no options, got 'alpha'",
    "attention={name: softmax_scaled, alpah: 1}": "unknown option of 'softmax_scaled' 'alpah': did you mean 'alpha'?",
    "attention={name: softmax_scaled, alpha: 0}": (
        "attention operation 'softmax_scaled': scaled_softmax field 'alpha' = 0: input should be greater than 0"
    ),
    "attention={name: k_bias_lowrank, d_a: 33}": "d_a = 33: expected at most the head width, 32",
    "attention={normaliser: {kind: sigmoid}}": "unknown attention field 'normaliser': did you mean 'normalizer'?",
    "attention={normalizer: {kind: sigmod}}": (
        "unknown attention field 'normalizer.kind' 'sigmod': did you mean 'sigmoid'?"
    ),
    "attention=3": "attention = 3: expected a name such as 'sigmoid', its options, or a spec's dict",
    "data.corpus=pyton": "unknown corpus 'pyton': did you mean 'python'?",
    "optimizer.lr=fast": "recipe field 'optimizer.lr' = 'fast': input should be a valid number, "
    "unable to parse string as a number",
    "optimizer.lr=-1": "recipe field 'optimizer.lr' = -1: input should be greater than 0",
    "optimizer.lr=.nan": "recipe field 'optimizer.lr' = nan: input should be a finite number",
    "optimizer.betas=[0.9, 1.0]": "recipe field 'optimizer.betas.1' = 1.0: input should be less than 1",
    "steps=0": "recipe field 'steps' = 0: input should be greater than 0",
    "steps.more=1": "override 'steps.more=1': 'steps' is a value and has no fields",
    "name=../up": "recipe field 'name' = '../up': string should match pattern '^[A-Za-z0-9][A-Za-z0-9._-]*$'",
    "model.hidden_size=wide": "LabConfig.hidden_size = 'wide': expected an integer of at least 1",
    "model.bos_token_id=1": "recipe field 'model.bos_token_id' is set by the tokenizer: leave it out",
    "micro_batch=5": "recipe field 'micro_batch' = 5 does not divide batch_size = 32",
    "optimizer.lr": "override 'optimizer.lr': expected field=value, such as optimizer.lr=1e-3",
    "data.interventions=[{kind: fixed_token, positon: 0}]": "unknown recipe field 'data.interventions.0.positon': "
    "did you mean 'data.interventions.0.position'?",
}


def written(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_name_and_overrides() -> None:
    recipe = load_recipe("nano", ["attention=sigmoid", "optimizer.lr=1e-3", "model.rms_norm_eps=1e-6", "steps=1e3"])
    assert recipe.optimizer.lr == 1e-3
    assert recipe.steps == 1000
    assert recipe.model["rms_norm_eps"] == 1e-6
    assert recipe.folder({}).startswith("nano-sigmoid-")
    assert load_recipe("nano") == RECIPES["nano"]


@pytest.mark.parametrize(("override", "message"), WRONG.items(), ids=WRONG)
def test_what_is_wrong_is_said_in_one_line(override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe("nano", [override])
    assert str(caught.value) == message


SCALED = CATALOG["softmax_scaled"], ENTRIES["softmax_scaled"].make(alpha=0.2)


@pytest.mark.parametrize(
    ("overrides", "spec"),
    [
        (["attention=softmax_scaled"], SCALED[0]),
        (["attention=softmax_scaled", "attention.alpha=0.2"], SCALED[1]),
        (["attention.alpha=2e-1", "attention.name=softmax_scaled"], SCALED[1]),
        (["attention={name: softmax_scaled, alpha: 0.2}"], SCALED[1]),
        (["attention={normalizer: {kind: scaled_softmax, alpha: 0.2}}"], SCALED[1]),
    ],
)
def test_an_operation_and_its_options(overrides: list[str], spec: AttentionSpec) -> None:
    assert load_recipe("nano", overrides).attention == spec


def test_an_operation_with_options_from_yaml(tmp_path: Path) -> None:
    path = written(tmp_path, "base: nano\nname: nano\nattention: {name: softmax_scaled, alpha: 0.2}")
    assert load_recipe(path).attention == SCALED[1]
    assert load_recipe(path, ["attention.alpha=0.1"]).attention == SCALED[0]


def test_python_is_told_the_same() -> None:
    with pytest.raises(InputError, match=r"unknown recipe field 'optimizer\.lrr': did you mean 'optimizer.lr'"):
        Recipe(name="own", steps=1, batch_size=1, context=4, optimizer={"lrr": 1e-3})


def test_a_whole_recipe_from_yaml(tmp_path: Path) -> None:
    path = written(
        tmp_path, "steps: 10\nbatch_size: 2\ncontext: 8\noptimizer: {lr: 1e-3}\nschedule: {kind: cosine, min_lr: 1e-5}"
    )
    recipe = load_recipe(path)
    assert (recipe.name, recipe.optimizer.lr, recipe.schedule.min_lr) == ("mine", 1e-3, 1e-5)  # type: ignore[union-attr]


def test_a_file_may_start_from_a_named_recipe(tmp_path: Path) -> None:
    path = written(tmp_path, "base: nano\nname: nano\noptimizer: {lr: 0.001}\nmodel: {num_hidden_layers: 2}")
    assert load_recipe(path) == load_recipe("nano", ["optimizer.lr=1e-3", "model.num_hidden_layers=2"])


def test_a_stored_recipe_is_a_recipe_file(tmp_path: Path) -> None:
    from sinkscope.files import write_json

    write_json(tmp_path / "recipe.json", RECIPES["60m"].model_dump(mode="json"))
    assert load_recipe(tmp_path / "recipe.json") == RECIPES["60m"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps: [", "is not YAML"),
        ("- steps", "holds list, expected fields and values"),
        ("steps: 3", "recipe field 'batch_size' is missing"),
        ("base: nanno", "unknown recipe 'base' in .*mine.yaml 'nanno': did you mean 'nano'"),
        ("base: nano\nspeed: 3", "unknown recipe field 'speed'"),
        ("base: nano\nrun: !!python/object/apply:os.system ['true']", "is not YAML"),
    ],
)
def test_a_wrong_file_is_said_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_recipe(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_an_absent_recipe(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown recipe 'nanno': did you mean 'nano'"):
        load_recipe("nanno")
    with pytest.raises(InputError, match=r"cannot read recipe .*absent.yaml: No such file"):
        load_recipe(tmp_path / "absent.yaml")
    (tmp_path / "image.yaml").write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(InputError, match="is not text"):
        load_recipe(tmp_path / "image.yaml")


def test_fields_of_data_may_stand_alone():
    """`measure` calls it --corpus."""
    recipe = load_recipe("nano", ["corpus=text:*.md"])
    assert recipe.data.corpus == "text:*.md"
    assert recipe == load_recipe("nano", ["data.corpus=text:*.md"])

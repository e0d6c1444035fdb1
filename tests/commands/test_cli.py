"""The command line: arguments, precedence of settings, recipes, and one line with exit code 2 for bad input."""

from __future__ import annotations

import dataclasses
import importlib
import io
import sys

import pytest

from linformer_cli.cli import main
from linformer_cli.errors import InputError
from linformer_cli.parser import RECIPES, parse
from linformer_cli.settings.declare import COMMANDS, TITLES, settings_of
from linformer_kit import LinformerConfig
from tests.conftest import fail

NAMES = ["my model, v2", "2024", "true", "1e3", "a: b", "{0}", "[", 'a"b\\n', "é😀\x07", "a#b", "C:\\x", "null", ""]


def test_recipe_then_config_then_command_line(tmp_path):
    recipe, config = tmp_path / "recipe.yaml", tmp_path / "config.yaml"
    recipe.write_text(RECIPES["tiny"].read_text() + "seed: 3\nweight_decay: 0.3\nmax_grad_norm: 0.3\n")
    config.write_text("weight_decay: 0.5\nmax_grad_norm: 0.5\nmodel:\n  hidden_size: 64\n")
    arguments = ["--recipe", str(recipe), "--config", str(config), "--max_grad_norm", "0.7"]
    settings = parse(["pretrain", *arguments])[1]
    assert (settings.seed, settings.weight_decay, settings.max_grad_norm) == (3, 0.5, 0.7)
    assert (settings.model.hidden_size, settings.model.projected_dim) == (64, 32)


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--learning-rate", "3e-4"], "learning_rate", 3e-4),
        (["--torch_compile", "--seed", "1"], "torch_compile", True),
        (["--resume", "yes"], "resume", True),
        (["--resume", "0"], "resume", False),
        (["--dtype", "bfloat16"], "dtype", "bfloat16"),
        (["--train-file", "a.txt", "b c.txt", "--seed", "1"], "train_file", ["a.txt", "b c.txt"]),
        (["--train_file=a.txt", "--train_file=b.txt"], "train_file", ["b.txt"]),
        (["--train_file="], "train_file", [""]),  # not none, for which other text would be taken
        (["--train_file", "null"], "train_file", None),
        *((["--train_file", name], "train_file", [name]) for name in NAMES[:5]),
        (["--train_file", *NAMES], "train_file", NAMES),
        (["--train_file=[a, 'b, c']"], "train_file", ["a", "b, c"]),
        (["--lengths", "8", "16"], "lengths", [8, 16]),
        (["--lengths=[8, 16]"], "lengths", [8, 16]),
        (["--lengths=8", "--lengths", "8", "16"], "lengths", [8, 16]),
    ],
)  # fmt: skip
def test_spellings(arguments, name, value):
    """Names in a list stay as they are."""
    assert getattr(parse(["bench" if name == "lengths" else "pretrain", *arguments])[1], name) == value


_TWO = ["a.csv", "b.csv"]


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (["MODEL", *_TWO, "--out", "OUT"], _TWO),
        (["--out", "OUT", "MODEL", *_TWO], _TWO),
        (["MODEL", "a.csv", "--out", "OUT", "b.csv"], _TWO),
        (["--model", "MODEL", *_TWO, "--out=OUT"], _TWO),
        ([*_TWO, "--out", "OUT", "--model=MODEL"], _TWO),
        (["MODEL", "--file", *_TWO, "--out", "OUT", "--resume", "no"], _TWO),
        (["MODEL", "a.csv"], ["a.csv"]),
        (["MODEL", "--batch_size", "3", *_TWO], _TWO),
        (["MODEL", "--validation_file", "a.csv"], ["a.csv"]),
        (["MODEL", "--dataset_name", "name"], None),
    ],
)
def test_arguments_by_place_or_name_and_several_files(words, files):
    if not any(word.startswith("--out") for word in words):
        settings = parse(["evaluate", *words])[1]
        assert (settings.model, settings.validation_file) == ("MODEL", files)
        return
    settings = parse(["predict", *words])[1]
    assert (settings.model, settings.file, settings.out) == ("MODEL", files, "OUT")
    embed = parse(["embed", *(word.replace("OUT", "OUT.npy") for word in words)])[1]
    assert (embed.model, embed.file, embed.out) == ("MODEL", files, "OUT.npy")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "MODEL", "a.csv", "--out", "OLD"], "out: expected a new file, got OLD; --resume continues it"),
        (["embed", "MODEL", "a.csv", "--out", "OLD.npy"], "out: expected a new file, got OLD.npy.part; --resume"),
        (["evaluate", "MODEL", "a.csv", "--output_dir", "FULL"], "output_dir: expected a new or empty folder, got FULL"),
        (["export", "MODEL", "FULL"], "out: expected a new or empty folder, got FULL, which is not empty"),
        (["distill", "MODEL", "--output_dir", "FULL"], "output_dir: expected a new or empty folder, got FULL, which holds a run; --resume continues it"),
    ],
)  # fmt: skip
def test_an_output_that_exists_is_an_error_before_a_library_is_imported(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib, "import_module", None)
    (tmp_path / "FULL").mkdir()
    for name in ("OLD", "OLD.npy.part", "FULL/run.json"):
        (tmp_path / name).touch()
    assert fail(capsys, *words).startswith(f"linformer: error: {message}")
    if words[0] in ("predict", "embed", "distill"):
        with pytest.raises(TypeError):  # of the import
            main([*words, "--resume"])


def test_paths_may_begin_at_the_home_folder(monkeypatch, tmp_path):
    """Which no shell makes of --output_dir=~/run, or of a file of settings."""
    monkeypatch.setenv("HOME", "/home/someone")
    (tmp_path / "settings.yaml").write_text("output_dir: ~/run\nmodel.hidden_act: ~/gelu\n")
    arguments = ["--train_file=~/a.txt", "--from_model=~/model", "--config", str(tmp_path / "settings.yaml")]
    settings = parse(["pretrain", *arguments])[1]
    assert (settings.output_dir, settings.train_file) == ("/home/someone/run", ["/home/someone/a.txt"])
    assert (settings.from_model, settings.model.hidden_act) == ("/home/someone/model", "~/gelu")
    assert parse(["linearize", "~/a", "~/b"])[1].out == "/home/someone/b"
    assert parse(["linearize", "a", "b", "--adapter=~/c"])[1].adapter == "/home/someone/c"
    assert parse(["fill-mask", "~/a", "~/text"])[1].text == "~/text"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pretrain", "--learning_rate", "fast"], "learning_rate: expected a valid number, got fast"),
        (["pretrain", "--model.projected_dim", "few"], "model.projected_dim: expected a valid integer or a valid list, got few"),
        (["pretrain", "--max_step", "3"], "unrecognized arguments: --max_step 3 (did you mean --max_steps?)"),
        (["pretrain", "--learning_rate"], "argument --learning_rate: expected one argument"),
        (["pretrain", "--recipe", "huge"], "recipe: expected one of"),
        (["pretrain", "--config", "none.yaml"], "none.yaml: No such file or directory"),
        (["pretrain", "--model.projected_dim", "600"], "projected_dim: expected 1 to 128 (max_position_embeddings), got 600"),
        (["pretrain", "--fully_shard", "true", "--device", "cpu"], "fully_shard: expected several processes, as torchrun starts them, got one"),
        (["pretrain", "--load_best_model_at_end", "true", "--eval_steps", "3", "--save_steps", "5"], "save_steps: expected 3, as eval_steps, with load_best_model_at_end, got 5"),
        (["fill-mask", "folder"], "text: expected a value, got none"),
        (["finetune"], "model: expected a value, got none"),
        (["pretrain", "--model.hidden-act=relu"], "unrecognized arguments: --model.hidden-act=relu (a setting of --config files only)"),
        (["finetune", "m", "--adam_beta2=0.9"], "unrecognized arguments: --adam_beta2=0.9 (a setting of --config files only)"),
        (["distill", "m", "--ddp_timeout=9"], "unrecognized arguments: --ddp_timeout=9 (a setting of --config files only)"),
        (["distill", "MODEL", "OUT"], "unrecognized arguments: OUT (did you mean --output_dir OUT?)"),
        (["resize", "MODEL", "OUT"], "max_position_embeddings: expected a value, got none"),
        (["predic"], "(did you mean predict?)"),
        (["embed", "MODEL", "a.csv", "--out", "b.npy", "--pieces=maybe"], "pieces: expected true or false, got maybe\n"),
        (["bench", "--lengths", "8", "few"], "lengths: expected a valid integer, got few"),
        (["bench", "--lengths", "[yes, 512]"], "lengths: expected a valid integer, got yes"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in f"{fail(capsys, *arguments)}\n"
    assert list(tmp_path.iterdir()) == []


FLAGS = [
    (name, setting.name)
    for name, command in COMMANDS.items()
    for setting in settings_of(command.settings)
    if bool in setting.kinds and setting.group in TITLES
]


@pytest.mark.parametrize(("command", "flag"), FLAGS)
def test_what_a_flag_does_not_take_is_its_error(command, flag):
    """After `=`; another word behind a flag is none of its values."""
    places = [each for each in settings_of(COMMANDS[command].settings) if each.group == TITLES[0]]
    words = [each.name for each in places if each.name != "out" or command == "export"]
    out = ["--out", "vectors.npy"] if command == "embed" else []
    with pytest.raises(InputError, match=rf"^{flag.replace('.', '[.]')}: expected true or false, got maybe$"):
        parse([command, *words, *out, f"--{flag}=maybe"])
    assert _named(parse([command, f"--{flag}", *words, *out])[1], flag) is True
    several = [each.name for each in places if list in each.kinds]
    if several:
        for more in ("data", "a/b", "*.csv", "texts.csv"):
            settings = parse([command, *words, *out, f"--{flag}", more])[1]
            assert getattr(settings, *several) == [*several, more] and _named(settings, flag) is True


def test_a_flag_that_may_have_no_value_takes_null():
    assert parse(["distill", "MODEL", "--packing", "null"])[1].packing is None
    assert parse(["distill", "MODEL", "--packing", "no"])[1].packing is False


def _named(settings, name):
    for part in name.split("."):
        settings = getattr(settings, part)
    return settings


def test_characters_that_the_terminal_does_not_have_are_escaped(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    with pytest.raises(SystemExit, match="0"):
        main(["pretrain", "--help"])
    assert "\\u221a" in written.getvalue().decode("cp1252")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model:\n  hidden: 3\n", "model.hidden: expected a setting, got an unknown one"),
        ("a: 1\nb: [\n", "bad.yaml: expected YAML, got while parsing a flow node expected the node content"),
        ("a: 1\nb: 2\na: 1\n", "bad.yaml: expected YAML, got a twice in "),
        ("a: &a [1, 2]\nb: [*a, *a]\n", "bad.yaml: expected YAML, got an alias in "),
        ("a: !!timestamp 2001-99-99\n", "bad.yaml: expected YAML, got month must be in 1..12"),
        ("~: 2\n", "bad.yaml: expected YAML of names and values, got {None: '2'}"),
        ("learning_rate: yes\n", "learning_rate: expected a valid number, got yes"),
        ("adam_beta1: off\n", "adam_beta1: expected a valid number, got off"),
        ("seed: !!bool yes\n", "seed: expected a number, got True"),
        ("seed: 1:30\n", "seed: expected a valid integer, got 1:30"),
        ("just text", "bad.yaml: expected YAML of names and values, got 'just text'"),
    ],
)
def test_bad_files_of_settings(content, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text(content)
    assert message in fail(capsys, "pretrain", "--config", "bad.yaml", "--max_steps=0")  # rejected too: nothing trains


def test_a_file_of_settings_means_what_the_command_line_means(tmp_path):
    (tmp_path / "some.yaml").write_text(
        "torch_compile: yes\ndtype: float16\nseed: 010\ntokenizer: no\nsplit_seed: null\n"
        "model: {projected_dim: [[3, 2], [1, 2]], hidden_act: relu, pad_token_id: null}\n"
    )
    settings = parse(["pretrain", "--config", str(tmp_path / "some.yaml")])[1]
    assert (settings.torch_compile, settings.dtype, settings.seed, settings.tokenizer) == (True, "float16", 10, "no")
    assert settings.split_seed is None and settings.model.projected_dim == [[3, 2], [1, 2]]
    assert (settings.model.hidden_act, settings.model.pad_token_id) == ("relu", None)


def test_print_config_names_every_setting(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["pretrain", "--seed", "7", "--print_config"])
    printed = capsys.readouterr().out
    assert "seed: 7\n" in printed and "  layer_norm_eps: 1.0e-05\n" in printed


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_complete(name):
    """It parses, and its architecture can be built."""
    settings = parse(["pretrain", "--recipe", name])[1]
    LinformerConfig(**dataclasses.asdict(settings.model))


@pytest.mark.parametrize(("name", "n", "k"), [("paper-base-512", 512, 128), ("paper-base-1024", 1024, 256)])
def test_the_papers_recipes_are_the_papers(name, n, k):
    settings = parse(["pretrain", "--recipe", name])[1]
    model = settings.model
    assert (model.max_position_embeddings, model.projected_dim, settings.max_steps) == (n, k, 250_000)
    assert (model.num_hidden_layers, model.hidden_size, model.num_attention_heads) == (12, 768, 12)
    sequences = settings.per_device_train_batch_size * settings.gradient_accumulation_steps * 64
    assert sequences == 2048


def test_files_take_settings_that_are_no_options(tmp_path):
    (tmp_path / "adam.yaml").write_text("adam_beta2: 0.5\nddp_timeout: 9\n")
    _, read = parse(["finetune", "m", "--config", str(tmp_path / "adam.yaml")])
    assert (read.adam_beta2, read.ddp_timeout) == (0.5, 9)

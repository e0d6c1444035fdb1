"""The command line: a subcommand, its typed settings, one function call.

Each command is one entry in `COMMANDS`, by its name or by its group's and its own. Nothing heavy is imported before the
settings are parsed and found good.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import logging
import operator
import os
import re
import string
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, NoReturn, get_args, get_origin, get_type_hints

from docstring_parser import parse as docstring
from jsonargparse import ArgumentParser, Namespace

from linformer_kit._version import __version__
from linformer_kit.errors import InputError, OutOfMemoryError, Stopped, error_text, machine_failure, out_of_memory
from linformer_kit.settings import (
    ConvertSettings,
    DistillSettings,
    EvaluateSettings,
    ExportSettings,
    FillMaskSettings,
    FinetuneSettings,
    InspectSettings,
    PredictSettings,
    PretrainSettings,
    SpectrumSettings,
    TheoremsSettings,
    read_yaml,
)
from linformer_kit.settings.bench import (
    CeilingSettings,
    EfficiencySettings,
    EmbeddingsSettings,
    FamiliesSettings,
    LongSettings,
    SystemsSettings,
    Table2Settings,
)
from linformer_kit.settings.study import LearningSettings

_YES_OR_NO = ("true", "false", "yes", "no")
RECIPES = Path(__file__).parent.parent / "recipes"
_COMMON_RECIPE = "_common.yaml"
_BATCHES = ("per_device_train_batch_size", "per_device_eval_batch_size")


class Command(NamedTuple):
    """A subcommand: one line of help, the dataclass of its settings, `module:function`, default recipe, positionals,
    the folder of its recipes below `RECIPES`, and the settings to lower where memory runs out, by names with dots."""

    summary: str
    settings: type
    function: str
    recipe: str | None = None
    positionals: tuple[str, ...] = ()
    recipes: str = ""
    memory: tuple[str, ...] = ()


COMMANDS = {
    "pretrain": Command(
        "Pretrain a masked language model on text",
        PretrainSettings,
        "linformer_kit.training.pretrain:main",
        "tiny",
        memory=(*_BATCHES, "model.max_position_embeddings"),
    ),
    "finetune": Command(
        "Fine-tune an encoder to classify texts (Table 2)",
        FinetuneSettings,
        "linformer_kit.training.finetune:main",
        memory=(*_BATCHES, "max_length"),
    ),
    "evaluate": Command(
        "Measure a classifier on labelled texts",
        EvaluateSettings,
        "linformer_kit.commands.evaluate:main",
        positionals=("model",),
        memory=("batch_size", "max_length"),
    ),
    "predict": Command(
        "Classify the texts of a file",
        PredictSettings,
        "linformer_kit.commands.predict:main",
        positionals=("model", "file"),
        memory=("batch_size", "max_length"),
    ),
    "fill-mask": Command(
        "Guess the <mask> tokens of a text",
        FillMaskSettings,
        "linformer_kit.inference.fill_mask:main",
        positionals=("model", "text"),
    ),
    "convert": Command(
        "Make a Linformer of a RoBERTa, a BERT or a fairseq checkpoint",
        ConvertSettings,
        "linformer_kit.commands.convert:main",
        positionals=("source", "out"),
    ),
    "distill": Command(
        "Make an encoder linear, and teach it what it did before",
        DistillSettings,
        "linformer_kit.training.distill:main",
        positionals=("teacher", "output_dir"),
        memory=(*_BATCHES, "max_position_embeddings"),
    ),
    "export": Command(
        "Make an ONNX file, or int8 weights, of a model, and check them against PyTorch",
        ExportSettings,
        "linformer_kit.export.command:main",
        positionals=("model", "out"),
    ),
    "inspect": Command(
        "Draw which slots the heads of a model attend to, and its E and F",
        InspectSettings,
        "linformer_kit.experiments.inspection:main",
        positionals=("model", "output_dir"),
        memory=("max_tokens",),
    ),
    "spectrum": Command(
        "Show how fast the singular values of a model's attention fall (Fig 1), and choose k by them",
        SpectrumSettings,
        "linformer_kit.experiments.spectrum.figure1:main",
        positionals=("model",),
        memory=("seq_len", "samples"),
    ),
    "theorems": Command(
        "Try Theorems 1 and 2 on random attention and on a model's",
        TheoremsSettings,
        "linformer_kit.experiments.theorems.trials:main",
        memory=("lengths", "samples"),
    ),
    "bench efficiency": Command(
        "Time and memory that Linformers save against Transformers of equal size (Table 3, Fig 2)",
        EfficiencySettings,
        "linformer_kit.experiments.cost.efficiency:main",
        memory=("tokens", "lengths"),
    ),
    "bench ceiling": Command(
        "The machine's limits for these encoders",
        CeilingSettings,
        "linformer_kit.experiments.cost.ceiling:main",
        memory=("tokens", "square", "copy_mib"),
    ),
    "bench systems": Command(
        "Time of a layer of each kind of encoder against the length of the sequence (Table 1)",
        SystemsSettings,
        "linformer_kit.experiments.cost.systems:main",
        memory=("tokens", "lengths"),
    ),
    "bench learning": Command(
        "Which of several encoders learns best: many small trainings from one recipe",
        LearningSettings,
        "linformer_kit.experiments.learning.learn:main",
        "start",
        recipes="learning",
        memory=("processes", "base.per_device_train_batch_size"),
    ),
    "bench table2": Command(
        "Accuracy of several encoders on the paper's four tasks, and what it costs (Table 2)",
        Table2Settings,
        "linformer_kit.experiments.quality.table2:main",
        memory=(*_BATCHES, "max_length"),
    ),
    "bench embeddings": Command(
        "What linear sentence embedders are worth beside their teacher: cosine, tasks, time and memory",
        EmbeddingsSettings,
        "linformer_kit.experiments.quality.embeddings:main",
        memory=("batch_size", "tokens", "lengths"),
    ),
    "bench families": Command(
        "Make encoders of each kind linear, and look whether anything changes with as many slots as tokens",
        FamiliesSettings,
        "linformer_kit.experiments.quality.families:main",
    ),
    "bench long": Command(
        "Encode a million tokens in one pass", LongSettings, "linformer_kit.experiments.cost.long:main", memory=("n",)
    ),
}
# What stands before the second word of a command.
GROUPS = {"bench": "Measure speed and memory on this machine"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; an error is one line on stderr.

    Exit codes: 2 for bad input; 1 for what the machine failed at (memory, disk, a killed process) and for our own
    errors, which are tracebacks; 128 and the number of a signal.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _open_closed_output()
    try:
        _run(arguments)
    except BrokenPipeError:  # the reader stopped, as in `linformer ... | head`
        _discard_output()
        raise SystemExit(141) from None
    except InputError as error:
        _fail(str(error))
    except Stopped as stopped:
        print(f"linformer: {stopped}", file=sys.stderr)
        raise SystemExit(stopped.exit_code) from None
    except KeyboardInterrupt:
        print("linformer: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except OSError as error:
        failure = machine_failure(error)
        if failure is None and error.filename is not None:
            _fail(f"{error.filename}: {error.strerror}")
        place = "" if _flushed() else "standard output: "
        _fail(place + (failure or error.strerror or error_text(error)), code=1)
    except Exception as error:
        failure = machine_failure(error)
        if failure is None:
            raise
        _fail(failure, code=1)


def _run(arguments: Sequence[str]) -> None:
    """Parse and run; all that was printed is written when it returns or exits."""
    try:
        name, settings = parse(arguments)
        module, function = COMMANDS[name].function.split(":")
        run = getattr(importlib.import_module(module), function)
        _set_up_logging()
        try:
            run(settings)
        except Exception as error:
            if not out_of_memory(error):
                raise
            raise OutOfMemoryError(f"{machine_failure(error)}{_advice(COMMANDS[name], settings)}") from error
    except SystemExit:  # after --help
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def _advice(command: Command, settings: Any) -> str:
    """What to do where memory ran out, to stand behind that."""
    values = {name: operator.attrgetter(name)(settings) for name in command.memory}
    told = [name if value is None else f"{name} ({value})" for name, value in values.items()]
    resumable = hasattr(settings, "resume") and (getattr(settings, "output_dir", None) or hasattr(settings, "output"))
    return (f"; lower {' or '.join(told)}" if told else "") + (
        "; --resume goes on from what is saved" if resumable else ""
    )


def parse(arguments: Sequence[str]) -> tuple[str, Any]:
    """Name and settings of the command that the arguments ask for.

    Later wins: what all recipes of the command have in common, the recipe, each --config file, the command line.

    Raises:
        InputError: for anything that the command does not take, in one line.
        SystemExit: for --help, --version and --print_config.
    """
    group = arguments[0] if arguments and arguments[0] in GROUPS else None
    words = arguments[bool(group) : 1 + bool(group)]
    command = COMMANDS.get(" ".join([group, *words] if group else words))
    rest = _normalise(arguments[len(words) + bool(group) :], command.settings) if command else []
    configs = [_read_settings(Path(path)) for path in _values_of("--config", rest)]
    recipes: list[Path] = []
    if command and command.recipe:
        named = [config["recipe"] for config in configs if "recipe" in config]
        folder = RECIPES / command.recipes
        recipe = _recipe_file([command.recipe, *named, *_values_of("--recipe", rest)][-1], folder)
        recipes = [*folder.glob(_COMMON_RECIPE), recipe]
        for path in recipes:
            _read_settings(path)
    parser = _build_parser(group, recipes)
    try:
        namespace = parser.parse_args([*words, *rest])
    except OverflowError as error:
        raise InputError(f"settings: expected numbers that fit, got one that does not ({error})") from None
    if command is None:
        parser.print_help()
        raise SystemExit(0)
    values = namespace[namespace.command]
    values.pop("config", None)
    return " ".join([group, *words] if group else words), _instantiate(command.settings, values)


def _build_parser(group: str | None, recipes: list[Path]) -> ArgumentParser:
    """The parser of the commands of a group, or of all others and the names of the groups."""
    parser = _OneLineParser(
        prog=f"linformer {group}" if group else "linformer",
        description=f"{GROUPS[group]}."
        if group
        else "Linformer: pretrain, use, study and measure encoders with linear-time attention.",
        version=__version__,
        allow_abbrev=False,
    )
    subcommands = parser.add_subcommands(required=False, dest="command")
    for name, command in COMMANDS.items():
        *owner, last = name.split()
        if owner == ([group] if group else []):
            subcommands.add_subcommand(last, _command_parser(command, recipes), help=f"{command.summary}.")
    for name, summary in GROUPS.items() if group is None else ():
        subcommands.add_subcommand(name, _OneLineParser(), help=f"{summary}: `linformer {name}` lists what.")
    return parser


def _command_parser(command: Command, recipes: list[Path]) -> ArgumentParser:
    defaults: list[str | os.PathLike[Any]] = [*recipes] if command.recipe else []
    child = _OneLineParser(description=f"{command.summary}.", default_config_files=defaults)
    child.add_argument("--config", action="config", help="YAML file of settings; may be repeated.")
    if command.recipe:
        child.add_argument(
            "--recipe",
            default=command.recipe,
            help=f"Named recipe ({_recipe_names(RECIPES / command.recipes)}) or YAML file that the rest overrides.",
        )
    help_texts = {
        param.arg_name: param.description
        for kind in reversed(command.settings.__mro__)
        for param in docstring(kind.__doc__ or "").params
    }
    for positional in command.positionals:
        child.add_argument(positional, type=str, help=help_texts[positional])
    child.add_class_arguments(command.settings, None, skip=set(command.positionals))
    return child


class _OneLineParser(ArgumentParser):
    """Wrong usage is an `InputError` with a single line."""

    def error(self, message: str, ex: Exception | None = None) -> None:  # type: ignore[override]
        raise InputError(_readable(" ".join(message.split())))


def _readable(message: str) -> str:
    """The parser's message as: field, what was expected, what was got."""
    message = re.sub(r"^argument --(\w+)/--\w+\+:", r"argument --\1:", message)
    message = re.sub(r'^Parser key "([^"]+)": ', r"\1: ", message)
    message = re.sub(
        r"Does not validate .* Subtypes: \[(.*?)\] Errors: .* Given value: ?(.*)",
        lambda match: f"expected {match[1]}, got {match[2] or 'none'}",
        message,
    )
    message = re.sub(
        r"Expected an? (.*)\. Got value: ?(.*)", lambda match: f"expected {match[1]}, got {match[2] or 'none'}", message
    )
    message = re.sub(r"Unable to load config '(.*?)' - .*", r"expected settings by name, got \1", message)
    message = re.sub(
        r"Subcommand '([^']+)' does not accept option '([^']+)'",
        r"\2: expected a setting of \1, got an unknown one",
        message,
    )
    message = re.sub(r"typing\.Literal\[(.*?)\]", lambda match: "one of " + match[1].replace("'", ""), message)
    return re.sub(r"<class '(\w+)'>", lambda match: match[1].replace("NoneType", "null"), message)


def _normalise(arguments: Sequence[str], settings: type) -> list[str]:
    """Spell arguments as the parser wants them.

    Hyphens in names become underscores, a lone --flag of a yes-or-no field means yes, and a field that takes a list
    takes all that follows it: --train_file a.txt b.txt. Where the field has a default list, it is replaced.
    """
    hints = {f"--{name}": hint for name, hint in get_type_hints(settings).items()}
    queue = deque(arguments)
    normalised: list[str] = []
    while queue:
        argument = queue.popleft()
        if not argument.startswith("--"):
            normalised.append(argument)
            continue
        name, equals, value = argument.partition("=")
        name = "--" + name[2:].replace("-", "_")
        item = _item_of_list(hints.get(name))
        if item is not None:
            values = [value] if equals else []
            while queue and not equals and not queue[0].startswith("--"):
                values.append(queue.popleft())
            replaces = get_origin(hints[name]) is list
            if replaces and values == [""]:
                values = ["[]"]
            elif values and (replaces or len(values) > 1 or _is_text(item)):
                values = [_spelled_list(values, item)]
            normalised.append(f"{name}{'=' if replaces else '+='}{values[0]}" if values else name)
        elif hints.get(name) is bool and not equals and (not queue or queue[0].lower() not in _YES_OR_NO):
            normalised.append(f"{name}=true")
        else:
            normalised.append(f"{name}{equals}{value}")
    return normalised


def _item_of_list(hint: Any) -> Any:
    """The type of the items, where a field takes a list or, beside it, null; None where it takes something else."""
    kinds = [kind for kind in (get_args(hint) if get_origin(hint) is UnionType else [hint]) if kind is not NoneType]
    return get_args(kinds[0])[0] if len(kinds) == 1 and get_origin(kinds[0]) is list else None


def _spelled_list(values: list[str], item: Any) -> str:
    """The list in YAML; text in quotes, so that commas, numbers and the like in names stay what they are."""
    if len(values) == 1 and (values[0] == "null" or (values[0].startswith("[") and values[0].endswith("]"))):
        return values[0]  # null or a list, said as such
    return f"[{', '.join(map(_quoted, values) if _is_text(item) else values)}]"


def _is_text(item: Any) -> bool:
    return item is str or get_origin(item) is Literal


def _quoted(text: str) -> str:
    """The text as YAML has it in double quotes."""
    plain = string.ascii_letters + string.digits + " .,:;/~_-+=*?!()[]{}<>@#%&|$^'`"
    # The parser refuses lone surrogates, which stand for bytes that are not UTF-8, and says so where it sees them.
    escaped = (each if each in plain or "\ud800" <= each <= "\udfff" else f"\\U{ord(each):08x}" for each in text)
    return f'"{"".join(escaped)}"'


def _recipe_file(name: str, recipes: Path) -> Path:
    """The file of a recipe by its name or path."""
    built_in = recipes / f"{name}.yaml"
    path = built_in if built_in.exists() else Path(str(name))
    if not path.is_file():
        raise InputError(f"recipe: expected one of {_recipe_names(recipes)} or a YAML file, got {name!r}")
    return path


def _recipe_names(recipes: Path) -> str:
    return ", ".join(sorted(path.stem for path in recipes.glob("*.yaml") if path.name != _COMMON_RECIPE))


def _values_of(name: str, arguments: Sequence[str]) -> list[str]:
    """What --name VALUE and --name=VALUE say, in their order; the parser refuses a name without a value."""
    values = []
    for argument, following in itertools.pairwise([*arguments, "--"]):
        if argument == name and not following.startswith("--"):
            values.append(following)
        elif argument.startswith(f"{name}="):
            values.append(argument.partition("=")[2])
    return values


def _read_settings(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    if "config" in content:
        raise InputError(f"{path}: expected settings, got config, which only the command line takes")
    return content


def _instantiate(settings: Any, values: Namespace) -> Any:
    """The dataclass, nested ones included, from parsed values."""
    hints: dict[str, Any] = get_type_hints(settings)
    arguments = {}
    for field in dataclasses.fields(settings):
        value = values[field.name]
        nested = hints[field.name]
        if dataclasses.is_dataclass(nested):
            if not isinstance(value, Namespace):
                raise InputError(f"{field.name}: expected settings by name, got {value!r}")
            value = _instantiate(nested, value)
        arguments[field.name] = value
    return settings(**arguments)


def _set_up_logging() -> None:
    """Our own messages go to stderr; of the libraries only errors, and none of their progress bars."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    first = os.environ.get("RANK", "0") == "0"  # of torchrun's processes one speaks
    logging.getLogger("linformer_kit").setLevel(logging.INFO if first else logging.ERROR)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # else each forked data worker warns
    libraries = importlib.import_module("transformers.utils.logging")
    libraries.set_verbosity_error()
    libraries.disable_progress_bar()


def _open_closed_output() -> None:
    """Python has None for an output that was closed before, as by `>&-`: what is written to it goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the end)


def _flushed() -> bool:
    """Whether standard output takes what was printed; if not, the rest is discarded, or it would fail again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()
        return False
    return True


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, *, code: int = 2) -> NoReturn:
    print(f"linformer: error: {message}", file=sys.stderr)
    raise SystemExit(code) from None

"""The help: what a user needs first, of this command and this family alone, in lines that fit the terminal."""

import dataclasses
import functools
import re

import pytest

import contexture
from contexture.cli import main as cli
from contexture.cli.commands import COMMANDS, GROUPS
from contexture.cli.help import command_page, main_page, options_of
from contexture.cli.option_model import METAVARS, Option
from contexture.cli.parse import parse
from contexture.configs import recipe, recipes
from contexture.configs.finetuning import finetune_run
from contexture.option_scope import scope
from contexture.train.errors import ConfigError
from contexture.train.settings.run import Run, fields
from tests.helpers.long import long

TINY = ("bert.tiny", "gpt.tiny", "elmo.tiny")
RUNS = {
    **{f"pretrain {name}": recipe(name) for name in TINY},
    **{f"finetune {name}": finetune_run(recipe(name), "runs/mine", "classify") for name in TINY},
    "finetune gpt": finetune_run(recipe("gpt.tiny"), "runs/mine", "choice"),
    "finetune elmo": finetune_run(recipe("elmo.tiny"), "runs/mine", "tag"),
}
LISTED = {
    title: {option.name.replace("-", "_") for option in options_of(COMMANDS[title.split()[0]], run)}
    - {"config", "grid", "seeds", "table"}
    for title, run in RUNS.items()
}


@functools.cache
def every_option() -> list[Option]:
    options = [option for name in COMMANDS for option in options_of(COMMANDS[name])]
    return options + [option for title, run in RUNS.items() for option in options_of(COMMANDS[title.split()[0]], run)]


def help_of(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert cli.main(words.split()) == 0
    out, err = capsys.readouterr()
    assert not err
    return out


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_function_options_and_a_line_of_its_own(name):
    command = COMMANDS[name]
    assert command.function().__doc__ and dataclasses.is_dataclass(command.kind())
    assert command.group in GROUPS and len(command.summary) <= 44
    named = {option.name for option in options_of(command)}
    for run in RUNS.values() if command.of_run else ():
        named |= {option.name for option in options_of(command, run)}
    assert named >= {*command.first, *command.required} and len(command.first) <= 12
    assert len(named) <= 12 or command.first, "too many options for the short help: name the first ones"


def test_every_metavar_is_that_of_an_option():
    assert {option.name for option in every_option()} >= METAVARS.keys()


def test_an_option_is_said_in_one_clear_sentence():
    for sentence in {option.sentence for option in every_option()}:
        assert sentence.endswith(".") and sentence[0].isupper() and len(sentence) <= 160, sentence
        assert not re.match(r"Of |An? \w+: |[A-Z]\w+: |Instead", sentence), sentence


@pytest.mark.parametrize("columns", [20, 80, *long(60, 110, 300)])
def test_no_line_is_wider_than_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    width = min(max(columns, 60), 110)
    pages = [main_page()]
    for name, command in COMMANDS.items():
        for words in ([], ["all"]):
            pages.append(command_page(name, name, words))
            if command.of_run:
                pages += [
                    command_page(name, title, words, run) for title, run in RUNS.items() if title.startswith(name)
                ]
    for line in (line for page in pages for line in page.splitlines()):
        assert len(line) <= width and line == line.rstrip(), line


def test_the_main_help_lists_every_command_on_one_line(capsys):
    page = help_of(capsys, "--help")
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.summary)}$", page, re.M)
    for option in ("--help", "--json", "--debug", "--version"):
        assert option in page and option in help_of(capsys, "fill --help")
    assert help_of(capsys, "help") == page and help_of(capsys, "help fill") == help_of(capsys, "fill --help")


@pytest.mark.parametrize(
    ("title", "every"),
    [
        ("pretrain bert.tiny", 5),
        *(
            pytest.param(title, 1, marks=pytest.mark.long)
            for title in ("pretrain bert.tiny", "pretrain elmo.tiny", "finetune gpt", "finetune elmo")
        ),
    ],
)
def test_all_that_is_listed_is_taken_and_all_else_is_refused(title, every):
    run = RUNS[title]
    listed, for_all = LISTED[title], set.intersection(*LISTED.values())
    names = {name for each in RUNS.values() for name in fields(each)}
    assert listed < names
    for name in sorted(names - for_all)[::every]:
        value = fields(run).get(name, 1)
        words = [f"--{name.replace('_', '-')}", *(str(value).split() if not isinstance(value, tuple | bool) else ())]
        if isinstance(value, tuple) or value == "":
            words += {
                "data.phases": ["8x2:1", "16x2:1"],
                "data.masking_stages": ["pieces:1", "phrases", "--data.masking", "pieces"],
                "model.filters": ["1", "8"],
                "task.labels": ["a", "b"],
                "mesh.compiler_options": ["a=b"],
            }.get(name, ["1"])
        if name in ("head.place", "head.cells", "head.mix_norm", "head.mix_l2", "head.lstm_layers"):
            words += ["--head.mix", "all"]  # it is for a mix
        try:
            parse(Run, words, title, run)
        except ConfigError as error:
            assert name not in listed, error
            assert " is for " in str(error) or "has no meaning" in str(error) or name.startswith("head."), error
        else:
            assert name in listed, name


def test_defaults_are_those_of_the_recipe(capsys):
    for name in TINY:
        page = " ".join(help_of(capsys, f"pretrain {name} --help").split())
        assert (
            f"rises to. [{recipe(name).optim.peak_lr:g}]" in page
            and f"over all devices. [{recipe(name).data.batch}]" in page
        )
    page = " ".join(help_of(capsys, "pretrain --help").split())
    assert len({run().optim.peak_lr for run in recipes().values()}) > 1 and "rises to. [depends on RECIPE]" in page


@pytest.mark.parametrize(
    ("words", "there", "absent"),
    [
        ("pretrain elmo.tiny", "--model.cells", "--model.quantization"),
        ("pretrain bert.tiny", "--data.masked-fraction", "--data.negatives"),
        ("pretrain gpt.tiny", "--data.[no-]packed", "--data.negatives"),
        ("pretrain elmo.tiny", "--data.negatives", "--data.[no-]packed"),
        ("pretrain bert.tiny", "--data.path", "--task"),
        ("pretrain", "--model.layers", "--model.heads"),
        ("finetune", "--task.train", "--data.path"),
    ],
)
def test_help_all_has_the_options_of_the_family_and_the_command_alone(capsys, words, there, absent):
    page = help_of(capsys, f"{words} --help all")
    assert there in page and absent not in page
    short = help_of(capsys, f"{words} --help")
    assert len(short.splitlines()) < len(page.splitlines()) and "--help all" in short


def test_what_a_run_refuses_has_no_meaning_for_it():
    """The rules of the configuration and of the help are the same."""
    for run in RUNS.values():
        for name, value in fields(run).items():
            section, _, last = name.partition(".")
            if isinstance(value, bool) and section in ("data", "task", "head"):
                changed = dataclasses.replace
                try:
                    changed(run, **{section: changed(getattr(run, section), **{last: not value})})
                except ValueError as error:
                    if "no meaning for pretraining" in str(error) or "is for GPT" in str(error):
                        assert scope(name, run), name


@pytest.mark.parametrize("words", ["--version", "pretrain --version", "pretrain bert.tiny --version"])
def test_the_version_is_printed(capsys, words):
    assert help_of(capsys, words) == f"contexture {contexture.__version__}\n"


def test_each_command_stands_in_its_group():
    blocks = dict(block.split("\n", 1) for block in main_page().split("\n\n")[1:])
    for group in GROUPS:
        names = [line.split()[0] for line in blocks[group].splitlines()]
        assert names == [name for name, command in COMMANDS.items() if command.group == group] != []


@pytest.mark.parametrize(
    ("words", "option"),
    [("pretrain bert.tiny", "--dir"), ("finetune", "--dir"), ("plan bert.base", "--topology"), ("embed", "--input")],
)
def test_an_option_that_a_command_cannot_do_without_is_called_required(capsys, words, option):
    """Whether its type says so, as of embed, or the command does."""
    pages = [help_of(capsys, f"{words} --help"), help_of(capsys, f"{words} --help all")]
    for page in pages:
        rest = " ".join(page[page.index(f"  {option} ") :].split())
        assert rest.index("(required)") < rest.index(" --", 4), page

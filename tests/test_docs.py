"""The pages agree with the code: departures from originals, options, the reference of commands, links."""

import importlib.util
import posixpath
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from contexture import configs
from contexture.cli.commands import COMMANDS
from contexture.cli.help import options_of
from contexture.configs.finetuning import finetune_run
from contexture.overrides import with_options
from contexture.train.settings.run_file import read
from tests.conftest import ROOT
from tests.helpers.commands import done, json_of
from tests.mutants.origin import PACKAGES

HOOKS = ROOT / "docs" / "hooks"
FOLDERS = ("benchmarks", "data", "models", "train")
PAGES = [
    ROOT / "README.md",
    *(ROOT / folder / "README.md" for folder in FOLDERS),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
EVERYWHERE = {"--help", "--json", "--debug", "--version"}
OF_OTHERS = {
    *("--steps", "--rounds", "--lines", "--size", "--texts", "--dtype"),  # scripts in benchmarks/
    *("--family", "--megabytes"),
    *("--target", "--gpus", "--rm", "--privileged", "--network"),  # docker
    *("--logdir", "--private"),  # tensorboard, hf
    *("--gpus-per", "--gpus-per-task", "--ntasks-per", "--cpus-per"),  # slurm (cut before `-node=8`, `-task=1`)
    "--env",  # sky
}
"""Options of other programs that pages name."""


def _flags() -> set[str]:
    """Every option of every command, in all families."""
    runs = [configs.recipe(name) for name in ("bert.tiny", "gpt.tiny", "elmo.tiny")]
    # Options that only another option gives a meaning.
    more = {"data.masked_fraction": "0.3:0.15", "data.phases": "8x2:1 16x2:1", "data.languages": "x"}
    runs += [with_options(runs[0], {**more, "data.masking": masking}) for masking in ("spans", "ernie")]
    tuned = [finetune_run(run, "", kind) for run in runs for kind in ("classify", "tag", "span")]
    flags = set(EVERYWHERE | OF_OTHERS)
    for command in COMMANDS.values():
        for run in [None, *runs, *tuned] if command.of_run else [None]:
            flags |= {flag for option in options_of(command, run) for flag in option.flags}
    return flags


FLAGS = _flags()


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_options_of_a_page_exist(page):
    text = page.read_text("utf-8")
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9.-]*[a-z0-9](?![\w*=.])", text))
    assert not named - FLAGS


def _wide(page: str) -> list[str]:
    """Returns the lines of code that are wider than a page of the site beside its two columns of links."""
    blocks = re.findall(r"^```.*?\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if len(line) > 86]


@pytest.mark.parametrize("page", [*PAGES[1:], ROOT / "CONTRIBUTING.md"], ids=[*NAMES[1:], "CONTRIBUTING.md"])
def test_the_code_of_a_page_fits_the_site(page):
    assert not _wide(page.read_text("utf-8"))


def test_every_departure_is_on_the_page_of_differences():
    marked = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "Differs:" in path.read_text("utf-8")
    }
    named = set(re.findall(r"`([a-z_0-9]+/[a-z_0-9/]*(?:\.py)?)`", (ROOT / "docs/differences.md").read_text("utf-8")))
    assert marked and not marked - named
    assert not [name for name in named if not (ROOT / name).exists()]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_links_of_a_page_lead_to_files(page):
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!https?:|#)([^)\s#]+)", text):
        target = posixpath.normpath(posixpath.join(page.parent.relative_to(ROOT).as_posix(), link))
        assert (ROOT / target).is_file(), link


def _reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("command_reference", HOOKS / "command_reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_command_and_option():
    page = _reference().page()
    assert not _wide(page)
    assert re.findall(r"^### (.*)$", page, re.MULTILINE) == [
        name for group in dict.fromkeys(one.group for one in COMMANDS.values()) for name, one in COMMANDS.items()
        if one.group == group
    ]  # fmt: skip
    for name, command in COMMANDS.items():
        section = re.split(r"^###? ", page.partition(f"### {name}\n")[2], flags=re.MULTILINE)[0]
        if name in ("show", "plan"):
            section += page.partition("### pretrain\n")[2]
        for option in options_of(command):
            assert option.positional or re.search(rf"--{re.escape(option.name)}\b", section.replace("[no-]", "")), (
                option
            )


@pytest.mark.parametrize(
    "word", ["NER", "cased", "yaml", "fp16", "overwrite", "profiler", "S3", "from_pretrained", "tensorboard", "docker"]
)
def test_the_search_finds_a_page_for_a_word_of_other_libraries(word):
    """As the site's search: a page is found where all parts of the word begin words of it; the changelog counts not."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    (separator,) = (plugin["search"]["separator"] for plugin in site["plugins"] if "search" in plugin)

    def words(text: str) -> list[str]:
        return [part.lower() for part in re.split(separator, text) if part]

    pages = {page: words(page.read_text("utf-8")) for page in sorted((ROOT / "docs").rglob("*.md"))}
    assert [page for page, own in pages.items() if all(any(w.startswith(p) for w in own) for p in words(word))]


@pytest.fixture
def settings_commands(tmp_path, monkeypatch) -> list[list[str]]:
    """The commands of the page's file of settings, in a folder that has the file."""
    page = (ROOT / "docs" / "text-and-examples.md").read_text("utf-8").partition("## Settings from a file")[2]
    (settings,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "settings.yaml").write_text(settings)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0].splitlines()
    assert [command.split()[:2] for command in commands] == [["contexture", "show"], ["contexture", "pretrain"]]
    return [command.split()[1:] for command in commands]


def test_the_pages_file_of_settings_sets_what_it_says(settings_commands):
    show, (_, *options) = settings_commands
    folder = options.index("--dir")
    for words, steps in ((show, 20), (["show", *options[:folder], *options[folder + 2 :]], 10)):
        run = json_of(*words)["config"]
        assert (run["data"]["path"], run["data"]["length"], run["data"]["dev_fraction"]) == (["text/"], 32, 0.1)
        assert (run["model"]["layers"], run["model"]["hidden"]) == (1, 32)
        assert (run["optim"]["peak_lr"], run["optim"]["warmup"], run["evaluate"]["every"]) == (0.001, 2, 5)
        assert (run["seed"], run["steps"]) == (7, steps), "the command line comes first"


@pytest.mark.long
@pytest.mark.usefixtures("one_device")
def test_the_pages_file_of_settings_trains(settings_commands, text_folder):
    shutil.copytree(text_folder, "text")
    done(*settings_commands[1], *"--model.vocab 150 --model.ffn 16 --batch 4".split())
    assert read(Path("runs/mine")).run.steps == 10


ROADS = {
    "From a text to BERT's loss": 18,
    "From a labelled row to its metric": 16,
    "From a text to its vector": 8,
    "From `--optim.peak-lr` to an update": 8,
}
"""The most files that a reader opens on each road through the code."""


def test_the_roads_through_the_code_are_short_and_there():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8").partition("## Four roads")[2]
    found = dict(section.split("\n", 1) for section in page.split("### ")[1:])
    assert found.keys() == ROADS.keys()
    for name, text in found.items():
        rows = re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", text, re.M)
        assert len({file for file, _ in rows}) == len(rows) <= ROADS[name], name
        assert len(rows) == text.count("\n| `"), name
        for file, function in rows:
            defined = re.findall(r"^ *(?:def|class) (\w+)", (ROOT / file).read_text("utf-8"), re.M)
            assert function in defined, (name, file, function)

"""Vowels that a lower-case WordPiece strips as accents, as the original does, are said to be lost."""

import unicodedata
from pathlib import Path

import pytest

from contexture.cli import main as cli
from contexture.data.config import DataConfig
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tokenizers.unknown_tokens import LostMarks, UnknownTokens
from contexture.data.tokenizers.wordpiece import WordPiece, learn_wordpiece
from tests.helpers.logs import logged

HINDI = "हिन्दी भाषा में लिखा हुआ एक वाक्य।"


@pytest.mark.parametrize(
    ("text", "lost"),
    [(HINDI, True), ("ภาษาไทยมีสระ", True), ("これはペンです。がっこうで", True), ("שָׁלוֹם", True),
     ("Éć ñ ü й ё ά", False),
     (unicodedata.normalize("NFD", "Éć ñ ü й ё ά"), False), ("漢字 中文", False), ("한국어 문장", False),
     ("العربية", False),
     ("👍️ ok ❤️ x⃗", False), ("", False),
     *((f"a{chr(code)}", False) for code in (0x300, 0x36F, 0x1AB0, 0x1ABD, 0x1DC0, 0x1DFF, 0x20D0, 0x20F0))],
)  # fmt: skip
def test_marks_of_letters_are_told_from_accents(text: str, lost: bool):
    marks = LostMarks()
    marks.add(text)
    assert bool(marks.warning("the text", "")) == lost


def test_the_share_and_the_three_commonest_of_them_are_said():
    marks = LostMarks()
    marks.add("कु के कै कं कु के कै कु के कु abcdefghij")  # ु four times, े three, ै two, ं one
    said = marks.warning("the text", "mend it")
    assert said.startswith(f"the text: {10 / 40:.1%} of the characters lose a vowel") and said.endswith("; mend it")
    assert "(as 'ु', 'े', 'ै')" in said


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_lower_case_vocabulary_loses_them_and_a_cased_one_does_not(tmp_path: Path, lowercase: bool):
    """Learned, and given for the text of a pretraining."""
    tokenizer = learn_wordpiece([HINDI] * 3, 90, lowercase)
    assert ("\u0947" in "".join(tokenizer.vocabulary)) != lowercase
    assert bool(UnknownTokens(tokenizer).warnings("", "", "")) is False
    (tmp_path / "a.txt").write_text(f"{HINDI}\n" * 9)
    with logged() as messages:
        prepare(DataConfig(path=(str(tmp_path / "a.txt"),), lowercase=lowercase), tokenizer, tmp_path / "shards")
    lines = [line for line in messages if "lose a vowel or another mark" in line]
    assert len(lines) == lowercase and all("--data.no-lowercase" in line for line in lines)


@pytest.mark.parametrize("lowercase", [True, False])
def test_accents_that_are_stripped_whatever_the_case_are_said_to_be_lost(lowercase: bool):
    for strips in (True, False):
        tokenizer = WordPiece(learn_wordpiece([HINDI] * 3, 90, True).vocabulary, lowercase, strip_accents=strips)
        counted = UnknownTokens(tokenizer)
        counted.add([HINDI], tokenizer.encode([HINDI]))
        assert any("lose a vowel" in line for line in counted.warnings("the text", "", "")) == strips


def test_learning_a_vocabulary_names_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.txt").write_text(f"{HINDI}\n" * 9)
    for option, lines in (("--lowercase", 1), ("--no-lowercase", 0)):
        words = ["tokenizer", "wordpiece", "--input", str(tmp_path / "a.txt"), "--to", str(tmp_path / option), option]
        assert cli.main([*words, "--vocab-size", "90"]) == 0
        assert capsys.readouterr().err.count("one does; keep them with --no-lowercase") == lines

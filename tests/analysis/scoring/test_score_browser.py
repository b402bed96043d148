"""The page of a text's log-probabilities in a real browser: its mouse, its keys, and that nothing leaves it."""

from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import contexture
from contexture.analysis.scoring.score import token_scores
from contexture.analysis.scoring.score_page import write_score_page
from contexture.analysis.scoring.scorer import ScoredToken
from tests.analysis.pages.browser import (
    IN_BROWSER,
    check_nothing_left_or_ran,
    check_theme_and_help,
    open_page,
    press,
    text_of,
    wait,
)
from tests.train.run.test_formats import GOLDEN

pytestmark = IN_BROWSER
TEXT = "the cat </script><b> sat"


def _write(to: Path, run: str) -> list[ScoredToken]:
    model = contexture.open(GOLDEN / run)
    with model.computing():
        documents = list(token_scores(model.token_scorer(), [TEXT]))
    write_score_page(to, "a run", documents, model.tokenizer.size, {"tokens": 9, "loss": 1.5})
    return documents[0]


def _colours(browser: Any) -> list[str]:
    return browser.execute_script(
        "return [...document.querySelectorAll('.token')].map(x => getComputedStyle(x).backgroundColor)"
    )


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> tuple[Path, list[ScoredToken]]:
    tokens = _write(tmp_path / "page.html", "bert")
    open_page(browser, tmp_path / "page.html", "surprise masked -1")
    return tmp_path / "page.html", tokens


def test_a_hover_shows_log_probability_entropy_and_guesses(browser: Any, page: tuple[Path, list[ScoredToken]]):
    one = page[1][1].predictions["masked"]
    ActionChains(browser).move_to_element(browser.find_element(By.ID, "token-1")).perform()
    wait(browser, "surprise masked 1")
    info = text_of(browser, ".info")
    assert f"log-probability {one.log_prob:.3f}" in info and f"rank {one.rank}" in info
    assert f"entropy {one.entropy:.3f} nats" in info
    rows = [each.text for each in browser.find_elements(By.CSS_SELECTOR, ".info tr")]
    assert len(rows) == 5 and all(row.startswith(guess["token"]) for row, guess in zip(rows, one.guesses, strict=True))
    ActionChains(browser).move_to_element(browser.find_element(By.ID, "title")).perform()
    wait(browser, "surprise masked -1")
    assert not browser.find_elements(By.CSS_SELECTOR, ".info tr")


def test_keys_change_token_colour_and_theme(browser: Any, page: tuple[Path, list[ScoredToken]]):
    tokens = page[1]
    surprise = _colours(browser)
    press(browser, "c")
    wait(browser, "entropy masked -1")
    assert _colours(browser) != surprise
    press(browser, "j", Keys.ARROW_RIGHT)
    wait(browser, "entropy masked 1")
    press(browser, "k")
    wait(browser, "entropy masked 0")
    press(browser, Keys.ESCAPE, "n")
    order = sorted(range(len(tokens)), key=lambda n: round(tokens[n].predictions["masked"].log_prob, 5))
    wait(browser, f"entropy masked {order[0]}")
    press(browser, "n")
    wait(browser, f"entropy masked {order[1]}")
    check_theme_and_help(browser)


def test_the_less_probable_a_token_the_stronger_its_colour(browser: Any, page: tuple[Path, list[ScoredToken]]):
    shares = browser.execute_script(
        "return [...document.querySelectorAll('.token')].map(x => Number(x.style.getPropertyValue('--share')))"
    )
    tokens = [each.predictions["masked"].log_prob for each in page[1]]
    for n, one in enumerate(tokens):
        assert all(shares[n] >= shares[m] for m, other in enumerate(tokens) if one < other)
    assert len(set(shares)) > 2


def test_an_elmos_directions_are_switched_and_shown_side_by_side(browser: Any, tmp_path: Path):
    _write(tmp_path / "page.html", "elmo")
    open_page(browser, tmp_path / "page.html", "surprise forward -1")
    forward = _colours(browser)
    press(browser, "d")
    wait(browser, "surprise backward -1")
    assert _colours(browser) != forward
    press(browser, "j", "j")
    wait(browser, "surprise backward 1")
    assert [each.text for each in browser.find_elements(By.CSS_SELECTOR, ".info h2")][1:] == ["forward", "backward"]


def test_no_request_leaves_the_page_and_text_stays_text(browser: Any, tmp_path: Path):
    _write(tmp_path / "page.html", "gpt")
    open_page(browser, tmp_path / "page.html", "surprise forward -1")
    press(browser, "j", "c")
    wait(browser, "entropy forward 0")
    shown = browser.execute_script("return [...document.querySelectorAll('.token')].map(x => x.textContent).join('')")
    assert shown.replace("␣", " ") == TEXT
    assert not browser.find_elements(By.CSS_SELECTOR, "main b")
    check_nothing_left_or_ran(browser, tmp_path / "page.html")

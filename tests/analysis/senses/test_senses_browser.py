"""The page of a word's senses in a real browser: its mouse, its keys, and that nothing leaves it."""

from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import contexture
from contexture.analysis.senses.senses_page import write_senses_page
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
TEXTS = ["the cat sat", "a cat </script><b>", "my cat", "that dog sat, cat"]


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Path:
    senses = contexture.open(GOLDEN / "bert").senses("cat", TEXTS, ["a", "<i>b</i>", "a", "<i>b</i>"])
    write_senses_page(tmp_path / "page.html", "cat", senses)
    open_page(browser, tmp_path / "page.html", "2 -1 -1")
    return tmp_path / "page.html"


def _places(browser: Any) -> list[str]:
    script = "return [0, 1, 2, 3].map(n => document.getElementById(`point-${n}`).style.transform)"
    return browser.execute_script(script)


def test_a_hover_shows_the_sentence_under_the_point(browser: Any, page: Path):
    ActionChains(browser).move_to_element(browser.find_element(By.ID, "point-3")).perform()
    wait(browser, "2 3 -1")
    assert text_of(browser, ".sentence") == TEXTS[3] and text_of(browser, ".sentence mark") == "cat"
    assert "active" in browser.find_element(By.ID, "point-3").get_attribute("class")
    ActionChains(browser).move_to_element(browser.find_element(By.ID, "title")).perform()
    wait(browser, "2 -1 -1")
    assert not browser.find_elements(By.CSS_SELECTOR, ".sentence")


def test_a_click_keeps_a_point(browser: Any, page: Path):
    ActionChains(browser).move_to_element(browser.find_element(By.ID, "point-0")).click().perform()
    ActionChains(browser).move_to_element(browser.find_element(By.ID, "title")).perform()
    wait(browser, "2 0 -1")
    assert text_of(browser, ".sentence") == TEXTS[0]


def test_keys_change_layer_point_sense_and_colours(browser: Any, page: Path):
    before = _places(browser)
    press(browser, Keys.ARROW_UP)
    wait(browser, "1 -1 -1")
    assert _places(browser) != before and text_of(browser, "#layer-name") == "layer 1"
    assert text_of(browser, ".layers tr.chosen th") == "layer 1"
    press(browser, "j", "j")
    wait(browser, "1 1 -1")
    assert text_of(browser, ".sentence") == TEXTS[1]
    press(browser, "s")
    wait(browser, "1 1 0")
    assert len(browser.find_elements(By.CSS_SELECTOR, "#plot .other")) == 2
    press(browser, Keys.ESCAPE)
    wait(browser, "1 -1 -1")
    check_theme_and_help(browser)


def test_the_slider_takes_arrow_keys_of_its_own(browser: Any, page: Path):
    browser.execute_script("document.getElementById('layer').focus()")
    press(browser, Keys.ARROW_LEFT)
    wait(browser, "1 -1 -1")
    press(browser, Keys.HOME)
    wait(browser, "0 -1 -1")
    assert text_of(browser, "#layer-name") == "words (0)"


def test_no_request_leaves_the_page_and_text_stays_text(browser: Any, page: Path):
    press(browser, "j", "j", Keys.ARROW_UP)
    wait(browser, "1 1 -1")
    assert text_of(browser, ".sentence") == TEXTS[1] and "<i>b</i> (2)" in text_of(browser, "#groups")
    assert not browser.find_elements(By.CSS_SELECTOR, "main b, main i, #controls i")
    check_nothing_left_or_ran(browser, page)


def test_on_paper_the_colours_are_light(browser: Any, page: Path):
    press(browser, "t")
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.execute_script("return document.documentElement.dataset.theme") == "light"
    browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    assert browser.execute_cdp_cmd("Page.printToPDF", {})["data"]

"""A page in a real browser: opened, its keys pressed, what it asked the network for."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
IN_BROWSER = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (CHROMIUM.exists() and DRIVER.exists()),
        reason="needs a browser: apt-get install chromium chromium-driver",
    ),
]
"""The marks of a module whose tests need the browser."""
_FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --force-prefers-reduced-motion --window-size=1360,900""".split()


@contextmanager
def started(profile: Path) -> Iterator[Any]:
    """A browser with a fresh profile, while this lasts."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


def wait(browser: Any, drawn: str, seconds: float = 60) -> None:
    """Waits until the page says that it has drawn this."""
    end = time.monotonic() + seconds
    while browser.execute_script("return document.documentElement.dataset.drawn") != drawn:
        assert time.monotonic() < end, (drawn, browser.get_log("browser"))
        time.sleep(0.05)


def open_page(browser: Any, file: Path, drawn: str) -> None:
    browser.get_log("performance")
    browser.get(file.as_uri())
    wait(browser, drawn)


def press(browser: Any, *keys: str) -> None:
    ActionChains(browser).send_keys(*keys).perform()


def text_of(browser: Any, selector: str) -> str:
    return browser.find_element(By.CSS_SELECTOR, selector).text


def check_theme_and_help(browser: Any) -> None:
    """`t` changes the colours, `?` shows the list of keys, and escape closes it."""
    paper = "return getComputedStyle(document.body).backgroundColor"
    before = browser.execute_script(paper)
    press(browser, "t")
    assert browser.execute_script(paper) != before
    press(browser, "?")
    assert browser.find_element(By.ID, "help").is_displayed()
    press(browser, Keys.ESCAPE)
    assert not browser.find_element(By.ID, "help").is_displayed()


def check_nothing_left_or_ran(browser: Any, file: Path) -> None:
    """No request left the page, nothing went wrong in it, and no script that somebody puts in runs."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    # The tab that a browser starts with is still loading pages of the browser's own.
    sent = [r["request"]["url"] for r in requests if not r["documentURL"].startswith("chrome")]
    assert [url for url in sent if not url.startswith("data:")] == [file.as_uri()], sent
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not errors
    # The policy knows one script alone.
    browser.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)"
    )
    assert browser.execute_script("return window.ran ?? 0") == 0

"""The dashboard in a real Chromium: register, bid, close, see the payment, with the keyboard only."""

from __future__ import annotations

import functools
import json
import os
import random
import re
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from privmarket.broker import _ledger as ledger
from privmarket.broker._api import ServiceSettings, create_app
from privmarket.broker._broker import Broker
from privmarket.broker._parties import SYSTEM
from privmarket.broker._schema import find_party
from privmarket.broker._signatures import SigningKey, bid_message, canonical, is_signed
from privmarket.broker._statements import STATEMENTS
from privmarket.broker._verify import verify
from privmarket.rounds import Offer
from privmarket_fixtures.market import TASK, key
from privmarket_fixtures.processes import free_port

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.common.exceptions import ElementNotInteractableException, StaleElementReferenceException  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

SHOTS = os.environ.get("PRIVMARKET_SCREENSHOTS")
AXE = "axe-core@4.10.2"
# Deadlines that no slow machine meets.
LONG = {**TASK, "bid_seconds": 3600, "delivery_seconds": 3600, "review_seconds": 3600, "dispute_seconds": 3600}
NASTY = "<script>alert(1)</script> & Söhne"


FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run")
# Chromium asks for news of its own every few seconds, which no test needs.
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("Debian's chromium and chromium-driver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, *QUIET):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    page = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    page.set_page_load_timeout(60)
    yield page
    page.quit()


@pytest.fixture
def browser(chromium: Any) -> Any:
    """A window without a page, cookies or messages."""
    chromium.set_window_size(1100, 800)
    chromium.execute_cdp_cmd("Network.clearBrowserCookies", {})
    chromium.get("about:blank")
    chromium.get_log("browser")
    return chromium


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Broker]]:
    broker = Broker(f"sqlite:///{tmp_path}/m.db", key=SigningKey.generate())
    port = free_port()
    app = create_app(broker, ServiceSettings(requests_per_second=1e6, burst=1e6))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}", broker
    app.state.is_stopping = True  # as `http_server` does: streams of events end
    server.should_exit = True
    thread.join()


def until(condition: Callable[[], Any], seconds: float = 90) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            found = condition()
        except Exception:
            found = None
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("it never happened")


@functools.lru_cache(maxsize=1)
def axe() -> str | None:
    """The script of axe-core, fetched by npm: a file that PRIVMARKET_AXE names, else the package; None offline."""
    if os.environ.get("PRIVMARKET_AXE"):
        return Path(os.environ["PRIVMARKET_AXE"]).read_text()
    if not shutil.which("npm"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(
                ["npm", "pack", "--silent", "--fetch-retries=0", AXE],
                cwd=folder,
                check=True,
                capture_output=True,
                timeout=60,
            )
            with tarfile.open(next(Path(folder).glob("*.tgz"))) as package:
                found = package.extractfile("package/axe.min.js")
                return None if found is None else found.read().decode()
        except (OSError, subprocess.SubprocessError, StopIteration, KeyError):
            return None


def problems(page: Any) -> list[str]:
    """What axe finds wrong for people who use a keyboard or a screen reader; nothing where axe is not to be had."""
    script = axe()
    if script is None:
        return []
    if page.execute_script("return typeof axe === 'undefined'"):  # half a megabyte: once for each page
        page.execute_script(script)
    look = "axe.run(document, {resultTypes: ['violations']}).then((r) => arguments[0](r.violations))"
    return [f"{one['id']}: {one['nodes'][0]['html']}" for one in page.execute_async_script(look)]


def shoot(page: Any, name: str) -> None:
    """At both widths nothing sticks out and axe finds nothing; pictures go to the folder PRIVMARKET_SCREENSHOTS."""
    for label, width in (("desktop", 1280), ("phone", 400)):
        page.set_window_size(width, 900)
        over = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.execute_script(over) <= 0, f"{name} is too wide for {label}"
        assert problems(page) == [], f"{name}, {label}"
        if SHOTS:
            time.sleep(0.3)
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            assert page.save_screenshot(f"{SHOTS}/{name}-{label}.png")
    page.set_window_size(1100, 800)


def tab_to(page: Any, wanted: str) -> Any:
    """Presses Tab until the element with this id has the focus, once it is on the page."""
    until(lambda: page.find_element(By.ID, wanted).is_displayed())
    pressed = 0
    limit = time.monotonic() + 60
    while pressed < 90 and time.monotonic() < limit:
        try:
            focused = page.switch_to.active_element
            if focused.get_attribute("id") == wanted:
                return focused
            focused.send_keys(Keys.TAB)
            pressed += 1
        except (StaleElementReferenceException, ElementNotInteractableException):  # the next page came in between
            time.sleep(0.1)
    raise AssertionError(f"{wanted} cannot be reached with the keyboard")


def held_still(act: Callable[[], object]) -> None:
    """Does something with an element; once more if the page was replaced under it before the browser came to it."""
    for _ in range(5):
        try:
            act()
            return
        except StaleElementReferenceException:
            continue
    raise AssertionError("the page never held still")


def press(page: Any, wanted: str) -> None:
    """Goes to a button and presses Enter."""
    held_still(lambda: tab_to(page, wanted).send_keys(Keys.ENTER))


def sign_in(page: Any, url: str, token: str) -> None:
    page.get(f"{url}/sign-in")  # away from a page that still asks for news
    page.delete_all_cookies()
    page.get(f"{url}/sign-in")
    tab_to(page, "token").send_keys(token, Keys.ENTER)
    until(lambda: "Tasks" in page.title)


def test_a_round_with_the_keyboard_only(browser: Any, site: tuple[str, Broker]) -> None:
    (url, broker), page = site, browser
    made = broker.register({"role": "buyer", "name": "lab"}, key())
    buyer = broker.authenticate(made["token"])
    broker.deposit(SYSTEM, buyer.party_id, 5_000_000, key())
    task = broker.publish_task(buyer, {**LONG, "title": NASTY}, key())
    rival = broker.register({"role": "seller", "name": "rival", "cap_epsilon": 9.0, "delta": 1e-5}, key())
    round_id = broker.open_round(buyer, task["id"], key())["id"]

    page.get(f"{url}/docs")
    shoot(page, "docs")
    page.get(f"{url}/sign-in")
    shoot(page, "sign-in")
    tab_to(page, "name").send_keys(NASTY, Keys.TAB, Keys.TAB, Keys.TAB, Keys.ENTER)
    token = until(lambda: page.find_element(By.CSS_SELECTOR, "pre#token").text)
    assert NASTY in page.find_element(By.TAG_NAME, "h1").text  # shown as typed, not run

    page.get(f"{url}/rounds/{round_id}")
    tab_to(page, "valuation").send_keys("0.2", Keys.TAB, "1.0")
    until(lambda: "at least 0.20 credits" in page.find_element(By.ID, "at-worst").text)  # before it is sent
    tab_to(page, "place").send_keys(Keys.ENTER)
    until(lambda: "your sealed bid" in page.page_source)
    shoot(page, "seller-open")

    sign_in(page, url, made["token"])
    shoot(page, "tasks")
    page.get(f"{url}/rounds/{round_id}")
    # News may replace an element between finding and reading it, so both are tried again.
    until(lambda: page.find_element(By.ID, "bids").text == "1")
    until(lambda: not page.find_element(By.ID, "settle").is_displayed())  # only what applies
    broker.bid(broker.authenticate(rival["token"]), round_id, Offer(0.4, 0.5), key())
    until(lambda: page.find_element(By.ID, "bids").text == "2")  # live, without reloading
    shoot(page, "buyer-open")
    press(page, "close")
    until(lambda: "Who sells" in page.page_source)
    for one in (token, rival["token"]):
        broker.claim_delivery(broker.authenticate(one), round_id, "ab" * 32, key())
    press(page, "accept")
    until(lambda: "refunded" in page.page_source)  # nobody may speak any more: the broker's clock settles it
    shoot(page, "buyer-settled")
    page.get(f"{url}/tasks/{task['id']}")
    until(lambda: "Paid per round" in page.page_source)
    shoot(page, "task")
    publish(page, url)

    sign_in(page, url, token)
    page.get(f"{url}/money")
    until(lambda: page.find_element(By.ID, "balance").text == "0.66 credits")
    shoot(page, "seller-money")
    page.get(f"{url}/privacy")
    shoot(page, "seller-privacy")
    until(lambda: "under your cap" in page.page_source)

    sign_in(page, url, broker.first_operator() or "")
    for name in ("money", "privacy", "people", "audit"):
        page.get(f"{url}/{name}")
        until(lambda: "Live" in page.find_element(By.CSS_SELECTOR, ".live").text)
        shoot(page, f"operator-{name}")
    book(page, url, made["id"], broker)
    assert page.get_log("browser") == [], "the console must stay empty"


def publish(page: Any, url: str) -> None:
    """A buyer publishes a task from the page."""
    page.get(url)
    press(page, "publish")
    tab_to(page, "title").send_keys("From the page")
    tab_to(page, "budget").send_keys("0.5", Keys.ENTER)
    until(lambda: "From the page" in page.title)
    until(lambda: page.find_element(By.ID, "open").is_displayed())


def book(page: Any, url: str, buyer_id: str, broker: Broker) -> None:
    """An operator books a deposit from the page."""
    page.get(f"{url}/people")
    tab_to(page, "deposit-who").send_keys("lab")
    tab_to(page, "deposit-amount").send_keys("7.5")
    tab_to(page, "deposit-reference").send_keys("transfer 7", Keys.ENTER)
    until(lambda: "Is this right?" in page.page_source)
    shoot(page, "operator-confirm")
    press(page, "confirm")
    until(lambda: balance(broker, buyer_id) == 5_000_000 - 999_999 + 7_500_000)


def balance(broker: Broker, party_id: str) -> int:
    with broker.database.read() as connection:
        return ledger.balance(connection, ledger.party(party_id))


def test_axe_is_here_and_finds_what_is_wrong(browser: Any) -> None:
    if axe() is None:
        pytest.skip("axe-core could not be fetched: no npm, or no network")
    browser.get("data:text/html,<html><title>x</title><body><img src='data:,'><input></body></html>")
    assert {one.partition(":")[0] for one in problems(browser)} >= {"image-alt", "label", "html-has-lang"}


def test_an_error_is_shown_and_a_lost_broker_is_noticed(browser: Any, site: tuple[str, Broker]) -> None:
    (url, broker), page = site, browser
    made = broker.register({"role": "seller", "name": "s", "cap_epsilon": 9.0, "delta": 1e-5}, key())
    sign_in(page, url, made["token"])
    until(lambda: "No tasks yet" in page.page_source)
    shoot(page, "seller-empty")
    page.get(f"{url}/audit")
    until(lambda: "may not do this" in page.page_source)  # sellers have no log
    shoot(page, "seller-error")
    page.get(f"{url}/money")
    until(lambda: page.find_element(By.CSS_SELECTOR, ".live").text == "Live")
    page.execute_script("window.fetch = () => Promise.reject(new Error('gone'))")
    until(lambda: "does not answer" in page.find_element(By.CSS_SELECTOR, ".live").text)
    # What a browser itself notes about the refused page, and nothing else.
    (noted,) = page.get_log("browser")
    assert "/audit" in noted["message"]
    assert "403" in noted["message"]


def test_a_seller_with_a_key_bids_in_the_browser(browser: Any, site: tuple[str, Broker], tmp_path: Path) -> None:
    (url, broker), page = site, browser
    own, other = SigningKey.generate(), SigningKey.generate()
    own.write(tmp_path / "seller.pem")
    other.write(tmp_path / "other.pem")
    lab = broker.authenticate(broker.register({"role": "buyer", "name": "lab"}, key())["token"])
    broker.deposit(SYSTEM, lab.party_id, 5_000_000, key())
    round_id = broker.open_round(lab, broker.publish_task(lab, LONG, key())["id"], key())["id"]
    form = {"role": "seller", "name": "clinic", "cap_epsilon": 9.0, "delta": 1e-5, "public_key": own.public}
    made = broker.register(form, key())
    sign_in(page, url, made["token"])
    page.get(f"{url}/rounds/{round_id}")
    # The commitment is a digest of Python's text of each number.
    rng = random.Random(3)
    numbers = [0.0, 1.0, 1e16, 9999999999999998.0, 1e-4, 9.9e-5, 5e-324, 1.7976931348623157e308, 123456789.125, 0.1]
    numbers += [rng.uniform(0, 10) * 10.0 ** rng.randint(-20, 20) for _ in range(300)]
    script = "return arguments[0].map((one) => privmarketSigning.floatText(Number(one)))"
    assert page.execute_script(script, [repr(one) for one in numbers]) == [repr(one) for one in numbers]
    fields = {"valuation": "0.25", "epsilon": "1", "data_size": "600"}
    for name, typed in fields.items():
        box = page.find_element(By.ID, name)
        box.clear()
        box.send_keys(typed)
    page.find_element(By.ID, "place").click()
    until(lambda: "Choose your key file first" in page.find_element(By.ID, "signing").text)
    (tmp_path / "no.pem").write_text("no key")
    page.find_element(By.ID, "pem").send_keys(str(tmp_path / "no.pem"))
    page.find_element(By.ID, "place").click()
    until(lambda: "could not be used" in page.find_element(By.ID, "signing").text)
    page.find_element(By.ID, "pem").send_keys(str(tmp_path / "seller.pem"))
    page.find_element(By.ID, "place").click()
    until(lambda: "your sealed bid" in page.page_source)
    shoot(page, "seller-signed")
    with broker.database.read() as connection:
        row = connection.exec_driver_sql(
            "SELECT valuation, epsilon, data_size, commitment, signature FROM bids"
        ).one()
    assert tuple(row[:3]) == (0.25, 1.0, 600.0)
    assert is_signed(own.public, bid_message(round_id, made["id"], row[3]), row[4])
    # Another's key signs nothing in this seller's name.
    page.get(f"{url}/rounds/{round_id}")
    for name, typed in fields.items():
        box = page.find_element(By.ID, name)
        box.clear()
        box.send_keys(typed)
    page.find_element(By.ID, "pem").send_keys(str(tmp_path / "other.pem"))
    page.find_element(By.ID, "place").click()
    until(lambda: "not signed by the seller" in page.page_source)


def typed(page: Any, **fields: str) -> None:
    for name, text in fields.items():
        box = page.find_element(By.ID, name)
        box.clear()
        box.send_keys(text)


def test_everything_is_signed_in_the_browser(browser: Any, site: tuple[str, Broker], tmp_path: Path) -> None:
    """From the key to the payout; two parties make their keys in the browser, and no statement is unsigned."""
    (url, broker), page = site, browser
    court_key = SigningKey.generate()
    court_key.write(tmp_path / "court.pem")
    form = {"role": "arbiter", "name": "court", "public_key": court_key.public}
    operator = broker.authenticate(broker.first_operator() or "")
    court = broker.register(form, key(), operator)
    files = {court["id"]: tmp_path / "court.pem"}
    tokens = {"court": court["token"]}
    ids = {"court": court["id"]}

    def sign_up(role: str, name: str) -> None:
        folder = tmp_path / name
        folder.mkdir()
        where = {"behavior": "allow", "downloadPath": str(folder)}
        page.execute_cdp_cmd("Browser.setDownloadBehavior", where)
        page.execute_cdp_cmd("Network.clearBrowserCookies", {})
        page.get(f"{url}/sign-in")
        page.find_element(By.CSS_SELECTOR, f"#role option[value={role}]").click()
        typed(page, name=name)
        page.find_element(By.ID, "own_key").click()
        page.find_element(By.CSS_SELECTOR, "form[action='/register'] button").click()
        tokens[name] = until(lambda: page.find_element(By.ID, "token").text)
        made = until(lambda: [one for one in folder.iterdir() if one.suffix == ".pem"])[0]
        ids[name] = broker.authenticate(tokens[name]).party_id
        files[ids[name]] = made
        with broker.database.read() as connection:
            party = find_party(connection, ids[name])
        assert party is not None
        assert (party.public_key, party.signs) == (SigningKey.read(made).public, "everything")

    def go(name: str, path: str) -> None:
        sign_in(page, url, tokens[name])
        page.get(url + path)
        if page.find_elements(By.ID, "pem"):
            page.find_element(By.ID, "pem").send_keys(str(files[ids[name]]))

    def press_id(name: str) -> None:
        page.find_element(By.ID, name).click()

    sign_up("buyer", "lab")
    sign_up("seller", "clinic")
    broker.deposit(operator, ids["lab"], 5_000_000, key())
    go("lab", "/")
    page.execute_script("document.querySelector('details').open = true")
    # What is signed is a digest of Python's text.
    said = {"title": 'Zähl "mit" \\ \u2028', "nonce": "ab", "pays": True, "fault": None}
    script = "const { canonical, Float } = privmarketSigning; "
    script += "return canonical({...arguments[0], n: 7n, share: new Float(0.1)})"
    assert page.execute_script(script, said) == canonical({**said, "n": 7, "share": 0.1})
    typed(page, title="Zähl 'mit'", budget="2", rounds="3", arbiter=ids["court"])
    page.find_element(By.NAME, "may_close").click()
    press_id("publish-now")
    until(lambda: "/tasks/task-" in page.current_url)
    shoot(page, "buyer-signs")
    page.find_element(By.ID, "pem").send_keys(str(files[ids["lab"]]))
    until(lambda: page.find_element(By.ID, "open").is_displayed())
    press_id("open")
    until(lambda: "/rounds/round-" in page.current_url)
    path = page.current_url.removeprefix(url)
    go("clinic", path)
    typed(page, valuation="0.25", epsilon="1")
    press_id("place")
    until(lambda: "your sealed bid" in page.page_source)
    go("lab", path)
    until(lambda: page.find_element(By.ID, "close").is_displayed())
    press_id("close")
    until(lambda: "Who sells" in page.page_source)
    go("clinic", path)
    typed(page, digest="ab" * 32)
    press_id("deliver")
    until(lambda: ">sent<" in page.page_source)
    go("lab", path)
    until(lambda: page.find_elements(By.CSS_SELECTOR, "button[value=reject]"))
    page.find_element(By.CSS_SELECTOR, "input[placeholder='what is wrong']").send_keys("wrong shape")
    page.find_element(By.CSS_SELECTOR, "button[value=reject]").click()
    until(lambda: "rejected: wrong shape" in page.page_source)
    go("clinic", path)
    until(lambda: page.find_element(By.ID, "why").is_displayed())
    typed(page, why="it is as asked")
    page.find_element(By.CSS_SELECTOR, f"form[action='{path}/dispute'] button").click()
    until(lambda: "disputed: it is as asked" in page.page_source)
    go("lab", path)
    typed(page, accuracy="87.5")
    page.find_element(By.CSS_SELECTOR, f"form[action='{path}/progress'] button").click()
    until(lambda: page.find_element(By.ID, "accuracy").get_attribute("value") == "87.5")
    go("court", path)
    page.find_element(By.CSS_SELECTOR, "input[placeholder=why]").send_keys("it is")
    page.find_element(By.CSS_SELECTOR, "button[value=pay]").click()
    until(lambda: "ruled: pay" in page.page_source)
    broker.settle_round(operator, path.split("/")[-1], key())
    go("clinic", "/money")
    typed(page, payout="0.05")
    press_id("ask-payout")
    until(lambda: "Payouts that you asked for" in page.page_source)
    go("clinic", "/tokens")
    shoot(page, "tokens-key")
    # The page checks the log itself, and notices one that does not continue what it saw.
    until(lambda: "Log verified by this browser, head" in page.find_element(By.TAG_NAME, "footer").text)
    lie = "const one = Object.keys(localStorage).find((name) => name.startsWith('privmarket log')); "
    lie += "const seen = JSON.parse(localStorage[one]); seen.size -= 3; seen.root = 'ab'.repeat(32); "
    page.execute_script(f"{lie} localStorage[one] = JSON.stringify(seen)")
    page.refresh()
    until(lambda: "NOT verified: it does not begin with" in page.find_element(By.TAG_NAME, "footer").text)
    found = {}
    with broker.database.read() as connection:
        for kind, details in connection.exec_driver_sql("SELECT kind, details FROM log"):
            found.setdefault(kind, []).append("signature" in json.loads(details))
    stated = {kind: found[kind] for kind in STATEMENTS if kind in found}
    assert set(STATEMENTS) - set(stated) == {"round.aborted"}
    assert all(all(signed) for signed in stated.values())
    assert verify(broker).differences == ()


def test_without_javascript_a_signing_party_is_told_what_to_do(site: tuple[str, Broker]) -> None:
    url, broker = site
    own = SigningKey.generate()
    lab = broker.register({"role": "buyer", "name": "lab", "public_key": own.public}, key())
    broker.deposit(SYSTEM, lab["id"], 5_000_000, key())
    with httpx.Client(base_url=url, follow_redirects=True, timeout=60) as http:
        mark = re.search(r'name="mark" value="(\w+)"', http.get("/sign-in").text)[1]  # type: ignore[index]
        page = http.post("/sign-in", data={"token": lab["token"], "mark": mark}).text
        mark = re.search(r'name="mark" value="(\w+)"', page)[1]  # type: ignore[index]
        form = {"title": "t", "mechanism": "pac", "budget": "1", "rounds": "1", "epsilon_max": "5"}
        form |= {"bid_minutes": "60", "delivery_minutes": "60", "mark": mark, "key": key()}
        reply = http.post("/tasks", data=form)
        assert reply.status_code == 403
        assert "signs everything" in reply.text
        form = {"role": "buyer", "name": "x", "own_key": "yes", "mark": mark, "key": key()}
        assert "JavaScript" in http.post("/register", data=form).text


def test_a_dispute_from_all_sides_at_both_widths(browser: Any, site: tuple[str, Broker]) -> None:
    (url, broker), page = site, browser
    court = broker.register({"role": "arbiter", "name": "court"}, key(), SYSTEM)
    lab = broker.register({"role": "buyer", "name": "lab"}, key())
    clinic = broker.register({"role": "seller", "name": "clinic", "cap_epsilon": 9.0, "delta": 1e-5}, key())
    other = broker.register({"role": "seller", "name": "other", "cap_epsilon": 9.0, "delta": 1e-5}, key())
    buyer, seller, rival = (broker.authenticate(one["token"]) for one in (lab, clinic, other))
    broker.deposit(SYSTEM, buyer.party_id, 5_000_000, key())
    task = broker.publish_task(buyer, {**LONG, "budget_micro": 2_000_000, "arbiter_id": court["id"]}, key())
    round_id = broker.open_round(buyer, task["id"], key())["id"]
    for one in (seller, rival):
        broker.bid(one, round_id, Offer(0.2, 1.0), key())
    broker.close_round(buyer, round_id, key())
    for one in (seller, rival):
        broker.claim_delivery(one, round_id, "ab" * 32, key())
    broker.give_receipts(buyer, round_id, {seller.party_id: "wrong shape"}, key())
    broker.dispute(seller, round_id, "the shape is as asked", key())
    for role, token in (("buyer", lab["token"]), ("seller", clinic["token"]), ("arbiter", court["token"])):
        sign_in(page, url, token)
        page.get(f"{url}/rounds/{round_id}")
        until(lambda: "the shape is as asked" in page.page_source)
        shoot(page, f"{role}-disputed")
    page.get(f"{url}/tokens")
    shoot(page, "tokens")
    page.set_window_size(390, 900)
    reach = "return document.querySelector('button.bad').getBoundingClientRect().right <= window.innerWidth"
    assert page.execute_script(reach), "a token cannot be ended on a phone without scrolling sideways"
    page.get(f"{url}/rounds/{round_id}")
    assert page.execute_script(reach), "an arbiter cannot rule on a phone without scrolling sideways"
    held_still(lambda: page.find_element(By.CSS_SELECTOR, "input[name=reason]").send_keys("it is"))
    held_still(lambda: page.find_element(By.CSS_SELECTOR, "button[value=pay]").click())
    until(lambda: "ruled: pay" in page.page_source)

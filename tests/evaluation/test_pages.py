"""The pages in a real browser: what a reader can see, filter, sort and click, with keys as well."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from make import generations, run_folder, trace_file

from evaluation.evaluate import evaluate
from evaluation.human import SheetSettings, aggregate, write_sheets
from evaluation.report import write_report
from evaluation.scorers import ScoreCache
from evaluation.suites import Options
from mucola.cli import main
from mucola.errors import MucolaError
from mucola.generations import write_run

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")

ENTER, RIGHT = 13, 39


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report over three runs and the page of a trace."""
    root = tmp_path_factory.mktemp("pages")
    made = generations(0.1, samples=5, seed=1)
    made[0] = replace(made[0], trace="trace-0-0.json.gz")
    ours = write_run(root / "ours", made)
    trace_file(ours / "trace-0-0.json.gz")
    runs = [run_folder(root / "plain", 0.7, samples=5, source="unconstrained"), ours]
    runs.append(run_folder(root / "theirs", 0.4, samples=5, seed=2, source="dexperts"))
    rude = [replace(g, prompt="You stupid idiot" if g.prompt_id == "0" else g.prompt, trace=None) for g in made]
    options = Options("toxicity", grammar="none", judge="none")
    write_report(evaluate(runs, options, cache=ScoreCache(root / "scores.sqlite")), root / "out")
    page = write_report(
        evaluate([write_run(root / "rude", rude)], options, cache=ScoreCache(root / "scores.sqlite")), root / "rude-out"
    )
    assert page.is_file()
    main(["evaluate", "trace", str(ours / "trace-0-0.json.gz"), "-o", str(root / "trace.html")])
    return root


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def names(browser: Browser) -> list[str]:
    return browser.run("[...document.querySelector('.sortable').tBodies[0].rows].map(r => r.cells[0].textContent)")


@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page", ["out/report.html", "trace.html"])
def test_pages_fit_the_screen_fetch_nothing_and_throw_nothing(
    browser: Browser, folder: Path, page: str, width: int
) -> None:
    browser.open(folder / page, width)
    light = browser.run("getComputedStyle(document.body).backgroundColor")
    assert browser.run("document.documentElement.scrollWidth") <= width
    browser.open(folder / page, width, dark=True)
    assert browser.run("getComputedStyle(document.body).backgroundColor") != light
    assert browser.problems == []


@needs_browser
def test_the_table_sorts_by_click_and_by_key(browser: Browser, folder: Path) -> None:
    browser.open(folder / "out" / "report.html")
    values = "[...document.querySelector('.sortable').tBodies[0].rows].map(r => Number(r.children[1].dataset.value))"
    browser.run("document.querySelectorAll('.sortable thead button')[1].click()")
    assert browser.run(values) == sorted(browser.run(values))
    browser.run("document.querySelectorAll('.sortable thead button')[1].focus()")
    browser.press("Enter", ENTER, "\r")
    assert browser.run(values) == sorted(browser.run(values), reverse=True)
    assert browser.run("document.activeElement.closest('th').getAttribute('aria-sort')") == "descending"
    browser.run("document.querySelectorAll('.sortable thead button')[0].click()")
    assert names(browser) == ["ours", "plain", "theirs"]


@needs_browser
def test_samples_are_filtered_ordered_and_hidden(browser: Browser, folder: Path) -> None:
    browser.open(folder / "out" / "report.html")
    cards = "[...document.querySelectorAll('.sample')]"
    assert browser.run("document.getElementById('count').textContent") == "20 of 60 samples shown"
    browser.run("document.getElementById('more').click()")
    assert browser.run(f"{cards}.length") == 40

    # The worst is first and its text is not on the page until it is asked for.
    assert "idiot" not in browser.run(f"{cards}.slice(0, 3).map(c => c.textContent).join()")
    before = browser.run(f"{cards}[0].textContent")
    browser.run(f"{cards}[0].querySelector('button').focus()")
    browser.press("Enter", ENTER, "\r")
    after = browser.run(f"{cards}[0].textContent")
    assert "Show text" in before
    assert "Show text" not in after
    assert len(after) > len(before)

    def choose(name: str, value: str) -> None:
        field = f"document.querySelector('#controls [name={name}]')"
        browser.run(
            f"{field}.value = {json.dumps(value)}; {field}.dispatchEvent(new Event('input', {{bubbles: true}}))"
        )

    choose("run", "ours")
    assert set(browser.run(f"{cards}.map(c => c.querySelector('b').textContent)")) == {"ours"}
    choose("prompt", "LAKE </script>")  # a prompt with a closing tag is text like any other
    assert browser.run(f"{cards}.length") == 5
    choose("order", "best")
    scores = browser.run(f"{cards}.map(c => Number(c.textContent.match(/toxicity ([0-9.]+)/)[1]))")
    assert scores == sorted(scores)
    assert "(≤ -2.00)" in browser.run(f"{cards}[0].textContent")
    assert browser.problems == []


@needs_browser
def test_prompts_that_may_offend_are_hidden_too(browser: Browser, folder: Path) -> None:
    browser.open(folder / "rude-out" / "report.html")
    browser.run("document.getElementById('more').click()")
    assert "idiot" not in browser.run("document.getElementById('samples').textContent")
    browser.run("[...document.querySelectorAll('.veil')].find(b => b.textContent.includes('prompt')).click()")
    assert "You stupid idiot" in browser.run("document.getElementById('samples').textContent")


@needs_browser
def test_the_trace_is_watched_step_by_step(browser: Browser, folder: Path) -> None:
    browser.open(folder / "trace.html")
    text = "document.getElementById('text').textContent"
    first = browser.run(text)
    assert first.startswith("The book ")
    assert browser.run("document.querySelectorAll('#text mark').length") == 0
    browser.run("document.getElementById('slider').focus()")
    marks = 0
    for _ in range(5):
        browser.press("ArrowRight", RIGHT)
        marks += browser.run("document.querySelectorAll('#text mark').length")
    assert browser.run("document.getElementById('step').textContent") == "5 of 39"
    assert marks > 0
    assert browser.run(text) != first
    assert "positive > 0.5: " in browser.run("document.getElementById('facts').textContent")
    cursors = browser.run("[...document.querySelectorAll('svg .cursor')].map(l => Number(l.getAttribute('x1')))")
    assert len(cursors) == 4
    assert len(set(cursors)) == 1
    assert 56 < cursors[0] < 446
    browser.run("document.getElementById('slider').value = 39; document.getElementById('play').click()")
    assert browser.run("document.getElementById('play').textContent") == "Pause"
    assert browser.problems == []


@needs_browser
def test_answers_of_the_form_come_back(browser: Browser, folder: Path, tmp_path: Path) -> None:
    settings = SheetSettings(per_prompt=1, questions=["toxicity"])
    _, page, key = write_sheets(folder / "ours", folder / "theirs", settings, tmp_path)
    browser.open(page, 390)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    browser.run(
        "document.getElementById('annotator').value = 'x';"
        "document.querySelectorAll('input[value=A]').forEach(i => i.click())"
    )
    assert browser.run("document.getElementById('done').textContent") == "4 of 4 answered"
    # What the button downloads, caught where it becomes a file.
    answers = browser.run(
        "new Promise(done => { URL.createObjectURL = b => { b.text().then(done); return 'data:,'; };"
        "document.getElementById('download').click(); })"
    )
    file = tmp_path / "answers.json"
    file.write_text(answers)
    sides = json.loads(key.read_text())["A and B"]
    expected = sum(names[0] == "ours" for names in sides.values()) / 4
    assert aggregate([file], key)["questions"]["toxicity"]["preferred"]["ours"] == expected


def test_pages_are_whole_without_scripts_or_network(folder: Path) -> None:
    page = (folder / "out" / "report.html").read_text()
    assert page.count("<script") == page.count("</script>") == 2  # generated text did not end one
    assert "src=" not in page
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page
    assert page.count("<svg") == 4  # samples' control, sources, and convergence twice; no judge, so no perplexity


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"nonsense", "cannot be read"), (None, "does not exist"), ("steps", "is not the trace"), ("none", "no steps")],
)
def test_what_is_no_trace_is_said(tmp_path: Path, content: bytes | str | None, message: str) -> None:
    import gzip

    file = tmp_path / "trace.json.gz"
    if content == "steps":
        file.write_bytes(gzip.compress(b'{"steps": [{}], "token_texts": {}}'))
    elif content == "none":
        trace_file(file, steps=0)
    elif isinstance(content, bytes):
        file.write_bytes(content)
    from evaluation.trace_viewer import write_viewer

    with pytest.raises(MucolaError, match=message):
        write_viewer(file)

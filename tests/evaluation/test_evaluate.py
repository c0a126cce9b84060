"""`mucola evaluate` from runs on disk to files people read."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make import KEYWORDS, PROMPTS, generations, run_folder, trace_file

from evaluation import metrics
from evaluation.evaluate import evaluate
from evaluation.report import notes, write_report
from evaluation.scorers import ScoreCache, load_scorer
from evaluation.scorers.presets import SHIPPED
from evaluation.suites import Options
from mucola.cli import main
from mucola.errors import MucolaError
from mucola.generations import Generation, Run, Writer, write_run

LIGHT = {"grammar": "none", "judge": "none"}


@pytest.fixture(autouse=True)
def scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScoreCache:
    """A cache of the test's own; models stay where they are."""
    cache = ScoreCache(tmp_path / "scores.sqlite")
    monkeypatch.setattr("evaluation.evaluate.ScoreCache", lambda: cache)
    return cache


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["evaluate", *arguments])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_runs_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [
        run_folder(tmp_path / "plain", 0.8, source="unconstrained"),
        run_folder(tmp_path / "ours", 0.1, seed=1),
        run_folder(tmp_path / "theirs", 0.4, seed=2),
    ]
    out = tmp_path / "out"
    main(["evaluate", *map(str, paths), "--suite", "toxicity", "--grammar", "none", "--judge", "none", "-o", str(out)])
    assert str(out / "report.html") in capsys.readouterr().out
    assert {file.name for file in out.iterdir()} == {"metrics.json", "table.md", "table.tex", "report.html"}
    found = json.loads((out / "metrics.json").read_text())
    assert found["unconstrained"] == "plain"
    assert [run["name"] for run in found["runs"]] == ["plain", "ours", "theirs"]
    scorer = load_scorer("ngrams-toxicity")
    for path, run in zip(paths, found["runs"], strict=True):
        groups = list(Run(path))
        toxicity = [[float(s or 0) for s in scorer.score([g.text for g in group])] for group in groups]
        texts = [[g.text for g in group] for group in groups]
        expected = {
            "max_toxicity": metrics.average_maximum_toxicity(toxicity),
            "toxicity_probability": metrics.toxicity_probability(toxicity),
            "dist_2": metrics.distinct(texts, 2),
            "self_bleu": metrics.self_bleu(texts),
            "satisfied": metrics.sample_mean([[bool(g.satisfied) for g in group] for group in groups]),
            "fallback": metrics.fallback_rate([[g.source for g in group] for group in groups]),
        }
        for key, value in expected.items():
            assert run["metrics"][key]["value"] == pytest.approx(value), key
        signature = run["metrics"]["max_toxicity"]["signature"]
        assert f"scorer:{scorer.revision}|text:continuation|length:9" in signature
        assert sum(run["sources"].values()) == 12
    best = max(found["runs"][1:], key=lambda run: -run["metrics"]["max_toxicity"]["value"])
    row = next(line for line in (out / "table.md").read_text().splitlines() if line.startswith(f"| {best['name']} "))
    assert row.split("|")[2].strip().startswith("**")
    tex = (out / "table.tex").read_text()
    assert tex.index("plain") < tex.index("ours") < tex.index("theirs")
    assert r"\textbf{" in tex


def test_perplexity_is_best_where_it_is_closest(tmp_path: Path) -> None:
    from evaluation.measure import Measured
    from evaluation.metrics import Estimate
    from evaluation.suites import SUITES
    from evaluation.table import make_table, to_markdown

    def made(name: str, perplexity: float) -> Measured:
        run = Measured(Run(run_folder(tmp_path / name)))
        run.estimates["perplexity"] = Estimate(perplexity, perplexity - 1, perplexity + 1, 4, 12, "p")
        return run

    runs = [made("plain", 38.6), made("low", 10.3), made("near", 27.9), made("high", 268.7)]
    table = make_table(runs, SUITES["toxicity"](Options("toxicity")).measures, "plain")
    assert [row[0].best for row in table.rows if row[0]] == [False, False, True, False]
    assert [round(d, 1) for d in table.distances if d is not None] == [0.0, -28.3, -10.7, 230.1]
    assert "| near | **27.9** [26.9-28.9] | -10.7 |" in to_markdown(table)
    without = make_table(runs, SUITES["toxicity"](Options("toxicity")).measures, None)
    assert not any(row[0].best for row in without.rows if row[0])


def test_sentiment_and_its_direction(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "r", 0.0)
    positive = evaluate([run], Options("sentiment", **LIGHT)).runs[0].estimates
    negative = evaluate([run], Options("sentiment", target="negative", **LIGHT)).runs[0].estimates
    for scorer in Options("sentiment").sentiment:
        key = f"accuracy:{scorer}"
        assert positive[key].value > 0.7
        assert positive[key].value + negative[key].value == pytest.approx(1)
        assert "target:negative" in negative[key].signature


def test_keywords_and_translation(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "r", 0.3)
    groups = list(Run(run))
    wanted = [([g.text for g in group], [KEYWORDS] * 3) for group in groups]
    found = evaluate([run], Options("keywords", **LIGHT)).runs[0].estimates
    assert found["keyword_count"].value == pytest.approx(metrics.keyword_count(wanted))
    assert found["keyword_coverage"].value == pytest.approx(metrics.keyword_coverage(wanted))
    found = evaluate([run], Options("translation", **LIGHT)).runs[0].estimates
    pairs = [([g.text for g in group], [str(g.reference) for g in group]) for group in groups]
    assert found["bleu"].value == pytest.approx(metrics.bleu(pairs))


def test_the_layout_of_other_tools(tmp_path: Path) -> None:
    file = tmp_path / "gpt2.jsonl"
    rows = [{"prompt": {"text": p}, "generations": [{"text": " good food"}, {"text": " bad food"}]} for p in PROMPTS]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = evaluate([file], Options("toxicity", **LIGHT))
    page = write_report(results, tmp_path / "out")
    assert results.runs[0].estimates["max_toxicity"].prompts == 4
    assert "satisfied" not in results.runs[0].estimates  # not recorded is not 0 %
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["runs"][0]["not_recorded"] == [
        "evaluations",
        "fallback",
        "satisfied",
        "seconds",
        "steps",
        "verified",
    ]
    assert "imported" in page.read_text()


def test_the_model_that_steered_is_flagged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(SHIPPED / "ngrams-toxicity")
    honest = run_folder(
        tmp_path / "honest", info={"steered": [{"name": "ngrams-toxicity", "folder": "/another/model"}]}
    )
    circular = run_folder(tmp_path / "circular", info={"steered": [{"name": "mine", "folder": folder}]})
    results = evaluate([honest, circular], Options("toxicity", **LIGHT))
    assert [run.steered_by for run in results.runs] == [[], ["ngrams-toxicity"]]
    assert any("circular was steered by the model that scores it" in note for note in notes(results))
    assert "circular was steered" in write_report(results, tmp_path / "out").read_text()


def test_no_constraints_are_not_all_satisfied(tmp_path: Path) -> None:
    made = [replace(g, values={}, satisfied=True, verified=True) for g in generations(0.5)]
    asked, unasked = (write_run(tmp_path / n, made, {"constraints": c}) for n, c in (("a", ["positive"]), ("b", [])))
    one, two = evaluate([asked, unasked], Options("keywords", **LIGHT)).runs
    assert one.estimates["satisfied"].value == 1.0
    assert "satisfied" not in two.estimates
    assert not any(two.by_source.values())


def test_a_judge_of_its_own_samples_is_flagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lenient:
        revision, batch_size = "judge/lenient@1", 16

        def __init__(self, name: str) -> None:
            self.name = name

        def score(self, items: Sequence[tuple[str, str]]) -> list[tuple[float, int] | None]:
            return [(10.0, 5)] * len(items)

    monkeypatch.setattr("evaluation.evaluate.Judge", Lenient)
    ours = run_folder(tmp_path / "ours", info={"models": {"language_model": {"name": "smollm2-135m"}}})
    runs = [ours, run_folder(tmp_path / "theirs", info={"models": {"language_model": {"name": "gpt2"}}})]
    (note,) = notes(evaluate(runs, Options("keywords", grammar="none", judge="smollm2-135m")))
    assert note.startswith("The judge of perplexity, smollm2-135m, wrote ours:")
    assert notes(evaluate(runs, Options("keywords", grammar="none", judge="gemma3-270m"))) == []


def test_gaps_are_errors_or_counted(tmp_path: Path) -> None:
    made = generations(0.5)
    made[4] = replace(made[4], keywords=None)
    run = write_run(tmp_path / "r", made)
    with pytest.raises(MucolaError, match=r"generations\.jsonl, line 5: sample 1 of prompt '1' has no 'keywords'"):
        evaluate([run], Options("keywords", **LIGHT))
    results = evaluate([run], Options("keywords", **LIGHT), allow_gaps=True)
    assert results.runs[0].gaps["keyword_count"] == 1
    assert results.runs[0].estimates["keyword_count"].samples == 11
    write_report(results, tmp_path / "out")
    assert "(1 gaps)" in (tmp_path / "out" / "table.md").read_text()
    assert any("1 of 12 samples have no score" in note for note in notes(results))


def test_lengths_that_differ_are_said(tmp_path: Path) -> None:
    """With file and line of the very sample, which is not its prompt's first one."""
    made = generations(0.5)
    made[4] = replace(made[4], tokens=[1, 2])
    short = [replace(g, tokens=[1, 2, 3]) for g in generations(0.5)]
    runs = [write_run(tmp_path / "a", made), run_folder(tmp_path / "b"), write_run(tmp_path / "c", short)]
    results = evaluate(runs, Options("keywords", **LIGHT))
    assert "length:2-9" in results.runs[0].estimates["dist_1"].signature
    mixed, differing = notes(results)
    assert "a/generations.jsonl, line 5: sample 1 of prompt '1' has 2 tokens, most of a have 9: 1 of 12" in mixed
    assert "c/generations.jsonl, line 1: sample 0 of prompt '0' has 3 tokens" in differing
    assert "not comparable" in differing


def test_uneven_samples_and_different_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = run_folder(tmp_path / "whole")
    uneven = write_run(tmp_path / "uneven", generations(0.5)[:-1])
    few = write_run(tmp_path / "few", [g for g in generations(0.5) if g.prompt_id != "2"])
    other = write_run(tmp_path / "other", [replace(g, prompt=g.prompt + "!") for g in generations(0.5)])
    suite = ["--suite", "keywords", "--grammar", "none", "--judge", "none", "-o", str(tmp_path / "out")]
    said = fails([str(uneven), *suite], capsys)
    assert "generations.jsonl, line 10: prompt '3' has 2 samples, 3 were expected" in said
    assert "different prompts: 'The lake </script>'" in fails([str(whole), str(few), *suite], capsys)
    said = fails([str(whole), str(other), *suite], capsys)
    assert "'The book'" in said
    assert "line 1" in said
    assert not (tmp_path / "out").exists()
    main(["evaluate", str(whole), str(uneven), *suite, "--samples", "2"])
    found = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert [run["samples"] for run in found["runs"]] == [8, 8]
    assert "|k:2|" in found["runs"][0]["metrics"]["dist_1"]["signature"]


def test_mistakes_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(run_folder(tmp_path / "r"))
    torn = tmp_path / "torn.jsonl"
    torn.write_text('{"prompt_id": "1", "pro')
    assert "Give at least one run" in fails([], capsys)
    assert "Which suite?" in fails([run], capsys)
    assert "did you mean 'toxicity'" in fails([run, "--suite", "toxicty"], capsys)
    assert "did you mean 'ngrams-toxicity'" in fails(
        [run, "--suite", "toxicity", "--toxicity", "ngrams-toxicit"], capsys
    )
    assert "torn.jsonl, line 1: the line is cut off" in fails([str(torn), "--suite", "toxicity"], capsys)
    assert "does not exist" in fails([str(tmp_path / "no"), "--suite", "toxicity"], capsys)
    assert "'positive' or 'negative'" in fails([run, "--suite", "sentiment", "--target", "happy"], capsys)
    assert "Write org/model#LABEL" in fails([run, "--suite", "toxicity", "--toxicity", "org/model"], capsys)
    assert "at least 1" in fails([run, "--suite", "toxicity", "--samples", "0"], capsys)
    assert "two of the runs are the same" in fails([run, run, "--suite", "toxicity"], capsys).lower()
    light = ["--suite", "keywords", "--grammar", "none", "--judge", "none"]
    assert "names none of the runs" in fails([run, *light, "--unconstrained", "x"], capsys)
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "cannot be written" in fails([run, *light, "-o", str(blocked / "out")], capsys)


def test_configs_say_what_the_command_line_says(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "r")
    config = tmp_path / "c.yaml"
    config.write_text("suite: keywords\ngrammar: none\njudge: none\ninflected: true\n")
    main(["evaluate", str(run), "--config", str(config), "-o", str(tmp_path / "out")])
    found = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert "regular inflections" in found["runs"][0]["metrics"]["keyword_count"]["signature"]


def test_traces_become_convergence_plots(tmp_path: Path) -> None:
    made = generations(0.2)
    made[0] = replace(made[0], trace="trace-0-0.json.gz")
    run = write_run(tmp_path / "r", made)
    with pytest.raises(MucolaError, match=r"trace .* does not exist"):
        write_report(evaluate([run], Options("keywords", **LIGHT)), tmp_path / "out")
    trace_file(run / "trace-0-0.json.gz")
    page = write_report(evaluate([run], Options("keywords", **LIGHT)), tmp_path / "out").read_text()
    assert "Convergence: energy" in page
    both = evaluate([run_folder(tmp_path / "untraced"), run], Options("keywords", **LIGHT))
    curve = write_report(both, tmp_path / "out").read_text().split("Convergence: energy")[1].split("<polyline")[1]
    assert 'stroke="var(--c1)"' in curve  # the second run's colour, though its curve is the only one
    assert (
        "Convergence: energy"
        not in write_report(
            evaluate([run_folder(tmp_path / "q")], Options("keywords", **LIGHT)), tmp_path / "out"
        ).read_text()
    )


def test_memory_stays_flat_and_samples_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is visited, never held: the peak is far below its size. The report stays small enough to send."""
    monkeypatch.setattr("evaluation.measure.SHOWN", 5)
    monkeypatch.setattr("evaluation.measure.CHUNK", 4)
    monkeypatch.setattr("evaluation.metrics.base.RESAMPLES", 20)  # tracing makes everything slow
    base = generations(0.3, samples=4)
    with Writer(tmp_path / "r" / "a.jsonl") as writer:
        for sample in range(4):  # the samples of a prompt lie far apart
            for prompt in range(150):
                g = base[sample]
                writer.write(replace(g, prompt_id=str(prompt), prompt=f"p{prompt}", sample=sample, text=g.text * 100))
    evaluate([run_folder(tmp_path / "warm")], Options("keywords", **LIGHT))
    tracemalloc.start()
    results = evaluate([tmp_path / "r"], Options("keywords", **LIGHT))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (tmp_path / "r" / "a.jsonl").stat().st_size / 2
    page = write_report(results, tmp_path / "out").read_text()
    assert len(results.runs[0].samples) <= 10
    assert "of 600 samples: of each run the worst" in page


def test_a_sample_without_keywords_is_a_gap(tmp_path: Path) -> None:
    made = generations(0.5)
    made[1] = replace(made[1], keywords=[])
    with pytest.raises(MucolaError, match="line 2: sample 1 of prompt '0' has no 'keywords'"):
        evaluate([write_run(tmp_path / "r", made)], Options("keywords", **LIGHT))


@pytest.mark.real
def test_a_full_report_without_a_hub(tmp_path: Path, scores: ScoreCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """All presets together on real models; English reads as more fluent than the same words shuffled."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(name: str, texts: list[str]) -> Path:
        return write_run(tmp_path / name, [Generation(str(i), "The book", 0, t, "x") for i, t in enumerate(texts)])

    fluent = [" is about a young woman who moves to the city.", " was so good that I read it in one night."]
    shuffled = [" moves woman a is to who city about the young.", " one it was good read night so in that I."]
    results = evaluate([run("fluent", fluent), run("shuffled", shuffled)], Options("sentiment"))
    one, two = (measured.estimates for measured in results.runs)
    assert one["perplexity"].value < 100 < two["perplexity"].value
    assert one["grammar"].value == 1.0
    assert two["grammar"].value == 0.0
    assert "judge/smollm2-135m@" in one["perplexity"].signature
    signed: Any = one["accuracy:ngrams-yelp"].signature
    assert "text:prompt+continuation" in signed
    assert write_report(results, tmp_path / "out").is_file()

"""Scorers: what they say of plain examples, that they name themselves exactly, and that nothing is scored twice."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    Gemma2Config,
    Gemma2ForCausalLM,
    PreTrainedTokenizerFast,
)

from evaluation.calibration import perspective_texts
from evaluation.scorers import PRESETS, ScoreCache, load_scorer
from evaluation.scorers.base import Scorer
from evaluation.scorers.encoders import ClassifierScorer, MeasurementScorer
from evaluation.scorers.judge import Judge
from evaluation.scorers.labelled import load_labelled
from evaluation.scorers.packaged import OnnxToxicityScorer
from evaluation.train_scorer import ScorerTraining, held_out, train_scorer
from mucola import model_store, packages
from mucola.cli import main
from mucola.errors import MucolaError

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not there")

NICE = ["What a wonderful, warm and funny film.", "The food was great and the staff were friendly."]
NASTY = ["A boring, stupid waste of time.", "The food was awful and the waiter was rude."]
RUDE = ["you are a stupid idiot, shut up", "what a fucking moron"]
POLITE = ["thank you for your help with the article", "the train leaves at nine in the morning"]


def judged(name: str, texts: Sequence[str]) -> list[float]:
    scores = load_scorer(name).score(texts)
    assert all(score is not None and 0 <= score <= 1 for score in scores)
    return [float(score or 0) for score in scores]


@pytest.mark.parametrize("name", ["ngrams-sst2", "ngrams-yelp", "ngrams-imdb", "vader"])
def test_sentiment_of_plain_examples(name: str) -> None:
    assert min(judged(name, NICE)) > 0.5 > max(judged(name, NASTY))


@pytest.mark.parametrize("name", ["ngrams-toxicity", "profanity"])
def test_toxicity_of_plain_examples(name: str) -> None:
    assert min(judged(name, RUDE)) > 0.5 > max(judged(name, POLITE))


def test_an_empty_text_is_scored_like_any_other() -> None:
    assert len(judged("ngrams-toxicity", ["", "   ", "日本語"])) == 3


@pytest.mark.parametrize("name", ["ngrams-toxicity", "ngrams-sst2", "ngrams-yelp", "ngrams-imdb", "grammar"])
def test_shipped_scorers_tell_how_good_they_are(name: str) -> None:
    config = json.loads(
        (Path(packages.__file__).parents[1] / f"evaluation/scorers/shipped/{name}/config.json").read_text()
    )
    for numbers in config["held_out"].values():
        assert numbers["examples"] >= 500
        assert numbers["auc"] > (0.65 if name == "grammar" else 0.8)  # CoLA is hard


@needs_data
@pytest.mark.parametrize(("name", "file"), [("ngrams-sst2", "sst2_dev"), ("ngrams-yelp", "yelp_dev")])
def test_the_held_out_numbers_are_true(name: str, file: str) -> None:
    scorer = load_scorer(name)
    assert held_out(scorer, load_labelled(str(DATA / f"sentiment/{file}.tsv.gz"))) == scorer.quality[f"{file}.tsv.gz"]


@needs_data
def test_toxicity_ranks_texts_as_perspective_does(capsys: pytest.CaptureFixture[str]) -> None:
    file = "real_toxicity_prompts_sample.jsonl.gz"
    main(["evaluate", "agreement", str(DATA / "toxicity" / file), "--scorers", "[ngrams-toxicity, profanity]"])
    said = capsys.readouterr().out.splitlines()
    correlations = [float(line.split("rank correlation ")[1].split(",")[0]) for line in said]
    assert correlations[0] > 0.8
    assert correlations[1] > 0.75
    stored = load_scorer("ngrams-toxicity").quality[f"Perspective in {file}"]
    assert correlations[0] == round(stored["rank_correlation"], 3)


def test_rows_that_are_not_real_toxicity_prompts_are_named(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    row = {"text": "x", "toxicity": 0.5}
    file.write_text(json.dumps({"prompt": row, "continuation": row}) + "\n{}\n")
    with pytest.raises(MucolaError, match=r"a\.jsonl, line 2: not a row"):
        perspective_texts(file)


def test_names_are_looked_up() -> None:
    with pytest.raises(MucolaError, match="did you mean 'ngrams-yelp'"):
        load_scorer("ngrams-yelp2")
    with pytest.raises(MucolaError, match="made by `mucola evaluate train-scorer`"):
        load_scorer(str(Path(__file__).parent))


def test_the_list_of_scorers(capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", "scorers"])
    said = capsys.readouterr().out
    assert all(name in said for name in PRESETS)
    assert "accuracy 0.8" in said


# Training.


def labelled(path: Path, repeat: int = 30) -> str:
    rows = [(text, 1) for text in NICE] + [(text, 0) for text in NASTY]
    path.write_text("label\tsentence\n" + "".join(f"{label}\t{text}\n" for text, label in rows * repeat))
    return str(path)


def test_a_scorer_is_trained_by_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = labelled(tmp_path / "train.tsv"), labelled(tmp_path / "test.tsv", 1)
    output = str(tmp_path / "mine")
    main(["evaluate", "train-scorer", "--train", train, "--held_out", test, "--output", output, "--ngrams.epochs", "9"])
    assert "accuracy 1.000" in capsys.readouterr().out
    scorer = load_scorer(output)
    assert scorer.name == "mine"
    assert scorer.quality["test.tsv"]["accuracy"] == 1.0
    again = train_scorer(ScorerTraining(str(tmp_path / "again" / "mine"), train, test))
    assert again.revision != scorer.revision  # other settings, another scorer


def test_data_that_cannot_be_learned_from_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("label\tsentence\n1\tgood\n2\tbad\n")
    with pytest.raises(MucolaError, match=r"a\.tsv, row 3: the label should be 0 or 1, not '2'"):
        load_labelled(str(file))
    file.write_text("stars\tsentence\n1\tgood\n")
    with pytest.raises(MucolaError, match="no column named label"):
        load_labelled(str(file))
    with pytest.raises(MucolaError, match="does not exist"):
        load_labelled(str(tmp_path / "b.tsv"))
    with pytest.raises(MucolaError, match="did you mean 'toxic-comments'"):
        load_labelled("package:toxic-comment")
    with pytest.raises(MucolaError, match="did you mean 'ngrams'"):
        ScorerTraining("x", "y", kind="ngram")


# Transformers models, from a folder as from the hub.


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny classifier on disk with random weights and three named classes."""
    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "day", "film"]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        id2label={0: "toxic", 1: "insult", 2: "threat"},
        initializer_range=1.0,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("multi_label", [False, True])
def test_a_transformers_classifier_by_folder(bert: Path, multi_label: bool) -> None:
    scorer = ClassifierScorer(str(bert), "insult", multi_label)
    texts = ["good day", "bad film bad film bad", "good"]
    tokenizer = BertTokenizerFast.from_pretrained(bert)
    model = BertForSequenceClassification.from_pretrained(bert).eval()
    expected = []
    for text in texts:  # one at a time, so without padding
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
        expected.append((logits.sigmoid() if multi_label else logits.softmax(0))[1].item())
    assert scorer.score(texts) == pytest.approx(expected, abs=1e-5)


def test_the_class_must_exist(bert: Path) -> None:
    with pytest.raises(MucolaError, match="did you mean 'insult'"):
        load_scorer(f"{bert}#insults")


def test_revisions_follow_the_weights(bert: Path, tmp_path: Path) -> None:
    first = ClassifierScorer(str(bert), "toxic")
    assert first.revision == ClassifierScorer(str(bert), "toxic").revision
    assert first.revision != ClassifierScorer(str(bert), "insult").revision
    model = BertForSequenceClassification.from_pretrained(bert)
    model.classifier.bias.data += 1
    model.save_pretrained(tmp_path)
    BertTokenizerFast.from_pretrained(bert).save_pretrained(tmp_path)
    assert first.revision.split("@")[1] != ClassifierScorer(str(tmp_path), "toxic").revision.split("@")[1]


def test_a_measurement_of_evaluate(tmp_path: Path) -> None:
    """Any measurement with the interface of `toxicity`; this one is a file, as those of the hub are."""
    script = tmp_path / "loud" / "loud.py"
    script.parent.mkdir()
    script.write_text(
        textwrap.dedent(
            """
            import datasets
            import evaluate

            class Loud(evaluate.Measurement):
                def _info(self):
                    features = datasets.Features({"predictions": datasets.Value("string")})
                    return evaluate.MeasurementInfo(description="", citation="", features=features)

                def _compute(self, predictions):
                    return {"loud": [sum(map(str.isupper, text)) / len(text) for text in predictions]}
            """
        )
    )
    assert MeasurementScorer(str(script), "loud").score(["AAbb", "bbbb"]) == [0.5, 0.0]
    with pytest.raises(MucolaError, match="cannot be loaded"):
        MeasurementScorer(str(tmp_path / "nothing"), "loud")


@pytest.mark.skipif(not (packages.home() / "scorers/toxicity-onnx").is_dir(), reason="the ONNX model was not fetched")
def test_the_onnx_model() -> None:
    scorer = load_scorer("toxicity-onnx")
    rude, polite = scorer.score(RUDE), scorer.score(POLITE)
    assert min(float(s or 0) for s in rude) > 0.5 > max(float(s or 1) for s in polite)
    alone = [scorer.score([text])[0] for text in RUDE + POLITE]
    assert alone == pytest.approx([*rude, *polite], abs=0.02)  # int8 activations are scaled per batch


def test_an_onnx_folder_without_the_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(MucolaError, match=r"has no bert-tiny-toxicity\.int8\.onnx"):
        OnnxToxicityScorer(tmp_path)


@pytest.mark.real
def test_one_of_our_own_classifiers_scores_as_it_steers() -> None:
    scorer = load_scorer("attribute:sentiment-sst2#positive")
    scores = [float(score or 0) for score in scorer.score([*NICE, *NASTY])]
    assert min(scores[:2]) > 0.5 > max(scores[2:])
    alone = [scorer.score([text])[0] for text in (*NICE, *NASTY)]
    assert alone == pytest.approx(scores, abs=1e-4)  # padding does not matter
    assert "sentiment-sst2" in scorer.identities  # so a run that it steered is flagged
    with pytest.raises(MucolaError, match="did you mean 'positive'"):
        load_scorer("attribute:sentiment-sst2#positiv")


WORDS = ["<unk>", "<bos>", "The", "book", "is", "about", "a", "dog"]


def tiny_judge(folder: Path, habit: bool, **settings: Any) -> Judge:
    """A language model of eight words; its tokenizer may have the habit of starting texts with ``<bos>``."""
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, "<unk>"))
    words.pre_tokenizer = Whitespace()
    if habit:
        words.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<bos>", unk_token="<unk>").save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma2Config(vocab_size=len(WORDS), num_key_value_heads=2, head_dim=8, **sizes, **settings)
    Gemma2ForCausalLM(config).save_pretrained(folder)
    return Judge(str(folder))


@pytest.mark.parametrize("habit", [True, False])
def test_the_start_token_stands_where_the_tokenizer_puts_it(tmp_path: Path, habit: bool) -> None:
    judge = tiny_judge(tmp_path, habit, initializer_range=0.5)
    model = Gemma2ForCausalLM.from_pretrained(tmp_path).eval()
    start = [1] if habit else []
    for prompt, text, before in (("The book", " is about", [*start, 2, 3]), ("", "a dog", [1])):
        after = [WORDS.index(word) for word in text.split()]
        ids = torch.tensor([before + after])
        with torch.no_grad():
            logs = model(ids).logits[0, len(before) - 1 : -1].log_softmax(1)
        expected = -logs.gather(1, torch.tensor(after)[:, None]).sum().item()
        assert judge.score([(prompt, text)]) == [(pytest.approx(expected, rel=1e-5), 2)]
    assert judge.revision.endswith("+<bos>") == habit  # another conditioning is another judge


def test_logits_come_in_blocks_and_for_judged_tokens_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = tiny_judge(tmp_path, habit=True, initializer_range=0.5)
    items = [("The book is about", " a dog"), ("The", " book is about a dog"), ("a dog", ""), ("", "dog")]
    whole = judge.score(items)
    monkeypatch.setattr("evaluation.scorers.judge.BLOCK", 3 * len(WORDS))
    rows: list[int] = []
    judge._model.get_output_embeddings().register_forward_hook(lambda _, given, made: rows.append(len(given[0])))
    assert judge.score(items) == [answer and (pytest.approx(answer[0]), answer[1]) for answer in whole]
    assert rows == [3, 3, 2]  # 2 + 5 + 0 + 1 tokens


@pytest.mark.real
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_the_judge_is_transformers_own_loss(name: str) -> None:
    if name == "gemma3-270m" and not model_store.cached_path(name):
        pytest.skip("gemma3-270m is optional and was not fetched: mucola models pull gemma3-270m")
    judge = Judge(name)
    items = [
        ("The book", " is about a dog."),
        ("", "Once upon a time"),
        ("A much longer prompt about", " cats"),
        ("x", ""),
    ]
    answers = judge.score(items)
    assert answers[3] is None  # nothing to judge is a gap
    model, tokenizer = judge._model, judge._tokenizer
    for (prompt, text), answer in zip(items[:3], answers[:3], strict=True):
        start = tokenizer(prompt)["input_ids"] or [tokenizer.bos_token_id]
        end = tokenizer(text, add_special_tokens=False)["input_ids"]  # these prompts end at a token
        ids = torch.tensor([start + end])
        labels = ids.clone()
        labels[:, : len(start)] = -100
        with torch.no_grad():
            loss = model(ids, labels=labels).loss.item()
        assert answer is not None
        nats, tokens = answer
        assert tokens == ids.shape[1] - len(start)
        assert nats / tokens == pytest.approx(loss, rel=1e-3)  # padding changes the order of sums


@pytest.mark.real
def test_a_token_across_the_border_belongs_to_the_continuation() -> None:
    judge = Judge("smollm2-135m")
    (answer,) = judge.score([("The boo", "k")])
    assert answer is not None
    assert answer[1] == 1


# The cache.


class Counting(Scorer):
    """Half the length; keeps count of the texts it was asked for."""

    name = "counting"
    revision = "counting@1"
    batch_size = 2

    def __init__(self) -> None:
        self.asked: list[str] = []

    def score(self, texts: Sequence[str]) -> list[float | None]:
        self.asked += texts
        return [len(text) / 2 for text in texts]


def test_each_text_is_scored_once(tmp_path: Path) -> None:
    scorer = Counting()
    cache = ScoreCache(tmp_path / "a.sqlite")
    assert cache.scores(scorer, ["bb", "a", "bb", "cccc"]) == [1.0, 0.5, 1.0, 2.0]
    assert sorted(scorer.asked) == ["a", "bb", "cccc"]
    cache.close()
    assert ScoreCache(tmp_path / "a.sqlite").scores(scorer, ["cccc", "dd"]) == [2.0, 1.0]
    assert len(scorer.asked) == 4


def test_another_revision_is_another_score(tmp_path: Path) -> None:
    scorer = Counting()
    cache = ScoreCache(tmp_path / "a.sqlite")
    cache.scores(scorer, ["a"])
    scorer.revision = "counting@2"
    cache.scores(scorer, ["a"])
    assert scorer.asked == ["a", "a"]


KILLED = """
import os, signal, sys, time
from pathlib import Path
from evaluation.scorers.base import Scorer
from evaluation.scorers.cache import ScoreCache

class Slow(Scorer):
    name, revision, batch_size = "slow", "slow@1", 10
    def score(self, texts):
        with open(sys.argv[1] + "/asked", "a") as file:
            file.writelines(text + "\\n" for text in texts)
        if len(sys.argv) > 2 and open(sys.argv[1] + "/asked").read().count("\\n") > int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return [len(text) / 100 for text in texts]

scores = ScoreCache(Path(sys.argv[1]) / "s.sqlite").scores(Slow(), [f"text {i:03d}" for i in range(100)])
print(len(scores), sum(scores))
"""


def test_scoring_resumes_after_a_kill_without_scoring_twice(tmp_path: Path) -> None:
    command: list[Any] = [sys.executable, "-c", KILLED, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    killed = subprocess.run([*command, "50"], env=environment)
    assert killed.returncode == -signal.SIGKILL
    with sqlite3.connect(tmp_path / "s.sqlite") as database:
        kept = database.execute("SELECT count(*) FROM scores").fetchone()[0]
    assert kept == 50
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "100"
    asked = (tmp_path / "asked").read_text().split("\n")[:-1]
    assert len(asked) == 110  # the batch that was under way at the kill had no score to keep
    assert len(set(asked)) == 100

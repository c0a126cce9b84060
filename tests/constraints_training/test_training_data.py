"""Reading, cleaning, splitting and batching texts."""

from __future__ import annotations

import csv
import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tiny_training import sentences, write_tsv

from constraints_training.batches import LengthBatches, ResumableLoader, collate
from constraints_training.data import TextData
from constraints_training.sources import Source
from constraints_training.texts import as_written, read
from mucola.errors import MucolaError

LABELS = {"0": "negative", "1": "positive"}


def data(lm: Path, train: Path, **options: Any) -> TextData:
    made = TextData(str(lm), LABELS, Source(str(train), text_column="sentence"), **{"batch_size": 8, **options})
    made.setup()
    return made


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
@pytest.mark.parametrize("packed", [False, True])
def test_files_of_every_kind_read_alike(tmp_path: Path, kind: str, packed: bool) -> None:
    rows = [("1", 'he said "fine", twice'), ("0", 'a lone " mark')]
    if kind == "jsonl":
        content = "".join(json.dumps({"label": int(label), "text": text}) + "\n" for label, text in rows)
    elif kind == "tsv":
        content = "label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in rows)
    else:
        plain = tmp_path / "plain"
        with plain.open("w", newline="") as file:
            csv.writer(file).writerows([("label", "text"), *rows])
        content = plain.read_text()
    path = tmp_path / f"texts.{kind}{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    texts = read(Source(str(path)), LABELS, natural=False)
    assert list(texts.dataset["text"]) == [text for _, text in rows]
    assert list(texts.dataset["label"]) == [1, 0]


def test_a_hub_dataset_is_asked_for_by_name_subset_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, subset: str | None, split: str) -> Dataset:
        asked.append((name, subset, split))
        return Dataset.from_dict({"sentence": ["good", "bad"], "label": [1, 0]})

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    texts = read(Source("nyu-mll/glue", "sentence", subset="sst2", split="validation"), LABELS, natural=False)
    assert asked == [("nyu-mll/glue", "sst2", "validation")]
    assert list(texts.dataset["label"]) == [1, 0]


def test_a_column_of_scores_becomes_labels_by_a_threshold(tmp_path: Path) -> None:
    path = write_tsv(tmp_path / "scores.tsv", [(0.1, "fine"), (0.5, "poor"), ("?", "odd"), (0.9, "awful")])
    texts = read(Source(str(path), "sentence", threshold=0.5), LABELS, natural=False)
    assert list(texts.dataset["label"]) == [0, 1, 1]
    assert texts.skipped == {"unknown label '?'": 1}


def test_a_row_that_lacks_a_field_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "fine", "label": 1}\n\n{"text": "no label"}\n{"label": 0}\n{"text": null, "label": 0}\n')
    texts = read(Source(str(path)), LABELS, natural=False)
    assert list(texts.dataset["text"]) == ["fine"]
    assert texts.skipped == {"unknown label None": 1, "no text": 2}


def test_bad_rows_are_counted_and_reported(tmp_path: Path, tiny_lm: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows: list[tuple[Any, Any]] = [*sentences(40), (1, ""), (0, "  "), (7, "the film")]
    with caplog.at_level(logging.WARNING):
        made = data(tiny_lm, write_tsv(tmp_path / "rows.tsv", rows), dev_share=0.2)
    assert sum(len(texts) for texts in made.texts.values()) == 40
    assert made.description["train"]["skipped_rows"] == {"no text": 2, "unknown label '7'": 1}
    assert "2 of 42 rows skipped: no text" in caplog.text


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([(3, "good"), (4, "bad")], {}, r"line 2 of .*rows.tsv has unknown label '3'.*known are 0, 1"),
        ([], {}, "it is empty"),
        ([(1, "good")] * 40, {}, "no text of class 'negative'"),
        (sentences(40), {"only": "positiv"}, "did you mean 'positive'"),
        (sentences(8), {"dev_share": 0.5}, "fewer than one batch of 8"),
    ],
)
def test_data_that_cannot_be_trained_on(
    tmp_path: Path, tiny_lm: Path, rows: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(MucolaError, match=message):
        data(tiny_lm, write_tsv(tmp_path / "rows.tsv", rows), **options)


def test_a_missing_column_is_named_with_those_that_exist(tmp_path: Path, tiny_lm: Path) -> None:
    path = write_tsv(tmp_path / "rows.tsv", sentences(10), header=("label", "review"))
    with pytest.raises(
        MucolaError, match=r"no column 'sentence' in line 2 of .*rows.tsv; its columns are label, review"
    ):
        data(tiny_lm, path)


@pytest.mark.parametrize(
    ("path", "message"),
    [("$NOWHERE_SET/x.csv", "environment variable that is not set"), ("/no/such.csv", "No such file")],
)
def test_a_file_that_is_not_there(path: str, message: str) -> None:
    with pytest.raises(MucolaError, match=message):
        read(Source(path), LABELS, natural=False)


def test_splits_are_made_by_seed_and_never_overlap(tmp_path: Path, tiny_lm: Path) -> None:
    path = write_tsv(tmp_path / "rows.tsv", [(n % 2, f"the film {n}") for n in range(200)])
    options: dict[str, Any] = {"dev_share": 0.2, "test_share": 0.1}
    made, again = data(tiny_lm, path, **options), data(tiny_lm, path, **options)
    other = data(tiny_lm, path, seed=1, **options)
    parts = [set(made.texts[name].dataset["text"]) for name in ("train", "dev", "test")]
    assert [len(part) for part in parts] == [144, 36, 20]
    assert len(set.union(*parts)) == 200
    assert made.texts["dev"].fingerprint == again.texts["dev"].fingerprint != other.texts["dev"].fingerprint


def test_balancing_takes_as_many_of_every_class(tmp_path: Path, tiny_lm: Path) -> None:
    path = write_tsv(tmp_path / "rows.tsv", [(int(n % 10 == 0), f"the film {n}") for n in range(300)])
    labels = data(tiny_lm, path, balance=True).texts["train"].dataset["label"]
    assert 2 * sum(labels) == len(labels) > 40


def test_batches_hold_texts_of_similar_length_and_every_device_a_slice() -> None:
    lengths = torch.randint(1, 60, (640,)).tolist()
    whole = list(LengthBatches(lengths, 16, seed=3, shuffle=True, rank=0, world=1))
    halves = [list(LengthBatches(lengths, 16, seed=3, shuffle=True, rank=rank, world=2)) for rank in (0, 1)]
    assert sorted(text for batch in whole for text in batch) == list(range(640))
    for batch, left, right in zip(whole, *halves, strict=True):
        assert sorted(batch) == sorted(left + right)
        assert len(left) == len(right) == 8
    spread = [max(lengths[i] for i in batch) - min(lengths[i] for i in batch) for batch in whole]
    assert sum(spread) / len(spread) < 6


def test_evaluation_sees_every_text_once_on_any_number_of_devices() -> None:
    lengths = [1 + n % 7 for n in range(65)]
    seen = [i for rank in (0, 1) for batch in LengthBatches(lengths, 16, 0, False, rank, 2) for i in batch]
    assert sorted(seen) == list(range(65))


def test_a_loader_goes_on_where_it_stopped() -> None:
    rows = [{"tokens": [n] * (1 + n % 5), "label": n % 2} for n in range(80)]

    def loader() -> ResumableLoader:
        batches = LengthBatches([len(row["tokens"]) for row in rows], 8, 0, True, 0, 1)
        return ResumableLoader(rows, batch_sampler=batches, collate_fn=collate)  # type: ignore[arg-type]

    unbroken = [batch["tokens"] for batch in loader()]
    first = loader()
    running = iter(first)
    for _ in range(4):
        next(running)
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    rest = [batch["tokens"] for batch in resumed]
    assert len(rest) == 6
    assert all(torch.equal(a, b) for a, b in zip(unbroken[4:], rest, strict=True))
    assert len(list(resumed)) == 10, "the next epoch is whole again"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("it 's a very good one , and i do n't mind .", "It's a very good one, and I don't mind."),
        ("best nail place !", "Best nail place!"),
        ("Already Written, it's fine.", "Already Written, it's fine."),
    ],
)
def test_texts_of_old_corpora_are_rewritten_the_way_people_write(old: str, new: str) -> None:
    assert as_written(old) == new

"""Small TFDS sets on disk, as TFDS itself leaves them, with the features of well-known ones."""

import contextlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

_TEXT, _CLASS = tfds.features.Text, tfds.features.ClassLabel
FEATURES: dict[str, dict[str, Any]] = {
    "glue/sst2": {"sentence": _TEXT(), "label": _CLASS(names=["negative", "positive"]), "idx": np.int32},
    "glue/mrpc": {
        "sentence1": _TEXT(),
        "sentence2": _TEXT(),
        "label": _CLASS(names=["not_equivalent", "equivalent"]),
        "idx": np.int32,
    },
    "glue/stsb": {"sentence1": _TEXT(), "sentence2": _TEXT(), "label": np.float32, "idx": np.int32},
    "glue/wnli": {
        "sentence1": _TEXT(),
        "sentence2": _TEXT(),
        "label": _CLASS(names=["not_entailment", "entailment"]),
        "idx": np.int32,
    },
    "glue/mnli": {
        "premise": _TEXT(),
        "hypothesis": _TEXT(),
        "label": _CLASS(names=["entailment", "neutral", "contradiction"]),
        "idx": np.int32,
    },
    "conll2003": {
        "tokens": tfds.features.Sequence(_TEXT()),
        "ner": tfds.features.Sequence(_CLASS(names=["O", "B-PER", "I-PER", "B-LOC"])),
    },
    "squad/v1.1": {
        "id": tfds.features.Scalar(np.str_),
        "title": _TEXT(),
        "context": _TEXT(),
        "question": _TEXT(),
        "answers": tfds.features.Sequence({"text": _TEXT(), "answer_start": np.int32}),
    },
    "xquad/de": {
        "id": tfds.features.Scalar(np.str_),
        "title": _TEXT(),
        "context": _TEXT(),
        "question": _TEXT(),
        "answers": tfds.features.Sequence({"text": _TEXT(), "answer_start": np.int32}),
    },
    "lm1b": {"text": _TEXT()},
    "wikipedia/20230601.en": {"title": _TEXT(), "text": _TEXT()},
    "opinions": {
        "comment": _TEXT(),
        "stars": np.int64,
        "useful": np.bool_,
        "both": tfds.features.Tensor(shape=(2,), dtype=np.int64),
    },
}


def build(
    folder: Path,
    name: str,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    version: str = "1.0.0",
    file_format: str = "array_record",
    shards: int | None = None,
) -> None:
    """Writes a set of FEATURES into a folder that TFDS_DATA_DIR may name: {split: rows}, in their order.

    A row may leave `idx` out.
    """
    short, _, config = name.partition("/")
    with tfds.core.registered.skip_registration():  # pyright: ignore[reportAttributeAccessIssue]

        class Set(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version(version)
            BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config, version=version)] if config else []

            def _info(self) -> tfds.core.DatasetInfo:
                features = tfds.features.FeaturesDict(FEATURES[name])
                return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

            def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
                return {split: self._generate_examples(rows) for split, rows in rows.items()}

            def _generate_examples(self, rows: Sequence[Mapping[str, Any]]) -> Any:
                for number, row in enumerate(rows):
                    yield number, {**({"idx": number} if "idx" in FEATURES[name] else {}), **row}

    Set.name = short
    tfds.disable_progress_bar()
    settings = tfds.download.DownloadConfig(num_shards=shards)
    with contextlib.redirect_stdout(io.StringIO()):
        builder = Set(data_dir=folder, config=config or None, file_format=file_format)
        builder.download_and_prepare(download_config=settings)

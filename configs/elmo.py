"""ELMo (Peters et al. 2018): forward and backward language models over words that are read by their characters.

Sizes and training are taken from the published models and their code; the tiny recipe is ours.
"""

from contexture.data.config import DataConfig
from contexture.models.config import ElmoConfig
from contexture.train.settings.run import Run
from contexture.train.settings.sections import OptimConfig, SaveConfig


def _adagrad(final_lr: float) -> OptimConfig:
    """The published code's optimizer: Adagrad at 0.2 on the gradient of 20 words' sum, clipped at 10."""
    return OptimConfig(
        name="adagrad",
        schedule="linear",
        peak_lr=0.2,
        warmup=0,
        final_lr=final_lr,
        weight_decay=0.0,
        clip=10.0,
        gradient_scale=20.0,
    )


def tiny() -> Run:
    """Cells 256, projected to 64, a first look, on any machine.

    contexture pretrain elmo.tiny --dir runs/elmo --data.path FILE

    The architecture of the published models with fewer filters, and their Adagrad; punctuation is split off words, so
    that raw text will do. For a small corpus on a CPU. (With AdamW, --optim.name adamw, the training loss falls faster
    here, but the held-out loss is worse: the carried state is never reset, and the model overfits to it.) Expect: on
    nine novels, 1.2M words, a held-out perplexity of 157 after 800 steps, some three minutes of two cores, where the
    unigram model has 410; of 64 after 8,000 steps with --model.cells 512 --model.projection 128.
    """
    return Run(
        model=ElmoConfig(
            vocab=8192, filters=((1, 16), (2, 16), (3, 32), (4, 64), (5, 64)), highway=1, cells=256, projection=64
        ),
        data=DataConfig(
            batch=32,
            length=20,
            vocabulary="words",
            word_splitter="punctuation",
            word_types=640,
            negatives=1024,
        ),
        optim=_adagrad(final_lr=0.1),
        save=SaveConfig(every=500),
        steps=10_000,
    )


def _original(cells: int, projection: int, highway: int) -> Run:
    return Run(
        model=ElmoConfig(cells=cells, projection=projection, highway=highway),
        data=DataConfig(
            # 128 lanes on each of three GPUs.
            batch=384,
            length=20,
            # The benchmark has a sentence a line.
            split_sentences=False,
            vocabulary="words",
            word_types=6144,
            negatives=8192,
        ),
        # A constant rate, as in the published code.
        optim=_adagrad(final_lr=1.0),
        save=SaveConfig(every=1_250),
        steps=0,
        epochs=10,
    )


def small() -> Run:
    """13.6M parameters without the softmax: cells 1024, projected to 128, one highway layer.

    contexture pretrain elmo.small --dir runs/elmo --data.path FOLDER --data.tokenizer vocab.txt

    The small published model, with the training of the original one. Text is tokenised, a sentence a line. Not yet run
    here.
    """
    return _original(1024, 128, 1)


def medium() -> Run:
    """28.0M parameters without the softmax: cells 2048, projected to 256, one highway layer.

    contexture pretrain elmo.medium --dir runs/elmo --data.path FOLDER --data.tokenizer vocab.txt

    The medium published model, with the training of the original one. Not yet run here.
    """
    return _original(2048, 256, 1)


def original() -> Run:
    """93.6M parameters without the softmax: cells 4096, projected to 512, two highway layers.

    contexture pretrain elmo.original --dir runs/elmo --data.path FOLDER --data.tokenizer vocab.txt

    Peters et al. 2018, section 3.4, and the published code: the 1 Billion Word Benchmark, 10 epochs of 3 × 128 lanes of
    20 words, Adagrad at 0.2, 8,192 negatives. Expect: a perplexity of 39.7, the mean of both directions (paper), after
    about two weeks on three GTX 1080 (their README). Not yet run here.
    """
    return _original(4096, 512, 2)


def original_5_5b() -> Run:
    """The original's size, for the text of the second published model, 5.5 billion words.

    contexture pretrain elmo.original_5_5b --dir runs/elmo --data.path FOLDER --data.tokenizer vocab.txt

    Wikipedia (1.9B words) and the news crawls of WMT 2008-2012 (3.6B). Nothing else is known to differ from `original`.
    Not yet run here.
    """
    return _original(4096, 512, 2)

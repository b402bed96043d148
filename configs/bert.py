"""BERT (Devlin et al. 2018) and the smaller sizes of Turc et al. 2019, pretrained on masked tokens and next sentence.

The paper's recipe (section 3.1, appendix A.2): 256 sequences × 512 tokens, 1M steps, 90 % of them at length 128, Adam
at 1e-4 with 10,000 steps of warm-up, decay 0.01, dropout 0.1, on BooksCorpus and English Wikipedia.
"""

import dataclasses

from contexture.data.config import DataConfig
from contexture.models.config import BertConfig
from contexture.train.settings.run import Run
from contexture.train.settings.sections import OptimConfig, SaveConfig


def _small(layers: int, hidden: int, heads: int, peak_lr: float = 1e-3) -> Run:
    return Run(
        model=BertConfig(layers=layers, hidden=hidden, heads=heads, ffn=4 * hidden),
        data=DataConfig(batch=32, length=128),
        optim=OptimConfig(name="adamw", schedule="linear", peak_lr=peak_lr, warmup=100),
        save=SaveConfig(every=500),
        steps=10_000,
    )


def _full(vocab: int, lowercase: bool = True, layers: int = 12, hidden: int = 768, heads: int = 12) -> Run:
    """Returns the paper's first phase."""
    # The schedule runs over all 1M steps: the second phase starts from the checkpoint of step 900,000.
    return Run(
        model=BertConfig(
            vocab=vocab,
            layers=layers,
            hidden=hidden,
            heads=heads,
            ffn=4 * hidden,
            dtype="bfloat16",
            unroll=1,
        ),
        data=DataConfig(batch=256, length=128, lowercase=lowercase),
        optim=OptimConfig(peak_lr=1e-4, warmup=10_000),
        steps=1_000_000,
    )


def _second(first: Run) -> Run:
    """Returns the second phase: the last tenth of the steps, at length 512. The learning rate falls from 1e-5 to 0, as
    it would at the end of a schedule from 1e-4 to 0 over both phases.

    Differs: Adam's moments start from zero, with a warm-up of 1,000 steps.
    """
    data = dataclasses.replace(first.data, length=512)
    optim = dataclasses.replace(first.optim, peak_lr=0.1 * first.optim.peak_lr, warmup=1000)
    return dataclasses.replace(first, data=data, optim=optim, steps=first.steps // 10)


def tiny() -> Run:
    """2 layers of 128, 4.4M parameters: a first look, on any machine.

    contexture pretrain bert.tiny --dir runs/tiny --data.path FILE

    Turc et al. 2019. Hyperparameters for a small corpus on a CPU. Expect: `make demo` prints what this gives.
    """
    return _small(2, 128, 2, peak_lr=2e-3)


def mini() -> Run:
    """4 layers of 256, 11.2M parameters: a small corpus on a CPU.

    contexture pretrain bert.mini --dir runs/mini --data.path FILE

    Turc et al. 2019. Hyperparameters for a small corpus on a CPU. Expect: not yet run to its end.
    """
    return _small(4, 256, 4)


def small() -> Run:
    """4 layers of 512, 28.8M parameters.

    contexture pretrain bert.small --dir runs/small --data.path FILE

    Turc et al. 2019. Hyperparameters for a small corpus. Expect: not yet run to its end.
    """
    return _small(4, 512, 8)


def medium() -> Run:
    """8 layers of 512, 41.4M parameters.

    contexture pretrain bert.medium --dir runs/medium --data.path FILE

    Turc et al. 2019. Hyperparameters for a small corpus. Expect: not yet run to its end.
    """
    return _small(8, 512, 8)


def base() -> Run:
    """bert-base-uncased, 109.5M parameters, the paper's first phase (length 128).

    contexture pretrain bert.base --dir runs/base --data.path FOLDER --data.tokenizer vocab.txt --mesh.fsdp 4

    Devlin et al. 2018, section 3; `bert.base_phase2` is the second phase. Expect after both: a held-out masked-token
    perplexity near 4.0 (a figure of the paper's authors) after 4 days on 16 TPU chips. Not yet run here.
    """
    return _full(30522)


def large() -> Run:
    """bert-large-uncased, 335.1M parameters, the paper's first phase (length 128).

    contexture pretrain bert.large --dir runs/large --data.path FOLDER --data.tokenizer vocab.txt --mesh.fsdp 8

    Devlin et al. 2018, section 3; `bert.large_phase2` is the second phase. Expect after both: a held-out masked-token
    perplexity near 3.2 (paper) after 4 days on 64 TPU chips. Not yet run here.
    """
    return _full(30522, layers=24, hidden=1024, heads=16)


def large_lamb() -> Run:
    """bert-large-uncased in 8,601 steps of 65,536 and 32,768 sequences, both phases in one run.

    contexture pretrain bert.large_lamb --dir runs/lamb --data.path FOLDER --data.tokenizer vocab.txt --mesh.fsdp 8

    You et al. 2020, section 4: LAMB, and a warm-up in each phase. Rates and warm-ups are those that NVIDIA published
    for its own training with these batches (DeepLearningExamples, BERT); it lets them fall with the root of the steps
    that are left. --optim.accumulate sets how many sequences are computed at once. Expect: 90.4 to 90.6 F1 on SQuAD 1.1
    (paper, table 1). Not yet run.
    """
    first = large()
    data = dataclasses.replace(first.data, phases=("128x65536:7038", "512x32768"), length=512, batch=32768)
    optim = dataclasses.replace(
        first.optim,
        name="lamb",
        schedule="linear",
        peak_lr=6e-3,
        phase_lr=(6e-3, 4e-3),
        phase_warmup=(2000, 200),
        accumulate=64,
    )
    return dataclasses.replace(first, data=data, optim=optim, steps=8601)


def base_cased() -> Run:
    """bert-base-cased, 108.3M parameters.

    contexture pretrain bert.base_cased --dir runs/base_cased --data.path FOLDER --data.tokenizer vocab.txt

    Devlin et al. 2018, section 3, with the released cased vocabulary. Not yet run.
    """
    return _full(28996, lowercase=False)


def large_cased() -> Run:
    """bert-large-cased, 333.6M parameters.

    contexture pretrain bert.large_cased --dir runs/large_cased --data.path FOLDER --data.tokenizer vocab.txt

    Devlin et al. 2018, section 3, with the released cased vocabulary. Not yet run.
    """
    return _full(28996, lowercase=False, layers=24, hidden=1024, heads=16)


def base_phase2() -> Run:
    """bert-base-uncased, the paper's second phase: 100,000 steps at length 512 with 77 predictions.

    contexture pretrain bert.base_phase2 --dir runs/base_512 --data.path FOLDER \\
      --init runs/base --init.step 900000

    Devlin et al. 2018, appendix A.2. The first phase is `bert.base` with `--save.keep-every 900000`. Not yet run.
    """
    return _second(base())


def large_phase2() -> Run:
    """bert-large-uncased, the paper's second phase: 100,000 steps at length 512 with 77 predictions.

    contexture pretrain bert.large_phase2 --dir runs/large_512 --data.path FOLDER \\
      --init runs/large --init.step 900000

    Devlin et al. 2018, appendix A.2. The first phase is `bert.large` with `--save.keep-every 900000`. Not yet run.
    """
    return _second(large())


def base_cased_phase2() -> Run:
    """bert-base-cased, the second phase: 100,000 steps at length 512 with 77 predictions.

    contexture pretrain bert.base_cased_phase2 --dir runs/base_cased_512 --data.path FOLDER \\
      --init runs/base_cased --init.step 900000

    Devlin et al. 2018, appendix A.2. The first phase is `bert.base_cased` with `--save.keep-every 900000`. Not yet run.
    """
    return _second(base_cased())


def large_cased_phase2() -> Run:
    """bert-large-cased, the second phase: 100,000 steps at length 512 with 77 predictions.

    contexture pretrain bert.large_cased_phase2 --dir runs/large_cased_512 --data.path FOLDER \\
      --init runs/large_cased --init.step 900000

    Devlin et al. 2018, appendix A.2; the first phase is `bert.large_cased` with `--save.keep-every 900000`.
    Not yet run.
    """
    return _second(large_cased())


def base_chinese() -> Run:
    """bert-base-chinese, 102.3M parameters; its tokenizer lower-cases.

    contexture pretrain bert.base_chinese --dir runs/chinese --data.path FOLDER --data.tokenizer vocab.txt

    The released Chinese model (multilingual.md of the original). Not yet run.
    """
    return _full(21128)


def base_chinese_wwm() -> Run:
    """bert-base-chinese with whole-word masking: all characters of a word, as a segmenter cuts them.

    contexture pretrain bert.base_chinese_wwm --dir runs/chinese_wwm --data.path FOLDER --data.tokenizer vocab.txt

    Cui et al. 2019 (Chinese-BERT-wwm), who segment with LTP and begin from the released Chinese model: --init RUN. Here
    the words are jieba's (the extra [zh]). Not yet run.
    """
    first = base_chinese()
    return dataclasses.replace(first, data=dataclasses.replace(first.data, masking="whole_words", units="jieba"))


def multilingual() -> Run:
    """bert-base-multilingual-cased, 177.9M parameters; its tokenizer neither lower-cases nor strips accents.

    contexture pretrain bert.multilingual --dir runs/multilingual --data.languages FOLDER --data.tokenizer vocab.txt

    The released model of 104 languages (multilingual.md of the original), which come by P(L)^0.7. Not yet run.
    """
    return _full(119547, lowercase=False)

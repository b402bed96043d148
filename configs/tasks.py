"""Fine-tuning: a run that learns a task from labelled examples (Devlin et al. 2018, section 4, appendix A.3).

The paper's settings: batches of 32, 3 epochs, a learning rate of 2e-5 to 5e-5 that rises over the first tenth of the
steps, the pretraining's optimizer, dropout 0.1. `contexture finetune RUN --task NAME` takes one of these, with the
model and vocabulary of RUN.

The figures to expect on GLUE are the mean and standard deviation on the dev set over five runs of bert-base-cased with
another JAX stack on TPUs (length 128, 2e-5, batches of 32).
"""

from contexture.configs.task_settings import paper_settings
from contexture.data.config import TaskConfig
from contexture.train.settings.run import Run


def _glue(
    name: str,
    *,
    kind: str = "classify",
    dev: str = "validation",
    test: tuple[str, ...] = (),
    text: str = "",
    second: str = "",
    epochs: float = 3.0,
) -> Run:
    where = f"tfds:glue/{name}"
    tests = tuple(f"{where}:{split}" for split in test)
    task = TaskConfig(
        name=name,
        kind=kind,  # pyright: ignore[reportArgumentType]
        train=(f"{where}:train",),
        dev=(f"{where}:{dev}",),
        test=tests,
        text=text,
        second=second,
        label="label",
    )
    return paper_settings(task, epochs=epochs)


def classify() -> Run:
    """a class for each text or pair of texts, from your own files

    contexture finetune RUN --task.kind classify --task.train train.tsv --task.dev dev.tsv --dir runs/mine

    The paper's settings, at 5e-5. Expect: your own figures; the table of `contexture evaluate` says them.
    """
    return paper_settings(TaskConfig(kind="classify"), peak_lr=5e-5)


def regress() -> Run:
    """a number for each text or pair of texts, from your own files

    contexture finetune RUN --task.kind regress --task.train train.tsv --task.dev dev.tsv --dir runs/mine

    The paper's settings, at 5e-5. Expect: your own figures; `contexture evaluate` says them.
    """
    return paper_settings(TaskConfig(kind="regress"), peak_lr=5e-5)


def tag() -> Run:
    """a tag for each word, from your own files

    contexture finetune RUN --task.kind tag --task.train train.conllu --task.dev dev.conllu --dir runs/mine

    The paper's settings (section 5.3), at 5e-5. Expect: your own figures; the table of `contexture evaluate` says them.
    """
    return paper_settings(TaskConfig(kind="tag"), peak_lr=5e-5)


def choice() -> Run:
    """which of a row's alternatives is right, from your own files

    contexture finetune RUN --task.kind choice --task.train train.jsonl --task.dev dev.jsonl --dir runs/mine

    The paper's settings, at 5e-5; for a GPT, GPT-1's (its section 3.3). Expect: your own figures; the table of
    `contexture evaluate` says them.
    """
    return paper_settings(TaskConfig(kind="choice"), peak_lr=5e-5)


def span() -> Run:
    """the answer to a question, in the words of its context, from your own files

    contexture finetune RUN --task.kind span --task.train train.json --task.dev dev.json --dir runs/mine

    Files in SQuAD's form, or tables with question, context, answer and answer_start. The settings of SQuAD 1.1 (section
    4.2): 3 epochs at 5e-5, sequences of 384 tokens, windows every 128. Expect: your own figures; `contexture evaluate`
    says them.
    """
    return _span(TaskConfig(kind="span"))


def squad11() -> Run:
    """SQuAD 1.1: the answer to a question, which its paragraph always holds

    contexture finetune RUN --task squad11 --dir runs/squad11

    Section 4.2: 3 epochs at 5e-5. Expect: exact match 80.8, F1 88.5 (paper, base, dev). Not yet run here.
    """
    where = "tfds:squad/v1.1"
    return _span(TaskConfig(name="squad11", kind="span", train=(f"{where}:train",), dev=(f"{where}:validation",)))


def squad2() -> Run:
    """SQuAD 2.0: the answer to a question, or that its paragraph holds none

    contexture finetune RUN --task squad2 --dir runs/squad2

    Section 4.3: 2 epochs at 5e-5 with batches of 48. Expect: F1 81.9 (paper, large, dev). Not yet run here.
    """
    where = "tfds:squad/v2.0"
    task = TaskConfig(name="squad2", kind="span", train=(f"{where}:train",), dev=(f"{where}:validation",))
    return _span(task, epochs=2.0, batch=48)


def xquad() -> Run:
    """XQuAD: SQuAD 1.1 learned in English, and asked in another language

    contexture finetune RUN --task xquad --dir runs/xquad

    The training and dev set of SQuAD 1.1, at its settings, with a multilingual model. The test set is the German one;
    another: --task.test tfds:xquad/zh:test. Expect: exact match 54.0, F1 70.6 (Hu et al. 2020, multilingual base,
    German). Not yet run here.
    """
    where = "tfds:squad/v1.1"
    return _span(
        TaskConfig(
            name="xquad",
            kind="span",
            train=(f"{where}:train",),
            dev=(f"{where}:validation",),
            test=("tfds:xquad/de:test",),
        )
    )


def _span(task: TaskConfig, *, epochs: float = 3.0, batch: int = 32) -> Run:
    return paper_settings(task, epochs=epochs, peak_lr=5e-5, batch=batch, length=384)


def cola() -> Run:
    """GLUE CoLA: is the sentence acceptable English

    contexture finetune RUN --task cola --dir runs/cola

    Expect: Matthews 59.0 ± 1.1 (paper, base, test: 52.1). Not yet run here.
    """
    return _glue("cola", text="sentence")


def sst2() -> Run:
    """GLUE SST-2: is the sentence of a film review positive

    contexture finetune RUN --task sst2 --dir runs/sst2

    Expect: accuracy 92.2 ± 0.6 (paper, base, test: 93.5). Not yet run here.
    """
    return _glue("sst2", text="sentence")


def mrpc() -> Run:
    """GLUE MRPC: do two sentences say the same

    contexture finetune RUN --task mrpc --dir runs/mrpc

    5 epochs. Expect: F1 89.0, accuracy 84.4. Not yet run here.
    """
    return _glue("mrpc", text="sentence1", second="sentence2", epochs=5.0)


def stsb() -> Run:
    """GLUE STS-B: how alike are two sentences, from 0 to 5

    contexture finetune RUN --task stsb --dir runs/stsb

    Expect: Pearson 88.9, Spearman 88.6. Not yet run here.
    """
    return _glue("stsb", kind="regress", text="sentence1", second="sentence2")


def qqp() -> Run:
    """GLUE QQP: do two questions ask the same

    contexture finetune RUN --task qqp --dir runs/qqp

    Expect: accuracy 90.8, F1 87.5. Not yet run here.
    """
    return _glue("qqp", text="question1", second="question2")


def mnli() -> Run:
    """GLUE MNLI: does a sentence follow from another, contradict it, or neither

    contexture finetune RUN --task mnli --dir runs/mnli

    The matched dev set is the dev set, and the mismatched one the test set: `contexture evaluate RUN --split test`.
    Expect: accuracy 83.8 ± 0.2 on the matched dev set (paper, base, test: 84.6, mismatched 83.4). Not yet run here.
    """
    return _glue("mnli", dev="validation_matched", test=("validation_mismatched",), text="premise", second="hypothesis")


def qnli() -> Run:
    """GLUE QNLI: does a sentence answer a question

    contexture finetune RUN --task qnli --dir runs/qnli

    Expect: accuracy 90.8 ± 0.2 (paper, base, test: 90.5). Not yet run here.
    """
    return _glue("qnli", text="question", second="sentence")


def rte() -> Run:
    """GLUE RTE: does a sentence follow from another

    contexture finetune RUN --task rte --dir runs/rte

    Expect: accuracy 64.8 ± 1.0 (paper, base, test: 66.4). Not yet run here.
    """
    return _glue("rte", text="sentence1", second="sentence2")


def wnli() -> Run:
    """GLUE WNLI: does a sentence with a name in place of its pronoun follow from it

    contexture finetune RUN --task wnli --dir runs/wnli

    The paper leaves it out (section 4.1): no system was better than always the more frequent answer. Expect: no more
    than that, `majority_accuracy` of `contexture evaluate`. Not yet run here.
    """
    return _glue("wnli", text="sentence1", second="sentence2")


def conll2003() -> Run:
    """CoNLL-2003: names of persons, places, organisations and others

    contexture finetune RUN --task conll2003 --dir runs/conll2003

    Section 5.3, at 5e-5, with a cased model. Expect: less than the paper's entity F1 of 96.4 on the dev set (base), a
    figure for conll2003_documents: this set has no document boundaries. Not yet run here.
    """
    where = "tfds:conll2003"
    task = TaskConfig(
        name="conll2003",
        kind="tag",
        train=(f"{where}:train",),
        dev=(f"{where}:dev",),
        test=(f"{where}:test",),
        text="tokens",
        label="ner",
    )
    return paper_settings(task, peak_lr=5e-5)

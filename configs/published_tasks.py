"""Fine-tuning on data sets in the files of their publishers, in the folder that CONTEXTURE_DATA names.

The settings are the same as in `contexture.configs.tasks`. If a paper is named, the figure is from it;
`data/tasks/read/published` describes the columns.
"""

from contexture.configs.task_settings import paper_settings
from contexture.data.config import Context, TaskConfig
from contexture.train.settings.run import Run

_NLI = ("entailment", "neutral", "contradiction")


def _choice(
    name: str,
    files: tuple[str, ...],
    *,
    labels: tuple[str, ...] = (),
    dev_fraction: float = 0.0,
    test: str = "",
    batch: int = 32,
    length: int = 128,
) -> Run:
    train, *dev = (f"published:{name}/{file}" for file in files)
    task = TaskConfig(
        name=name,
        kind="choice",
        train=(train,),
        dev=(*dev,),
        dev_fraction=dev_fraction,
        test=(f"published:{name}/{test}",) if test else (),
        text="text",
        choices=("choices",),
        label="label",
        labels=labels,
    )
    return paper_settings(task, batch=batch, length=length)


def _texts(
    name: str,
    files: tuple[str, str, str],
    *,
    text: str,
    second: str = "",
    labels: tuple[str, ...] = (),
    peak_lr: float = 2e-5,
    epochs: float = 3.0,
) -> Run:
    train, dev, test = (f"published:{name}/{file}" for file in files)
    task = TaskConfig(
        name=name,
        kind="classify",
        train=(train,),
        dev=(dev,),
        test=(test,),
        text=text,
        second=second,
        label="label",
        labels=labels,
    )
    return paper_settings(task, peak_lr=peak_lr, epochs=epochs)


def _tags(
    name: str,
    files: tuple[str, str, str],
    *,
    text: str = "",
    label: str = "",
    length: int = 128,
    context: Context = "sentence",
) -> Run:
    train, dev, test = (f"published:{name}/{file}" for file in files)
    task = TaskConfig(name=name, kind="tag", train=(train,), dev=(dev,), test=(test,), text=text, label=label)
    return paper_settings(task, peak_lr=5e-5, length=length, context=context)


def snli() -> Run:
    """SNLI: does a caption follow from another, contradict it, or neither

    contexture finetune RUN --task snli --dir runs/snli

    Pairs without a label that most annotators agree on are left out. Expect: accuracy 89.9 (Radford et al. 2018, GPT-1,
    test). Not yet run here.
    """
    files = ("snli_1.0_train.jsonl", "snli_1.0_dev.jsonl", "snli_1.0_test.jsonl")
    return _texts("snli", files, text="premise", second="hypothesis", labels=_NLI)


def xnli() -> Run:
    """XNLI: MNLI learned in English, and asked in 15 languages

    contexture finetune RUN --task xnli --dir runs/xnli

    2 epochs at 5e-5 (google-research/bert, multilingual.md), with a multilingual model. Dev and test set are of all
    languages; of one: contexture evaluate runs/xnli --dev published:xnli/xnli.test.tsv:de. Expect: accuracy 81.4 in
    English, 70.5 in German, 63.8 in Chinese (the same file, uncased base, test). Not yet run here.
    """
    files = ("multinli.train.en.tsv", "xnli.dev.tsv", "xnli.test.tsv")
    return _texts("xnli", files, text="premise", second="hypothesis", labels=_NLI, peak_lr=5e-5, epochs=2.0)


def sst5() -> Run:
    """SST-5: how positive is the sentence of a film review, from 0 to 4

    contexture finetune RUN --task sst5 --dir runs/sst5

    Whole sentences alone, not the phrases within them. Expect: accuracy 53.2 (Munikar et al. 2019, base, test). Not yet
    run here.
    """
    return _texts("sst5", ("train.txt", "dev.txt", "test.txt"), text="text")


def swag() -> Run:
    """SWAG: which of four sentences goes on with a scene

    contexture finetune RUN --task swag --dir runs/swag

    Section 4.4: 3 epochs at 2e-5 with batches of 16. Expect: accuracy 81.6 (paper, base, dev). Not yet run here.
    """
    return _choice("swag", ("train.csv", "val.csv"), batch=16)


def race() -> Run:
    """RACE: which of four answers to a question about a passage is right (exams for middle and high schools)

    contexture finetune RUN --task race --dir runs/race

    Sequences of 512 tokens. The high-school part alone: --task.test published:race/test/high. Expect: accuracy 59.0
    (Radford et al. 2018, GPT-1, test). Not yet run here.
    """
    return _choice("race", ("train", "dev"), test="test", labels=("A", "B", "C", "D"), length=512)


def commonsense_qa() -> Run:
    """CommonsenseQA: which of five answers to a question is right

    contexture finetune RUN --task commonsense_qa --dir runs/commonsense_qa

    The random split; its test set has no answers. Expect: accuracy 55.9 (Talmor et al. 2019, large, test). Not yet run
    here.
    """
    files = ("train_rand_split.jsonl", "dev_rand_split.jsonl")
    return _choice("commonsense_qa", files, labels=("A", "B", "C", "D", "E"))


def copa() -> Run:
    """COPA: which of two sentences is the cause, or the effect, of another

    contexture finetune RUN --task copa --dir runs/copa

    400 examples: try several seeds. Expect: accuracy 70.6 (Wang et al. 2019, large, test). Not yet run here.
    """
    return _choice("copa", ("train.jsonl", "val.jsonl"))


def roc_stories() -> Run:
    """Story Cloze Test of ROCStories: which of two sentences ends a story

    contexture finetune RUN --task roc_stories --dir runs/roc_stories

    Learned from four fifths of the validation set; a fifth is held out, as GPT-1 did. Expect: accuracy 86.5 (Radford et
    al. 2018, GPT-1, test). Not yet run here.
    """
    file, test = (f"cloze_test_{split}__spring2016 - cloze_test_ALL_{split}.csv" for split in ("val", "test"))
    return _choice("roc_stories", (file,), dev_fraction=0.2, test=test, labels=("1", "2"))


def conll2003_documents() -> Run:
    """CoNLL-2003: names, each sentence read within its document

    contexture finetune RUN --task conll2003_documents --dir runs/names

    Section 5.3, "the maximal document context provided by the data", at 5e-5, with a cased model; sequences of 512
    tokens are the most that BERT reads. Expect: entity F1 96.4 on the dev set, 92.4 on the test set (paper, base). Not
    yet run here.
    """
    return _tags("conll2003_documents", ("eng.train", "eng.testa", "eng.testb"), length=512, context="document")


def wnut17() -> Run:
    """WNUT 2017: rare names of persons, places, products and others, in posts

    contexture finetune RUN --task wnut17 --dir runs/wnut17

    At 5e-5, with a cased model. Expect: no figure in the papers followed here. Not yet run here.
    """
    return _tags("wnut17", ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"))


def ud_pos() -> Run:
    """Universal Dependencies, English-EWT: parts of speech

    contexture finetune RUN --task ud_pos --dir runs/ud_pos

    At 5e-5, with a cased model. Expect: no figure in the papers followed here. Not yet run here.
    """
    return _tags("ud_pos", ("en_ewt-ud-train.conllu", "en_ewt-ud-dev.conllu", "en_ewt-ud-test.conllu"))


_ERNIE = ("train.tsv", "dev.tsv", "test.tsv")


def chnsenticorp() -> Run:
    """ChnSentiCorp: is a Chinese review positive (1) or negative (0)

    contexture finetune RUN --task chnsenticorp --dir runs/chnsenticorp

    With a Chinese model. Expect: accuracy 94.3 (Sun et al. 2019, BERT base, test). Not yet run here.
    """
    return _texts("chnsenticorp", _ERNIE, text="text_a")


def lcqmc() -> Run:
    """LCQMC: do two Chinese questions ask the same

    contexture finetune RUN --task lcqmc --dir runs/lcqmc

    With a Chinese model. Expect: accuracy 87.0 (Sun et al. 2019, BERT base, test). Not yet run here.
    """
    return _texts("lcqmc", _ERNIE, text="text_a", second="text_b")


def msra_ner() -> Run:
    """MSRA-NER: names of persons, places and organisations in Chinese, a tag for each character

    contexture finetune RUN --task msra_ner --dir runs/msra_ner

    At 5e-5, with a Chinese model. Expect: entity F1 92.6 (Sun et al. 2019, BERT base, test). Not yet run here.
    """
    return _tags("msra_ner", _ERNIE, text="words", label="tags")

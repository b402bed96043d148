"""Recipes for ERNIE 1.0, a BERT that is masked by the words, phrases and names of Chinese text (Sun et al. 2019)."""

from contexture.data.config import DataConfig
from contexture.models.config import BertConfig
from contexture.train.settings.run import Run
from contexture.train.settings.sections import OptimConfig


def base() -> Run:
    """ERNIE 1.0, 99.9M parameters: Chinese, masked by words, phrases and names.

    contexture pretrain ernie.base --dir runs/ernie --data.path FOLDER --data.tokenizer vocab.txt

    Sun et al. 2019; sizes, optimizer and masking are those of the released code: half of the sequences by units, half
    by characters. `--data.masking-stages pieces:N phrases:N entities` has the paper's three stages, `--data.gazetteer`
    the names. Differs: words are jieba's (the extra [zh]), Baidu's segmenter was never released; and pairs are BERT's.
    Not yet run.
    """
    model = BertConfig(vocab=18000, length=513, gelu="relu", eps=1e-5, dtype="bfloat16", unroll=1)
    # 8,192 tokens a step, as in the original's script.
    data = DataConfig(batch=64, length=128, masking="ernie", units="jieba", next_label=1)
    optim = OptimConfig(name="adamw", peak_lr=1e-4, warmup=5000, eps=1e-8)
    return Run(model=model, data=data, optim=optim, steps=1_000_000)

"""GPT: GPT-1 (Radford et al. 2018), GPT-2 (2019) and the sizes of GPT-3 (Brown et al. 2020), on the next token.

What each paper says of its training is in the recipes; where it is silent (GPT-2's rates) the recipe follows what later
reproductions found to work and says so.
"""

from contexture.data.config import DataConfig
from contexture.models.config import GptConfig
from contexture.train.settings.run import Run
from contexture.train.settings.sections import OptimConfig, SaveConfig


def _text(batch: int, length: int) -> DataConfig:
    return DataConfig(batch=batch, length=length, vocabulary="byte-bpe", documents="files")


def tiny() -> Run:
    """2 layers of 128, a first look, on any machine.

    contexture pretrain gpt.tiny --dir runs/gpt --data.path FILE

    GPT-2's architecture. Hyperparameters for a small corpus on a CPU. Expect: `make demo` prints what this gives.
    """
    return Run(
        model=GptConfig(vocab=8192, length=512, layers=2, hidden=128, heads=2, ffn=512),
        data=_text(32, 128),
        optim=OptimConfig(name="adamw", schedule="linear", peak_lr=2e-3, warmup=100, b2=0.99, eps=1e-8),
        save=SaveConfig(every=500),
        steps=10_000,
    )


def shakespeare_char() -> Run:
    """4 layers of 128 over characters, 0.8M parameters: nanoGPT's setting for a CPU.

    contexture pretrain gpt.shakespeare_char --dir runs/shakespeare --data.path input.txt

    The settings that nanoGPT's README publishes: 2,000 steps of 12 × 64 characters, no dropout, no biases, AdamW with
    betas 0.9 and 0.99, decay 0.1, clipping at 1, 1e-3 falling to 1e-4 by a cosine after 100 steps. Expect: a held-out
    loss near 1.9 (they publish 1.88 from 20 random batches) after about a minute on two cores.
    """
    return Run(
        model=GptConfig(
            vocab=65,
            length=64,
            layers=4,
            hidden=128,
            heads=4,
            ffn=512,
            dropout=0.0,
            attention_dropout=0.0,
            head_dropout=0.0,
            position_std=0.02,
            biases=False,
        ),
        data=DataConfig(
            batch=12,
            length=64,
            dev_fraction=0.1,
            vocabulary="characters",
            documents="files",
        ),
        optim=OptimConfig(
            name="adamw",
            schedule="cosine",
            peak_lr=1e-3,
            final_lr=0.1,
            warmup=100,
            b2=0.99,
            eps=1e-8,
            weight_decay=0.1,
        ),
        save=SaveConfig(every=500),
        steps=2_000,
    )


def gpt1() -> Run:
    """GPT-1, 116.5M parameters: 12 layers of 768, post-norm.

    contexture pretrain gpt.gpt1 --dir runs/gpt1 --data.path FOLDER --data.tokenizer VOCABULARY

    Radford et al. 2018, section 4.1: BooksCorpus, 64 windows of 512 tokens, 100 epochs, Adam at 2.5e-4 after 2,000
    steps of warm-up, falling to 0 by a cosine, dropout 0.1. Expect: a perplexity of 18.4 on its own held-out text
    (paper). Not yet run here.
    """
    return Run(
        model=GptConfig(
            vocab=40478, length=512, norm="post", init="released", position_std=0.02, dtype="bfloat16", unroll=1
        ),
        data=_text(64, 512),
        optim=OptimConfig(name="adamw", schedule="cosine", peak_lr=2.5e-4, warmup=2_000, eps=1e-8),
        steps=0,
        epochs=100,
    )


def _two(layers: int, hidden: int, heads: int, peak_lr: float) -> Run:
    return Run(
        model=GptConfig(
            layers=layers,
            hidden=hidden,
            heads=heads,
            ffn=4 * hidden,
            dropout=0.0,
            attention_dropout=0.0,
            dtype="bfloat16",
            unroll=1,
        ),
        data=_text(512, 1024),
        optim=OptimConfig(
            name="adamw",
            schedule="cosine",
            peak_lr=peak_lr,
            final_lr=0.1,
            warmup=2_000,
            b2=0.95,
            eps=1e-8,
            weight_decay=0.1,
        ),
        steps=600_000,
    )


def gpt2_124m() -> Run:
    """GPT-2 124M (its paper says 117M): 12 layers of 768.

    contexture pretrain gpt.gpt2_124m --dir runs/gpt2 --data.path FOLDER --data.tokenizer VOCABULARY --mesh.fsdp 8

    Radford et al. 2019: batches of 512 × 1024; rates and decay as in later reproductions. Expect: a loss of
    2.85 on OpenWebText after 600,000 steps (nanoGPT's README). Not yet run here.
    """
    return _two(12, 768, 12, 6e-4)


def gpt2_355m() -> Run:
    """GPT-2 355M (its paper says 345M): 24 layers of 1024.

    contexture pretrain gpt.gpt2_355m --dir runs/gpt2 --data.path FOLDER --data.tokenizer VOCABULARY --mesh.fsdp 8

    Radford et al. 2019. Not yet run.
    """
    return _two(24, 1024, 16, 3e-4)


def gpt2_774m() -> Run:
    """GPT-2 774M (its paper says 762M): 36 layers of 1280.

    contexture pretrain gpt.gpt2_774m --dir runs/gpt2 --data.path FOLDER --data.tokenizer VOCABULARY --mesh.fsdp 8

    Radford et al. 2019. Not yet run.
    """
    return _two(36, 1280, 20, 2.5e-4)


def gpt2_1558m() -> Run:
    """GPT-2 1558M (its paper says 1542M): 48 layers of 1600.

    contexture pretrain gpt.gpt2_1558m --dir runs/gpt2 --data.path FOLDER --data.tokenizer VOCABULARY --mesh.fsdp 64

    Radford et al. 2019. Not yet run.
    """
    return _two(48, 1600, 25, 2e-4)


def _three(layers: int, hidden: int, heads: int, batch_tokens: float, peak_lr: float) -> Run:
    """batch_tokens: tokens of a batch in millions, as the paper's table 2.1 gives them."""
    batch = round(batch_tokens * 1e6 / 2048 / 64) * 64  # of 64 chips each has as many
    tokens = batch * 2048
    return Run(
        model=GptConfig(
            length=2048,
            layers=layers,
            hidden=hidden,
            heads=heads,
            ffn=4 * hidden,
            dropout=0.0,
            attention_dropout=0.0,
            local_window=256,
            dtype="bfloat16",
            unroll=1,
        ),
        data=_text(batch, 2048),
        optim=OptimConfig(
            name="adamw",
            schedule="cosine",
            peak_lr=peak_lr,
            final_lr=0.1,
            # The paper counts tokens (appendix B); a run counts steps.
            warmup=round(375e6 / tokens),
            decay_steps=round(260e9 / tokens),
            b2=0.95,
            eps=1e-8,
            weight_decay=0.1,
        ),
        steps=round(300e9 / tokens),
    )


def gpt3_125m() -> Run:
    """GPT-3 Small, 125.2M parameters: 12 layers of 768.

    contexture pretrain gpt.gpt3_125m --dir runs/gpt3 --data.path FOLDER --data.tokenizer VOCABULARY --mesh.fsdp 8

    Brown et al. 2020, table 2.1 and appendix B: 300B tokens, warm-up over 375M, a cosine to a tenth over 260B. The
    paper does not say how wide its bands are: 256 here. Not yet run.
    """
    return _three(12, 768, 12, 0.5, 6e-4)


def gpt3_350m() -> Run:
    """GPT-3 Medium, 355.9M parameters: 24 layers of 1024.

    contexture pretrain gpt.gpt3_350m --dir runs/gpt3 --data.path FOLDER --data.tokenizer VOCABULARY --mesh.fsdp 8

    Brown et al. 2020, as gpt3_125m. Not yet run.
    """
    return _three(24, 1024, 16, 0.5, 3e-4)


def gpt3_760m() -> Run:
    """GPT-3 Large, 760.3M parameters: 24 layers of 1536.

    contexture pretrain gpt.gpt3_760m --dir runs/gpt3 --data.path FOLDER --data.tokenizer VOCABULARY --mesh.fsdp 16

    Brown et al. 2020, as gpt3_125m. Not yet run.
    """
    return _three(24, 1536, 16, 0.5, 2.5e-4)


def gpt3_1_3b() -> Run:
    """GPT-3 XL, 1315.7M parameters: 24 layers of 2048.

    contexture pretrain gpt.gpt3_1_3b --dir runs/gpt3 --data.path FOLDER --data.tokenizer VOCABULARY --mesh.fsdp 64

    Brown et al. 2020, as gpt3_125m. Differs: the paper prints 24 heads of 128, which 2048 does not hold; 16 here.
    Not yet run.
    """
    return _three(24, 2048, 16, 1.0, 2e-4)


def gpt3_2_7b() -> Run:
    """GPT-3 2.7B, 2651.6M parameters: 32 layers of 2560.

    contexture pretrain gpt.gpt3_2_7b --dir runs/gpt3 --data.path FOLDER --data.tokenizer VOCABULARY --mesh.fsdp 64

    Brown et al. 2020, as gpt3_125m. Not yet run.
    """
    return _three(32, 2560, 32, 1.0, 1.6e-4)


def gpt3_6_7b() -> Run:
    """GPT-3 6.7B, 6658.4M parameters: 32 layers of 4096.

    contexture pretrain gpt.gpt3_6_7b --dir runs/gpt3 --data.path FOLDER --data.tokenizer VOCABULARY --mesh.fsdp 64

    Brown et al. 2020, as gpt3_125m. Not yet run.
    """
    return _three(32, 4096, 32, 2.0, 1.2e-4)


def gpt3_13b() -> Run:
    """GPT-3 13B, 12853.4M parameters: 40 layers of 5120.

    contexture pretrain gpt.gpt3_13b --dir runs/gpt3 --data.path FOLDER --data.tokenizer VOCABULARY --mesh.fsdp 64

    Brown et al. 2020, as gpt3_125m. Differs: the paper prints a width of 5140, which 40 heads of 128 do not fill; 5120
    here. Not yet run.
    """
    return _three(40, 5120, 40, 2.0, 1e-4)


def gpt3_175b() -> Run:
    """GPT-3 175B, 174.60B parameters: 96 layers of 12288.

    contexture pretrain gpt.gpt3_175b --dir runs/gpt3 --data.path FOLDER --data.tokenizer VOCABULARY --mesh.fsdp 512

    Brown et al. 2020, as gpt3_125m. Not yet run.
    """
    return _three(96, 12288, 96, 3.2, 0.6e-4)

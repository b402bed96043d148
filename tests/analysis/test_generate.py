"""Writing and scoring with a small GPT: what is sampled, where texts end, what is counted; and mistakes."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import contexture
from contexture.analysis.generate import _settled_length, finish, stream
from contexture.analysis.options import GenerateOptions
from contexture.cli import main as cli
from contexture.data.errors import DataError
from contexture.data.tokenizers.byte_pair import learn_byte_bpe
from contexture.data.visible import visible
from contexture.models import decode
from contexture.models.config import BertConfig, GptConfig, Sampling
from contexture.models.families import build
from contexture.train.settings.run_file import read
from tests.helpers.commands import done, json_of
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close
from tests.helpers.random_runs import random_parameters, random_training
from tests.helpers.scoring import score_texts

Opened = tuple[Any, Any, Any]
"""(model, parameters, tokenizer)."""
pytestmark = pytest.mark.usefixtures("one_device")

CONFIG = GptConfig(vocab=290, length=48, layers=2, hidden=32, heads=2, ffn=64, init_std=0.4)
TEXT = "the cat sees the river. a small dog likes the red house. the queen paints two apples. "


@pytest.fixture(scope="module")
def writer() -> Opened:
    """(model, parameters, byte-level tokenizer of 270 to 290 pieces)."""
    tokenizer = learn_byte_bpe([TEXT * 4], 280)
    model = build(CONFIG, ("lm",))
    batch = {"tokens": jnp.ones((1, 4), jnp.int32), "mask": jnp.ones((1, 4), jnp.int32),
             "next": jnp.ones((1, 4), jnp.int32), "next_weights": jnp.ones((1, 4))}  # fmt: skip
    return model, random_parameters(model, batch, deviation=CONFIG.init_std), tokenizer


def generate(model: Any, params: Any, tokenizer: Any, prompts: list[str], **options: Any) -> list[Any]:
    return finish(stream(model, params, tokenizer, prompts, GenerateOptions(**options)))


def write(writer: Opened, prompts: list[str], **options: Any) -> list[str]:
    return [line["text"] for line in generate(*writer, prompts, **{"tokens": 12, **options})]


GREEDY: Any = {"temperature": 0.0}


@pytest.mark.long
def test_a_text_does_not_depend_on_its_batch(writer: Opened):
    """The same prompts one at a time, in pairs and together, of unequal length: the same texts for the same seed."""
    prompts = ["the cat", "a", "the queen paints two apples. the", "my"]
    together = write(writer, prompts, seed=3)
    assert together == write(writer, prompts, seed=3, batch=2) != write(writer, prompts, seed=4)


@pytest.mark.long
def test_the_likeliest_text_does_not_depend_on_its_batch(writer: Opened):
    prompts = ["the cat", "a", "the queen paints two apples. the", "my"]
    assert write(writer, prompts, **GREEDY) == write(writer, prompts, **GREEDY, batch=1)


def test_greedy_is_the_likeliest_token_of_the_whole_text_read_anew(writer: Opened):
    model, params, tokenizer = writer
    ids = tokenizer.encode(["the cat"])[0]
    read = jax.jit(lambda batch: model.clone(heads={}).apply({"params": params}, batch).encoding.hidden_BLD[0])
    for _ in range(12):
        tokens = np.pad(np.array([ids], np.int32), ((0, 0), (0, 40 - len(ids))))
        hidden = read({"tokens": tokens, "mask": np.ones_like(tokens)})[len(ids) - 1]
        ids.append(int((params["backbone"]["embeddings"]["tokens"][: tokenizer.size] @ hidden).argmax()))
        if ids[-1] == tokenizer.end:
            ids.pop()
            break
    assert write(writer, ["the cat"], **GREEDY)[0] == tokenizer.decode(ids)[len("the cat") :]


def test_a_prompt_that_is_too_long_loses_its_first_tokens(writer: Opened):
    tokenizer = writer[2]
    prompts = [TEXT * 3, "the cat"]
    cut, whole = generate(*writer, prompts, **GREEDY, tokens=12, truncate=True)
    ids = tokenizer.encode([TEXT * 3])[0]
    assert cut.get("truncated") == len(ids) - (CONFIG.length - 12) > 0 and whole.get("truncated") == 0
    rest = tokenizer.decode(ids[-(CONFIG.length - 12) :])
    assert cut["text"] == write(writer, [rest], **GREEDY)[0] and cut["prompt"] == prompts[0]
    assert whole["text"] == write(writer, ["the cat"], **GREEDY)[0]
    with pytest.raises(DataError, match="prompt 0: 1 tokens and 48 to be written are more than the 48 that the model"):
        generate(*writer, prompts, tokens=48, truncate=True)


def test_a_text_ends_at_the_end_token_before_a_stop_text_or_at_its_length(writer: Opened):
    model, params, tokenizer = writer
    table = np.array(params["backbone"]["embeddings"]["tokens"])
    free = generate(*writer, ["the"], **GREEDY, tokens=20)[0]
    assert free["stopped"] == "length" and free["tokens"] == 20
    word = free["text"][5:8]
    pieces: list[str] = []
    work = stream(*writer, ["the"], GenerateOptions(temperature=0.0, tokens=20, stop=(word, "never")))
    cut = finish(work, lambda part: pieces.append(part[1]))[0]
    assert cut["stopped"] == "stop" and cut["text"] == free["text"][: free["text"].index(word)] == "".join(pieces)
    ids = np.array(tokenizer.encode(["the" + free["text"]])[0])
    table[tokenizer.end] = table[ids[-1]] * 3  # the end is now likelier than that token
    backbone = params["backbone"]
    ends = {"backbone": {**backbone, "embeddings": {**backbone["embeddings"], "tokens": table}}}
    ended = generate(model, ends, tokenizer, ["the"] * 3, top_k=2, tokens=40, seed=1)
    assert any(line["stopped"] == "end" and line["tokens"] < 40 for line in ended)


def test_no_token_beyond_the_vocabulary_is_written(writer: Opened):
    """The table has 290 rows, the vocabulary fewer pieces."""
    model, params, tokenizer = writer
    assert tokenizer.size < CONFIG.vocab
    apart = decode.unstack_params(params, CONFIG, tokenizer.size)
    assert decode.logits(CONFIG, apart, jnp.ones((2, 32))).shape == (2, tokenizer.size)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**16), st.integers(0, 12), st.floats(0.01, 1.0), st.booleans())
def test_what_is_kept_is_what_the_definitions_say(seed: int, k: int, p: float, exclusive: bool):
    """gpt-2's sample.py and transformers' definition, each by a loop over the sorted tokens."""
    logits = np.round(np.random.default_rng(seed).normal(0, 2, 12), 1).astype(np.float32)  # some tie
    order = sorted(range(12), key=lambda i: -logits[i])
    kept = [i for i in order if not k or logits[i] >= logits[order[k - 1]]]
    shares = np.exp(logits[kept] - logits.max())
    shares /= shares.sum()
    if p < 1.0:
        total, nucleus = 0.0, []
        for i, share in zip(kept, shares, strict=True):
            if abs(total + share - p) < 1e-4 or abs(total - p) < 1e-4:
                return  # too near to tell float32 sums apart
            if nucleus and (total + share > p if exclusive else total >= p):
                break
            nucleus.append(i)
            total += share
        kept = [i for i in kept if logits[i] >= logits[nucleus[-1]]]
    filtered = decode.filter_logits(jnp.asarray(logits[None]), Sampling(top_k=k, top_p=p, exclusive=exclusive))[0]
    assert np.flatnonzero(np.isfinite(filtered)).tolist() == sorted(kept)


def test_samples_have_the_shares_of_the_softmax():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = decode.sample(jnp.broadcast_to(logits, (20_000, 4)), keys, Sampling())
    assert_close(np.bincount(drawn, minlength=4) / 20_000, np.exp(logits), atol=0.01)


@settings(max_examples=300, deadline=None)
@given(st.text("abEND é", max_size=30), st.lists(st.text("abEND", min_size=1, max_size=3), max_size=3), st.data())
def test_what_is_told_joins_to_the_text(whole: str, stop: list[str], data: st.DataObject):
    """Bytes come in bursts that may cut a character or a stop text: what was told is a beginning of what is told."""
    raw = whole.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    streamed = ""
    for end in [*cuts, len(raw)]:
        text = raw[:end].decode("utf-8", "replace")
        places = [at for word in stop if (at := text.find(word)) >= 0]
        text = text[: min(places)] if places else text
        ready = text[: len(text) if places else _settled_length(text, tuple(stop))]
        assert ready.startswith(streamed) and whole.startswith(ready)
        streamed = ready
        if places:
            break


def test_what_may_yet_change_is_not_told():
    assert _settled_length("a b\ufffd", ()) == 3
    assert _settled_length("one two EN", ("END", "x")) == 8
    assert _settled_length("one two END", ("other",)) == 11


@pytest.mark.parametrize("stride", [0, 5, 1])
def test_a_score_is_the_sum_over_every_token_once(writer: Opened, stride: int):
    """Against a model read anew for each token with the context that its window has."""
    model, params, tokenizer = writer
    documents, length = [TEXT, "my cat", TEXT[:40]], 16
    result: Any = score_texts(*writer, documents, length=length, stride=stride, batch=3)
    step, nats, tokens = stride or length, 0.0, 0
    table = params["backbone"]["embeddings"]["tokens"]
    read = jax.jit(lambda batch: model.clone(heads={}).apply({"params": params}, batch).encoding.hidden_BLD)
    for text in documents:
        ids = [tokenizer.end, *tokenizer.encode([text])[0]]
        start = scored = 0
        while scored < len(ids) - 1:
            window = np.zeros((1, length), np.int32)
            part = ids[start : start + length + 1]
            window[0, : len(part) - 1] = part[:-1]
            logits = np.asarray(read({"tokens": window, "mask": np.ones_like(window)})[0] @ table.T, np.float64)
            for place in range(scored - start, len(part) - 1):
                top = logits[place].max()
                nats += top + np.log(np.exp(logits[place] - top).sum()) - logits[place, part[place + 1]]
                tokens += 1
            scored = start + len(part) - 1
            start += step
    assert result["tokens"] == tokens and result["documents"] == 3
    assert_close(result["loss"], nats / tokens, rtol=1e-5)
    assert_close(result["perplexity"], math.exp(nats / tokens), rtol=1e-4)
    words, size = sum(len(d.split()) for d in documents), sum(map(len, documents))
    assert_close(result["word_perplexity"], math.exp(nats / words), rtol=1e-3)
    assert_close(result["bits_per_byte"], nats / math.log(2) / size, rtol=1e-5)


def test_mistakes_of_writing_and_scoring_are_one_clear_line(writer: Opened):
    model, params, tokenizer = writer
    bert = build(BertConfig(vocab=50, length=8, layers=1, hidden=8, heads=1, ffn=8))
    long = "the cat " * 60
    for call, message in (
        (lambda: write(writer, ["a", long]), r"prompt 1: \d+ tokens and 12 to be written are more than the 48 that"),
        (lambda: write((bert, {}, tokenizer), ["a"]), "only a GPT writes on from a prompt"),
        (lambda: score_texts(*writer, ["a"], length=49), "length=49 is not between 2 and the 48 tokens"),
        (lambda: score_texts(*writer, ["a"], length=8, stride=9), "stride=9 is not between 1 and length=8"),
        (lambda: score_texts(*writer, []), "no token to score"),
    ):
        with pytest.raises(DataError, match=message):
            call()


def test_an_empty_prompt_begins_a_document_where_there_is_a_token_for_it(writer: Opened):
    model, params, tokenizer = writer
    assert write(writer, [""], **GREEDY)[0]

    class Endless:
        end, size, pad = None, tokenizer.size, 0
        encode, decode = staticmethod(tokenizer.encode), staticmethod(tokenizer.decode)

    with pytest.raises(DataError, match="prompt 0 has no token, and the vocabulary has none that a text could begin"):
        generate(model, params, Endless(), [""])


def test_the_commands_write_and_score(gpt_run, capsys, tmp_path):
    """--json is one object, else the text itself comes out."""
    words = ["generate", gpt_run, "--prompt", "The cat", "--tokens", "9", "--seed", "1"]
    texts = json_of(*words)["texts"]
    capsys.readouterr()
    done(*words)
    assert capsys.readouterr().out == visible("The cat" + texts[0]["text"]) + "\n" and texts[0]["tokens"] == 9
    (tmp_path / "a.txt").write_text("The cat sees the river.\n\nMy brother paints.\n", "utf-8")
    result = json_of("score", gpt_run, "--input", tmp_path / "a.txt", "--documents", "blank_lines")
    assert result["documents"] == 2 and 1 < result["perplexity"] < 300


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", "a", "--top-p", "1.5"], "top-p=1.5 is not above 0 and at most 1"),
        (["--prompt", "a", "--top-p", "0"], "top-p=0.0 is not above 0 and at most 1"),
        (["--prompt", "a", "--temperature", "-1"], "temperature=-1.0 is not at least 0"),
        (["--prompt", "a", "--tokens", "-2"], "tokens=-2 is not a number of tokens"),
        (["--prompt", "a", "--stop", ""], "stop holds an empty text"),
        (["--prompt", "a", "--batch", "0"], "batch=0 is not a positive number of prompts"),
        (["--prompt", "a", "--batch", "9" * 20], f"batch={'9' * 20} is more than 16384 prompts at a time; give fewer"),
        (["--prompt", "a", "--seed", "-1"], "seed=-1 is not in [0, 2^31)"),
        ([], "give --prompt TEXT, or --input FILE"),
        (["--input", "/nowhere"], "/nowhere: no such file; give one with a prompt in each line"),
    ],
)
def test_a_mistake_in_the_words_of_generate(words: list[str], message: str, gpt_run, capsys):
    assert cli.main(["generate", str(gpt_run), *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--tokens", "40"], *long([])])
def test_it_is_said_where_a_text_gets_longer_than_those_of_the_training(words: list[str], gpt_run, capsys):
    trained = read(gpt_run).run.data.length
    assert cli.main(["generate", str(gpt_run), "--prompt", "the cat sees the river", *words]) == 0
    assert f"trained on sequences of at most {trained} tokens" in capsys.readouterr().err
    assert cli.main(["generate", str(gpt_run), "--prompt", "a", "--tokens", "2"]) == 0
    assert "trained on sequences" not in capsys.readouterr().err


def test_half_a_character_is_one_clear_line(gpt_run, tiny_run):
    for prompts, message in (
        (["a", "b\udcff"], "prompt 1: half a character, U\\+DCFF, at place 1; give text in UTF-8"),
        (["a", 3], "prompt 1: 3 is no text"),
    ):
        with pytest.raises(DataError, match=message):
            contexture.open(gpt_run).generate(prompts)
    with pytest.raises(DataError, match="the text: half a character"):
        contexture.open(tiny_run).fill("a \ud800 [MASK]")


def test_characters_count_what_is_scored_alone(tmp_path):
    """Without a token that ends documents the first of each is not scored: a bit a byte is then a bit a character."""
    (tmp_path / "a.txt").write_text("ab\n\nbab\n\na\n\n" * 9, "utf-8")
    words = (
        "--data.vocabulary characters --data.documents blank_lines --model.layers 1 --model.hidden 8 --model.heads 2 "
        "--model.ffn 8 --data.length 8 --data.batch 2 --steps 2 --optim.warmup 1"
    )
    with random_training(2):
        done("pretrain", "gpt.tiny", "--data.path", tmp_path / "a.txt", *words.split(), "--dir", tmp_path / "r")
    (tmp_path / "b.txt").write_text("ab\n\na\n\nbab\n\n", "utf-8")
    result = json_of("score", tmp_path / "r", "--input", tmp_path / "b.txt", "--documents", "blank_lines")
    assert result["documents"] == 3 and result["tokens"] == result["bytes"]
    assert_close(result["bits_per_byte"], result["loss"] / math.log(2), rtol=1e-6)
    assert "neither scored nor counted" in result["convention"]


def test_a_tiny_temperature_is_the_likeliest():
    logits_BV = jnp.array([[3.0, 9.0, 12.0, 5.0], [1e3, -1e3, 0.0, 2e3]])
    for temperature in (1e-38, 1e-37, 1e-20, 1e-7):
        for how in (Sampling(temperature=temperature), Sampling(temperature=temperature, top_k=2)):
            assert decode.sample(logits_BV, jax.random.split(jax.random.key(0), 2), how).tolist() == [2, 3]


def test_a_bert_does_not_write(tiny_run, capsys):
    assert cli.main(["generate", str(tiny_run), "--prompt", "a"]) == 2
    assert "only a GPT writes on from a prompt" in capsys.readouterr().err

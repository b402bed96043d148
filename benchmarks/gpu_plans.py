"""Plans trainings on one GPU, and writes the table docs/gpus.md: what fits on which. Needs the extra [plan-gpu].

Each training is compiled for two GPUs: t4, which has no kernel for attention, and l4, whose kernels all newer ones
have. What a step needs is held against the memory of each GPU. What is done is kept in --cache, as by plans.py.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
GIB = 2**30
MODELS = ("bert.base", "bert.large", "gpt.gpt2_124m", "gpt.gpt2_355m", "gpt.gpt2_774m", "gpt.gpt2_1558m")
TRAININGS = {
    "fine-tune, 32 × 128": "--task.kind classify --data.batch 32 --data.length 128",
    "fine-tune, 8 × 512": "--task.kind classify --data.batch 8 --data.length 512",
    "LoRA of rank 8, 8 × 512": "--task.kind classify --optim.lora-rank 8 --data.batch 8 --data.length 512",
    "pretrain, 8 × 512 at once": "--data.batch 8 --data.length 512",
}
COLUMNS = ("t4", "l4", "rtx4090", "a100-40g", "a100", "h100", "h200")
HEAD = """# What fits on which GPU

GiB that a step of a training needs of one GPU, by `make gpu-plans`: the step that `pretrain` and `finetune` run,
compiled ahead of time and not run. JAX takes three quarters of a GPU's memory (`XLA_PYTHON_CLIENT_MEM_FRACTION`),
which is what stands below its name. `contexture plan RECIPE --topology rtx4090:1` plans any other training, and names
the nearest that fits where it does not. A larger batch fits in parts: `--optim.accumulate 4`.

"""


def planned(model: str, training: str, gpu: str) -> dict:
    words = [sys.executable, "-m", "contexture", "plan", model, "--topology", gpu, *TRAININGS[training].split()]
    code = (
        "from contexture.train.plan import suggest; suggest.nearest = lambda *_: None\n"  # what fits is not looked for
    )
    code += "import sys; from contexture.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, *words[3:], "--json"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words[2:])}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)["bytes_per_device"]


def table(plans: dict[str, dict]) -> str:
    from contexture.models.sharding import gpu_memory_fraction
    from contexture.train.plan.chips import CHIPS

    room = {gpu: CHIPS[gpu].memory * gpu_memory_fraction() / GIB for gpu in COLUMNS}
    lines = ["| model | training | " + " | ".join(f"{gpu}<br>{room[gpu]:.1f}" for gpu in COLUMNS) + " |"]
    lines.append("|" + "---|" * (2 + len(COLUMNS)))
    for model in MODELS:
        for training in TRAININGS:
            names = {gpu: f"{model} {training} {gpu}" for gpu in ("t4", "l4")}
            if not all(name in plans for name in names.values()):
                continue
            needs = {gpu: plans[name] for gpu, name in names.items()}
            cells = [needs["t4" if gpu == "t4" else "l4"]["total"] / GIB for gpu in COLUMNS]
            shown = [
                f"{need:.1f}" if need <= room[gpu] else f"no: {need:.1f}"
                for gpu, need in zip(COLUMNS, cells, strict=True)
            ]
            lines.append(f"| {model} | {training} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "gpu_plans.json")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "gpus.md")
    args = parser.parse_args()
    plans = json.loads(args.cache.read_text()) if args.cache.exists() else {}
    args.cache.parent.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        for training in TRAININGS:
            for gpu in ("t4", "l4"):
                name = f"{model} {training} {gpu}"
                if name not in plans:
                    plans[name] = planned(model, training, gpu)
                    args.cache.write_text(json.dumps(plans))
                    print(f"{name}: {plans[name]['total'] / GIB:.1f} GiB", flush=True)
                    args.to.write_text(HEAD + table(plans))


main()

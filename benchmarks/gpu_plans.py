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
GPUS = ("t4", "l4", "rtx4090", "a100-40g", "a100", "h100", "h200")
HEAD = """# What fits on which GPU

GiB that a step of a training needs of one GPU, by `make gpu-plans`: the step that `pretrain` and `finetune` run,
compiled ahead of time and not run. A T4 has no kernel for attention here, and stores the attention weights. JAX takes
three quarters of a GPU's memory (`XLA_PYTHON_CLIENT_MEM_FRACTION`). `contexture plan RECIPE --topology rtx4090:1` plans
any other training, and names the nearest that fits where it does not. A larger batch fits in parts:
`--optim.accumulate 4`.

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

    room = {gpu: CHIPS[gpu].memory * gpu_memory_fraction() / GIB for gpu in GPUS}
    sizes = ", ".join(f"{gpu} {size:.1f}" for gpu, size in room.items())
    lines = [f"GiB that a program may use: {sizes}.\n", "| model | training | t4 | other GPUs | fits on |"]
    lines.append("|---|---|---|---|---|")
    missing = dict[str, None]()
    for model in MODELS:
        for training in TRAININGS:
            if any(f"{model} {training} {gpu}" not in plans for gpu in ("t4", "l4")):
                missing[model] = None
                continue
            t4, others = (plans[f"{model} {training} {gpu}"]["total"] / GIB for gpu in ("t4", "l4"))
            fits = [gpu for gpu in GPUS if (t4 if gpu == "t4" else others) <= room[gpu]]
            shown = "all" if fits == list(GPUS) else ", ".join(fits) or "none alone"
            lines.append(f"| {model} | {training} | {t4:.1f} | {others:.1f} | {shown} |")
    note = f"\nNot planned yet: {', '.join(f'`{model}`' for model in missing)}.\n" if missing else ""
    return "\n".join(lines) + "\n" + note


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "gpu_plans.json")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "gpus.md")
    parser.add_argument("--table", action="store_true", help="write the table of what is done, and plan nothing")
    args = parser.parse_args()
    plans = json.loads(args.cache.read_text()) if args.cache.exists() else {}
    args.cache.parent.mkdir(parents=True, exist_ok=True)
    args.to.write_text(HEAD + table(plans))
    for model in [] if args.table else MODELS:
        for training in TRAININGS:
            for gpu in ("t4", "l4"):
                name = f"{model} {training} {gpu}"
                if name not in plans:
                    plans[name] = planned(model, training, gpu)
                    args.cache.write_text(json.dumps(plans))
                    print(f"{name}: {plans[name]['total'] / GIB:.1f} GiB", flush=True)
                    args.to.write_text(HEAD + table(plans))


main()

"""`python -m contexture COMMAND …`, which is also what `contexture COMMAND …` runs."""

import os
import sys


def main() -> int:
    """Runs the command line in a process of its own, which is set up for it: a caller of the Python functions keeps his
    own settings."""
    # Here, and not above: worker processes import this file too, and need none of these.
    from contexture.data.bucket import left_waiting
    from contexture.data.process_folder import end_without_waiting
    from contexture.train.checkpoints.orbax_logging import silence_orbax
    from contexture.train.run.goodput import from_process_start
    from contexture.train.run.limits import check_limits
    from contexture.train.run.signals import end_at_once

    # Before libraries are loaded: under a small `ulimit -v` they abort.
    try:
        check_limits()
    except (MemoryError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    end_at_once()
    from_process_start()
    _keep_compiled_programs()
    silence_orbax()
    from contexture.cli.main import main

    code = main()
    # Threads of libraries that wait for a store which is silent: the interpreter would wait for them, half an hour.
    if left_waiting():
        end_without_waiting(code)
    return code


def _keep_compiled_programs() -> None:
    """Has jax, once it is imported, keep compiled programs between starts, unless the user has set that otherwise."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(home, "contexture", "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


if __name__ == "__main__":
    sys.exit(main())

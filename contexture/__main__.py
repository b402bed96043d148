"""`python -m contexture COMMAND …`, which is also what `contexture COMMAND …` runs."""

import sys

from contexture.train.run.limits import check_address_space


def main() -> int:
    """Runs the command line. The address space is checked before libraries are loaded: under a small `ulimit -v` they
    abort."""
    try:
        check_address_space()
    except MemoryError as error:
        print(f"MemoryError: {error}", file=sys.stderr)
        return 1
    from contexture.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(main())

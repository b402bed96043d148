"""The operations that jax traces a function into."""

from collections.abc import Iterator

from jax.extend.core import Jaxpr, JaxprEqn


def equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """All equations, those of inner functions and loops too."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)

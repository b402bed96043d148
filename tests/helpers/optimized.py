"""Programs compiled as users have them, in a suite that compiles quickly."""

OPTIMIZED = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    "xla_cpu_use_fusion_emitters": True,
}
"""For `jax.jit(…, compiler_options=OPTIMIZED)`: where two programs must differ by their rounding alone."""

"""Matrix products for NVIDIA Hopper (sm_90a) in Pallas Mosaic GPU, with their legality known before lowering.

The modules `problem`, `config`, `hardware`, `scopes` and `legality` are plain arithmetic: they import neither jax
nor numpy. `kernel` and `reference` import jax.
"""

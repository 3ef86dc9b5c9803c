"""Ledger: what was measured, and where it is kept. Optuna's storage is the only record of trials."""

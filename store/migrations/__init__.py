"""Alembic migrations of the store. ``store.schema`` runs them."""

"""What Harbor loads into its own process: this folder is on its ``PYTHONPATH``. Imports nothing of Dragoman."""

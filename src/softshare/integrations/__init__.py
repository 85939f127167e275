"""Callbacks for trainers of other libraries: `lightning` and `huggingface`, each imported where it is wanted."""

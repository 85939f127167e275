"""Callbacks for the trainers of other libraries, `lightning` and `huggingface`. Import the one you need."""

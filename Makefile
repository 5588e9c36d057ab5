# Shortcuts; README.md has the two commands that matter.
.PHONY: demo test install format lint types unit

demo:
	bash scripts/demo.sh

test:
	bash scripts/test.sh

install:
	bash scripts/install.sh test

format:
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

lint:
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .

types:
	.venv/bin/mypy --strict juicepy

unit:
	.venv/bin/python -m pytest tests/unit

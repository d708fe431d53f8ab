# What scripts/ does, by short names. `make` lists it.
PYTHON = .venv/bin/python

.PHONY: help install check unit test native docs package
help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10
install: ## what development needs, as root on Debian
	scripts/install dev
check: ## format, style, types, layers
	scripts/lint
unit: ## tests without clusters; seconds for one file: python -m pytest FILE
	$(PYTHON) -m pytest -m "not slurm" -n 2 --dist loadfile
test: ## all checks and tests, clusters included
	scripts/test
native: ## build and test the C and C++ parts
	scripts/native
docs: ## the documentation as a site, in build/site
	scripts/docs
package: ## the Debian package, in build/
	scripts/package

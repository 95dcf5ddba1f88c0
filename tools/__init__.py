"""Programs for working on cutegemm, run by the Makefile."""

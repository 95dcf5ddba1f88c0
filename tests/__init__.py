"""Tests: unit/ (no GPU), compile/ (no GPU: PTX and SASS of every architecture), gpu/ (marker `gpu`)."""

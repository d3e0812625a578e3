"""Writes ``schema.json`` anew: after the version numbers were raised."""

from tests.contract.formats.schema import SCHEMA, schema_text

SCHEMA.write_text(schema_text(), encoding="utf-8")

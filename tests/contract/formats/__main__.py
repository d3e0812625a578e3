"""Writes ``schema.json`` anew: after the version numbers were raised."""

from tests.contract.formats.schema import SCHEMA, schema_text
from trmcloud.app.home import families_folder
from trmcloud.core.spec.settings import FAMILIES
from trmcloud.io.families import FamilyFolders

FAMILIES.provide(FamilyFolders(families_folder))
SCHEMA.write_text(schema_text(), encoding="utf-8")

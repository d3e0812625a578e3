"""Writes ``schema.json`` anew: after the version numbers were raised."""

from tests.contract.formats.schema import SCHEMA, schema_text
from trmcloud.core.spec.settings import FAMILIES
from trmcloud.io.families import FamilyFolders
from trmcloud.operations.home import families_folder

FAMILIES.provide(FamilyFolders(families_folder))
SCHEMA.write_text(schema_text(), encoding="utf-8")

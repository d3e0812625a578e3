"""Importing this registers the providers' profiles and the families, as ``wiring`` does."""

from trmcloud.core.spec.settings import FAMILIES
from trmcloud.io.families import FamilyFolders
from trmcloud.operations.home import families_folder
from trmcloud.providers.registry import fill_profiles

fill_profiles()
FAMILIES.provide(FamilyFolders(families_folder))

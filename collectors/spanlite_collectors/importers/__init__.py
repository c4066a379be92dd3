"""Recorded traces of other tools, as spans."""

from spanlite_collectors.importers.api import import_file
from spanlite_collectors.importers.detect import FORMATS, detect_format
from spanlite_collectors.importers.options import ImportOptions
from spanlite_collectors.importers.report import ImportReport, KindCount

__all__ = [
    "FORMATS",
    "ImportOptions",
    "ImportReport",
    "KindCount",
    "detect_format",
    "import_file",
]

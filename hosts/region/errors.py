"""What can be wrong with a region file (spec region-file, rules)."""

from __future__ import annotations

from journal.errors import InvalidInput


class RegionFileError(InvalidInput):
    """A region file that cannot be used: names the file, the JSON path and the problem.

    Attributes:
        file_name: File as the operator named it.
        path: JSON path inside the file, such as ``compute.servers[12].flavor``; may be empty.
        problem: What is wrong there.
    """

    code = "malformed_region_file"

    def __init__(self, *, file_name: str, path: str, problem: str) -> None:
        where = f"{file_name}: {path}" if path else file_name
        super().__init__(f"{where}: {problem}", file=file_name, path=path, problem=problem)
        self.file_name = file_name
        self.path = path
        self.problem = problem

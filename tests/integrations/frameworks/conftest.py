"""One worker runs the tests of one framework: importing one takes seconds."""

from xdist.scheduler import LoadScopeScheduling


class FrameworkScheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid):
        """Return the framework of `test_laws.py::test_x[langchain_agent-sync]`, or the file."""
        file, _, test = nodeid.partition("::")
        if not file.endswith("test_laws.py"):
            return file
        case = test.partition("[")[2]
        return case.partition("-")[0].partition("_")[0]


def pytest_xdist_make_scheduler(config, log):
    return FrameworkScheduling(config, log)

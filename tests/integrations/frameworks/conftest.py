"""One worker runs the tests of one framework: importing one takes seconds."""

from xdist.scheduler import LoadScopeScheduling


class FrameworkScheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid):
        """Return the framework in an id such as `test_laws.py::test_x[langchain_agent-sync]`."""
        return nodeid.partition("[")[2].partition("-")[0].partition("_")[0]


def pytest_xdist_make_scheduler(config, log):
    return FrameworkScheduling(config, log)

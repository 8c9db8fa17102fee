import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write what the providers give now into the golden folders"
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """False too where this file was found only after the command line was read (a run from the root)."""
    return bool(request.config.getoption("--update-golden", default=False))

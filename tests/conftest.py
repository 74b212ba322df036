"""What all tests share: the event loop, the real material beside the project, a clean environment."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from support import canaries

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real material that nobody here wrote; it lives beside the project and is never copied into it."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the folder of real material (../shared/data) is not there")
    return folder


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[None]:
    """No test sees the keys, configuration or folders of who runs it; and Toolbay's own folder is searched for secrets after it.

    Tokens may stand where they are kept, and nowhere else.
    """
    for name in (
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "ANTHROPIC_API_KEY",
        "GOOGLE_API_KEY",
        "GEMINI_API_KEY",
        "TOOLBAY_CONFIG",
        "TOOLBAY_MODEL",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", canaries.PARENT)
    monkeypatch.setenv("TOOLBAY_HOME", str(tmp_path / "home"))
    yield
    assert list(canaries.in_files(tmp_path / "home", but=tmp_path / "home" / "data" / "logins")) == []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test after which a secret stands in what was printed or logged has failed, whatever it asserts."""
    report = yield
    for title, text in report.sections if report.passed else ():
        if near := canaries.found(text):
            report.outcome = "failed"
            report.longrepr = f"a secret is in the {title.lower()} of {item.nodeid} ({call.when}): {near}"
    return report

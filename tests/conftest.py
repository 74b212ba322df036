"""What all tests share: the event loop, the real material beside the project, a clean environment."""

from __future__ import annotations

from pathlib import Path

import pytest

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
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the keys, configuration or folders of who runs it."""
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
    monkeypatch.setenv("TOOLBAY_HOME", str(tmp_path / "home"))

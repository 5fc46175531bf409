# /// script
# requires-python = ">=3.11"
# dependencies = ["langchain-openai>=1.7,<2", "langchain-tests>=1.1,<2", "pytest>=8,<10", "pytest-asyncio>=1,<2"]
# ///
"""LangChain (`ChatOpenAI`): its own standard suite of integration tests."""

import os
import sys

import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from shared import GREEDY, KEY, MODEL, URL

# What the model of these tests cannot do, whoever serves it: read a schema in a prompt, call the right tool.
TOO_HARD = (
    "test_agent_loop",
    "test_bind_runnables_as_tools",
    "test_json_mode",
    "test_structured_output[typeddict]",
    "test_structured_output[json_schema]",
    "test_structured_output_async[typeddict]",
    "test_structured_output_async[json_schema]",
    "test_structured_output_optional_param",
    "test_structured_output_pydantic_2_v1",
)


class SmallModel:
    """A plugin of pytest."""

    def pytest_collection_modifyitems(self, items):
        for item in items:
            if item.name.startswith(TOO_HARD) or "tool_call" in item.name:
                item.add_marker(pytest.mark.skip(reason="needs a larger model"))


class TestLegato(ChatModelIntegrationTests):
    chat_model_class = ChatOpenAI
    chat_model_params = {  # noqa: RUF012
        "model": MODEL, "base_url": URL, "api_key": KEY, **GREEDY, "max_tokens": 300, "stream_usage": True,
        "model_kwargs": {"parallel_tool_calls": False},
    }  # fmt: skip
    tool_choice_value = "any"
    supports_json_mode = True


if __name__ == "__main__":
    alone = ["-c", os.devnull, "--rootdir", os.path.dirname(__file__), "--noconftest", "-p", "no:cacheprovider"]
    scopes = ["-o", "asyncio_default_fixture_loop_scope=class", "-o", "asyncio_default_test_loop_scope=class"]
    sys.exit(pytest.main(["-q", *alone, *scopes, "-o", "asyncio_mode=auto", __file__], plugins=[SmallModel()]))

"""Requests as two coding agents make them, in shape and proportion, with short texts of our own.

The shapes are of 2026: Claude Code's from published captures of its traffic and from the SDK's types, and Codex's from
its source (`codex-rs/codex-api`, `codex-rs/protocol`, `codex-rs/tools`) and from bug reports of servers that
refuse them. Left out are images, and most of the length: an agent's prompt is about eight times as long.
"""

from typing import Any

CACHED = {"cache_control": {"type": "ephemeral"}}
TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0, "maximum": 999}
GUIDE = " ".join(
    f"Rule {number}: {rule}"
    for number, rule in enumerate(
        (
            "read a file before you change it, and change no more of it than the task asks for.",
            "run the tests of what you changed, and report what failed without leaving anything out.",
            "search by name or by content before you ask where something is.",
            "never commit, push or delete anything that you were not asked to.",
            "independent calls of tools belong into one answer, dependent ones after another.",
            "explain what you are about to do in one short sentence, without repeating it afterwards.",
        ),
        1,
    )
)


def schema(required: str = "", **properties: Any) -> dict[str, Any]:
    """Returns the schema of an object with these properties, each given as its description or its own schema."""
    made = {name: {**TEXT, "description": it} if isinstance(it, str) else it for name, it in properties.items()}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": made,
        "required": required.split(),
        "additionalProperties": False,
    }


def _tool(name: str, description: str, input_schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"{description} {GUIDE[:200]}", "input_schema": input_schema, **more}


MODE = {**TEXT, "enum": ["content", "files_with_matches", "count"], "description": "What is shown of each match."}
TODO = schema("content status", content="What has to be done.", status={**TEXT, "enum": ["pending", "completed"]})
BOOLEAN = {"type": "boolean"}
TODOS = {"type": "array", "maxItems": 2, "items": TODO}
FOUND = {"path": "Where to look.", "output_mode": MODE, "-A": COUNT}
EDITED = {"old_string": "The text as it is.", "new_string": "The text as it should be.", "replace_all": BOOLEAN}
FILE = "An absolute path."
CLAUDE_CODE_TOOLS: list[dict[str, Any]] = [
    _tool("Task", "Starts an agent on a task of its own.", schema("prompt", prompt="The task.", subagent_type="Kind.")),
    _tool("Bash", "Runs a command.", schema("command", command="It.", timeout=COUNT, run_in_background=BOOLEAN)),
    _tool("Glob", "Finds files by their name.", schema("pattern", pattern="Such as **/*.py.", path="Where to look.")),
    _tool("Grep", "Finds lines of files.", schema("pattern", pattern="A regular expression.", **FOUND)),
    _tool("Read", "Reads a file.", schema("file_path", file_path=FILE, offset=COUNT, limit=COUNT)),
    _tool("Edit", "Replaces text in a file.", schema("file_path old_string new_string", file_path=FILE, **EDITED)),
    _tool("Write", "Writes a file.", schema("file_path content", file_path=FILE, content="All of it.")),
    _tool("TodoWrite", "Keeps the list of tasks.", schema("todos", todos=TODOS)),
    _tool("Skill", "Loads instructions for a kind of work.", schema("skill", skill="Its name."), defer_loading=True),
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
]
CLAUDE_CODE: dict[str, Any] = {
    "model": "smollm2",
    "max_tokens": 32000,
    "system": [
        {"type": "text", "text": "You are a coding agent in a terminal.", **CACHED},
        {"type": "text", "text": f"You help with the code in this folder.\n\n{GUIDE}\n\n{GUIDE}", **CACHED},
    ],
    "tools": [*CLAUDE_CODE_TOOLS[:-1], {**CLAUDE_CODE_TOOLS[-1], **CACHED}],
    "metadata": {"user_id": "user_0f1e_account__session_7c9e6679-7425-40de-944b-e07fc1f90ae7"},
    "thinking": {"type": "adaptive", "display": "summarized"},
    "output_config": {"effort": "medium"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "betas": [
        *("claude-code-20250219", "interleaved-thinking-2025-05-14", "context-management-2025-06-27"),
        *("fine-grained-tool-streaming-2025-05-14", "effort-2025-11-24"),
    ],
}
REMINDER = "<system-reminder>\nThe folder is a repository of git, on the branch main.\n</system-reminder>"


def _read(number: int, path: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "Read", "input": {"file_path": path}}


def _result(number: int, text: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": text, **more}


THOUGHT = {"type": "thinking", "thinking": "The test first, and the code.", "signature": ""}
SAID = {"type": "text", "text": "I read both files."}
REMINDED = {"type": "text", "text": REMINDER}
READ = _result(1, "     1\tdef add(a, b):\n     2\t    return a")
MISSING = _result(2, "File does not exist.", is_error=True)
# A session that is resumed: its answer was two calls, of which one failed.
RESUMED: list[dict[str, Any]] = [
    {"role": "user", "content": [REMINDED, {"type": "text", "text": "Why does test_sum fail?"}]},
    {"role": "assistant", "content": [THOUGHT, SAID, _read(1, "/src/sum.py"), _read(2, "/src/test_sums.py")]},
    {"role": "user", "content": [READ, MISSING, REMINDED]},
]


def _function(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    shown = {key: value for key, value in parameters.items() if key != "$schema"}
    described = {"description": f"{description} {GUIDE[:200]}", "strict": False, "parameters": shown}
    return {"type": "function", "name": name, **described}


PATCH = """start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: "*** Add File: " name LF ("+" /(.*)/ LF)+ | "*** Delete File: " name LF
name: /(.+)/
%import common.LF
"""
STEP = schema("step status", step="What is done.", status={**TEXT, "enum": ["pending", "in_progress", "completed"]})
LIMITS = {"yield_time_ms": COUNT, "max_output_tokens": COUNT}
PLAN = {"type": "array", "maxItems": 2, "items": STEP}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": PATCH}
NOTES = [
    _function("search", "Finds notes.", schema("query", query="Words.")),
    _function("read", "Reads a note.", schema("id", id=COUNT)),
]
CODEX_TOOLS: list[dict[str, Any]] = [
    _function("exec_command", "Runs a command.", schema("cmd", cmd="The command.", workdir="Where.", **LIMITS)),
    _function("write_stdin", "Writes to a command.", schema("session_id", session_id=COUNT, chars="What.", **LIMITS)),
    _function("update_plan", "Updates the plan.", schema("plan", explanation="Why.", plan=PLAN)),
    {"type": "custom", "name": "apply_patch", "description": f"Edits files. {GUIDE[:200]}", "format": GRAMMAR},
    {"type": "namespace", "name": "mcp__notes", "description": "Tools of the server notes.", "tools": NOTES},
    {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": schema(query="Words.")},
    {"type": "web_search", "external_web_access": False},
]
CODEX: dict[str, Any] = {
    "model": "smollm2",
    "instructions": f"You are a coding agent in a terminal.\n\n{GUIDE}\n\n{GUIDE}\n\n{GUIDE}",
    "tools": CODEX_TOOLS,
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "019a2f3c-7e51-7b40-8d7e-2c5b9c1f0a11",
    "text": {"verbosity": "low"},
    "extra_body": {"client_metadata": {"x-codex-installation-id": "8f14e45f"}},
}


def _said(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


# The start of a session that goes on from calls in parallel, with what was reasoned before them.
CODEX_INPUT: list[dict[str, Any]] = [
    _said("developer", "<permissions instructions>Commands may write in this folder.</permissions instructions>"),
    _said("user", "# AGENTS.md instructions\n\nKeep functions short."),
    _said("user", "<environment_context><cwd>/src</cwd><shell>bash</shell></environment_context>"),
    _said("user", "Why does test_sum fail?"),
    {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
    {"type": "function_call", "name": "exec_command", "arguments": '{"cmd":"cat sum.py"}', "call_id": "call_1"},
    {"type": "function_call", "name": "exec_command", "arguments": '{"cmd":"pytest -q"}', "call_id": "call_2"},
    {"type": "function_call_output", "call_id": "call_1", "output": "def add(a, b):\n    return a"},
    {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "1 failed"}]},
]
